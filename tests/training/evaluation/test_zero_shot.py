"""Zero-shot classification and retrieval, on features whose neighbours are known."""

import json

import numpy as np
import pytest

from moespec.models.errors import DataError
from moespec.spec.errors import ConfigError
from moespec.training.evaluation import zero_shot as module
from moespec.training.evaluation.zero_shot import Prompts, class_embeddings, read_prompts, retrieval, zero_shot

ONE = np.eye(4)


def test_recall_is_that_of_a_sort_of_all_cosines(monkeypatch):
    """Any caption of an image counts, and an image that is there twice counts once, as the first."""
    random = np.random.default_rng(0)
    of_images, labels = np.r_[np.arange(30), np.arange(9)], np.repeat(np.arange(30), random.integers(1, 4, 30))
    images, texts = random.normal(size=(39, 5)), random.normal(size=(len(labels), 5))
    units, words = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (images[:30], texts))
    by_image, by_text = np.argsort(-units @ words.T, axis=1), np.argsort(-units @ words.T, axis=0)
    for chunk in (200, 1):
        monkeypatch.setattr(module, "CHUNK", chunk)
        found = retrieval((images, of_images), (texts, labels))
        for k in (1, 5, 10):
            right = (labels[by_image[:, :k]] == np.arange(30)[:, None]).any(axis=1), (by_text[:k] == labels).any(axis=0)
            assert [found[way][f"recall_{k}"] for way in ("image_to_text", "text_to_image")] == [*map(np.mean, right)]
    equal = np.ones((3, 2)), np.arange(3)
    assert retrieval(equal, equal)["image_to_text"]["recall_1"] == 1 / 3, "the lower index comes first"
    with pytest.raises(ConfigError, match="labels: 29 occurs only in the texts"):
        retrieval((images[:29], of_images[:29]), (texts, labels))


def test_zero_shot_averages_the_directions_of_prompts():
    prompts = Prompts(("cat", "a {} dog"), ("a {}.", "{}{}"))
    assert prompts.texts == ["a cat.", "catcat", "a a {} dog.", "a {} doga {} dog"]
    features = np.array([100 * ONE[0], ONE[1], ONE[2], ONE[2]])
    embeddings = class_embeddings(features, 2)
    np.testing.assert_allclose(embeddings, [(ONE[0] + ONE[1]) / np.sqrt(2), ONE[2]], atol=1e-12)
    images = np.array([[0, 1, 0.9, 0], [0, 1, 0.6, 0], [0, 0.1, 5, 9.0]])
    assert zero_shot((images, np.array([1, 0, 0])), 9 * embeddings) == {"accuracy": pytest.approx(2 / 3)}
    with pytest.raises(ConfigError, match="labels: expected labels below 2, the number of classes, got 2"):
        zero_shot((images, np.array([1, 0, 2])), embeddings)
    with pytest.raises(ConfigError, match="expected the images' width 3, got 4"):
        zero_shot((images[:, :3], np.array([1, 0, 1])), embeddings)


def test_files_of_prompts(tmp_path):
    file = tmp_path / "prompts.json"
    file.write_text(json.dumps({"classes": ["cat", "dog"], "prompts": ["a {}", "the {}\n"]}))
    assert read_prompts(file) == Prompts(("cat", "dog"), ("a {}", "the {}"))
    for table, message in (
        ({"classes": ["cat"], "prompts": ["a {}", "a cat"]}, r"the prompt 'a cat' has no \{\} for the class name"),
        ({"classes": ["cat", "dog", "cat"], "prompts": ["{}"]}, "duplicate class 'cat'"),
        ({"classes": ["cat", " "], "prompts": ["{}"]}, r"classes\[1\]: empty caption"),
        (["cat"], 'expected {"classes"'),
    ):
        file.write_text(json.dumps(table))
        with pytest.raises(DataError, match=message) as error:
            read_prompts(file)
        assert str(file) in str(error.value)
