"""Zero-shot classification and retrieval, on features whose neighbours are known."""

import json

import numpy as np
import pytest

from moespec.models.errors import DataError
from moespec.models.evaluation import retrieval as module
from moespec.models.evaluation.retrieval import retrieval
from moespec.models.evaluation.zero_shot import Prompts, class_embeddings, read_prompts, zero_shot
from moespec.spec.errors import ConfigError

ONE = np.eye(4)


def recalls(*values):
    return dict(zip(("recall_1", "recall_5", "recall_10"), values, strict=True))


def test_recall_is_that_of_a_sort_of_all_cosines(monkeypatch):
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(30), random.integers(1, 4, 30))
    images, texts = random.normal(size=(30, 5)), random.normal(size=(len(labels), 5))
    cosines = (images / np.linalg.norm(images, axis=1, keepdims=True)) @ (
        texts / np.linalg.norm(texts, axis=1, keepdims=True)
    ).T
    by_image, by_text = np.argsort(-cosines, axis=1), np.argsort(-cosines, axis=0)
    monkeypatch.setattr(module, "CHUNK", 200)
    found = retrieval((images, np.arange(30)), (texts, labels))
    for k in (1, 5, 10):
        of_images = (labels[by_image[:, :k]] == np.arange(30)[:, None]).any(axis=1).mean()
        of_texts = (by_text[:k] == labels).any(axis=0).mean()
        name = f"recall_{k}"
        assert (found["image_to_text"][name], found["text_to_image"][name]) == (of_images, of_texts)


def test_several_captions_of_an_image(monkeypatch):
    texts, labels = np.array([ONE[1], ONE[0], ONE[1], ONE[2], ONE[3]]), np.array([7, 7, 8, 9, 9])
    images, of_images = np.stack([ONE[0], ONE[0], ONE[1], ONE[3]]), np.array([7, 7, 8, 9])
    expected = {"image_to_text": recalls(2 / 3, 1, 1), "text_to_image": recalls(3 / 5, 1, 1)}
    assert retrieval((images, of_images), (texts, labels)) == expected, "any caption counts, an image counts once"
    monkeypatch.setattr(module, "CHUNK", 1)
    assert retrieval((images, of_images), (texts, labels)) == expected
    with pytest.raises(ConfigError, match="labels: 9 is that of a text alone"):
        retrieval((images[:3], of_images[:3]), (texts, labels))
    with pytest.raises(ConfigError, match="labels: 8 is that of an image alone"):
        retrieval((images, of_images), (texts[[0, 1, 3, 4]], labels[[0, 1, 3, 4]]))


def test_zero_shot_averages_the_directions_of_prompts():
    prompts = Prompts(("cat", "a {} dog"), ("a {}.", "{}{}"))
    assert prompts.texts == ["a cat.", "catcat", "a a {} dog.", "a {} doga {} dog"]
    features = np.array([100 * ONE[0], ONE[1], ONE[2], ONE[2]])
    embeddings = class_embeddings(features, 2)
    np.testing.assert_allclose(embeddings, [(ONE[0] + ONE[1]) / np.sqrt(2), ONE[2]], atol=1e-12)
    images = np.array([[0, 1, 0.9, 0], [0, 1, 0.6, 0], [0, 0.1, 5, 9.0]])
    assert zero_shot((images, np.array([1, 0, 0])), 9 * embeddings) == {"accuracy": pytest.approx(2 / 3)}
    with pytest.raises(ConfigError, match="labels: 2, but there are 2 classes"):
        zero_shot((images, np.array([1, 0, 2])), embeddings)
    with pytest.raises(ConfigError, match="width 4, but the images' features have 3"):
        zero_shot((images[:, :3], np.array([1, 0, 1])), embeddings)


def test_files_of_prompts(tmp_path):
    file = tmp_path / "prompts.json"
    file.write_text(json.dumps({"classes": ["cat", "dog"], "prompts": ["a {}", "the {}\n"]}))
    assert read_prompts(file) == Prompts(("cat", "dog"), ("a {}", "the {}"))
    for table, message in (
        ({"classes": ["cat"], "prompts": ["a {}", "a cat"]}, r"the prompt 'a cat' has no \{\} for the name"),
        ({"classes": ["cat", "dog", "cat"], "prompts": ["{}"]}, "the class 'cat' is there twice"),
        ({"classes": ["cat", " "], "prompts": ["{}"]}, r"classes\[1\]: an empty caption"),
        ({"classes": ["cat", 3], "prompts": ["{}"]}, r"classes\[1\]: expected a caption, a text, got 3"),
        ({"classes": ["cat"], "prompts": []}, 'expected {"classes"'),
        ({"classes": "cat", "prompts": ["{}"]}, 'expected {"classes"'),
        (["cat"], 'expected {"classes"'),
    ):
        file.write_text(json.dumps(table))
        with pytest.raises(DataError, match=message) as error:
            read_prompts(file)
        assert str(file) in str(error.value)
    for content in (b"{", b"\xff", b"[" * 100_000):
        file.write_bytes(content)
        with pytest.raises(DataError, match="cannot be read as JSON"):
            read_prompts(file)
