"""Tokenizers of captions: bytes, and files of Hugging Face's library."""

import json
from pathlib import Path

import numpy as np
import pytest

from moespec.models.errors import DataError
from moespec.spec.errors import ConfigError
from moespec.training.data import tokens


def test_bytes_are_filled_with_ends():
    tokenizer = tokens.tokenizer_of()
    ids = tokens.encode(tokenizer, ["ab", "é", "abc"], 4)
    assert ids.tolist() == [[97, 98, 256, 256], [0xC3, 0xA9, 256, 256], [97, 98, 99, 256]]
    assert (ids.dtype, tokenizer.vocabulary) == (np.int32, 257)


def test_a_text_that_is_too_long():
    tokenizer, texts = tokens.tokenizer_of(), ["ab", "abcd", "abcdef"]
    message = r"row 1: 'abcd'\.\.\. has more than text.length=4 tokens including the end token, as have 2 of 3 texts \(longest: 7\); set"
    with pytest.raises(DataError, match=message + r" lit\.long='cut'"):
        tokens.encode(tokenizer, texts, 4, name="row {}".format)
    ids = tokens.encode(tokenizer, texts, 4, long="cut")
    assert ids[2].tolist() == [97, 98, 99, 256]


def test_texts_and_lengths_without_tokens(monkeypatch):
    monkeypatch.setattr(tokens, "CHUNK", 2)
    with pytest.raises(DataError, match="caption 3: '' is empty"):
        tokens.encode(tokens.tokenizer_of(), ["a", "b", "c", ""], 4)
    with pytest.raises(ConfigError, match=r"text\.length=1: expected at least 2, for one token and the end token"):
        tokens.encode(tokens.tokenizer_of(), ["a"], 1)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Words, with an end that the file adds, and settings of its own for length and padding."""
    library = pytest.importorskip("tokenizers")
    vocabulary = {"<unk>": 0, "</s>": 1, "a": 2, "cat": 3, "<eos>": 9}
    tokenizer = library.Tokenizer(library.models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = library.pre_tokenizers.Whitespace()
    tokenizer.post_processor = library.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=20)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_a_file_of_the_library(file):
    tokenizer = tokens.tokenizer_of(str(file))
    assert tokenizer.vocabulary == 10, "one more than the largest id"
    assert tokens.encode(tokenizer, ["a cat dog", "cat"], 5).tolist() == [[2, 3, 0, 1, 1], [3, 1, 1, 1, 1]]
    assert tokens.encode(tokenizer, ["a cat a cat"], 3, long="cut").tolist() == [[2, 3, 1]]
    assert tokens.tokenizer_of(str(file), end="<eos>").end == 9
    with pytest.raises(ConfigError, match="found no token 'dog' in the vocabulary"):
        tokens.tokenizer_of(str(file), end="dog")


def test_files_that_are_no_tokenizer(file):
    for content in ("", "{}", json.dumps({"model": {"type": "Unheard"}})):
        file.write_text(content)
        with pytest.raises(DataError, match=r"tokenizer\.json': not a tokenizer file"):
            tokens.tokenizer_of(str(file))
