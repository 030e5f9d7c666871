"""Tokenizers convert captions to the token ids of a text tower, `(N, S)`.

| | ids | end |
|---|---|---|
| bytes, the default | the text's UTF-8 bytes, 0 to 255 | 256 |
| a file `tokenizer.json` of Hugging Face's `tokenizers` | as the file defines | the named token, or the first token of `ENDS` in the file |

    ids, end, end, ...        to the length S, at least one end

Since texts are padded with end tokens, the last token is always an end token, as pooling may require. This equals `eos="sticky"` in
google-research/big_vision, `pp/ops_text.py`, get_pp_tokenize, with the end token as `pad_value`. Unless truncation is enabled, a text
without room for an end token is an error, as in openai/CLIP, `clip/clip.py`, tokenize. Nothing is downloaded.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moespec.models.checks import check_installed
from moespec.models.errors import DataError
from moespec.models.files import read_file
from moespec.spec.errors import ConfigError
from moespec.training.data.captions import Captions

__all__ = ["ENDS", "Tokenizer", "check_vocabulary", "encode", "tokenizer_of"]

ENDS = ("</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "<|eos|>", "[SEP]", "[EOS]")
"""End tokens of common vocabularies."""
CHUNK = 4096
"""Number of texts encoded at once."""


class Tokenizer(NamedTuple):
    """tokens: a function from texts to their ids. vocabulary: the number of ids. end: the end token's id."""

    tokens: Callable[[Sequence[str]], list[list[int]]]
    vocabulary: int
    end: int


def tokenizer_of(path: str = "", *, end: str = "") -> Tokenizer:
    """Returns the tokenizer of a file `tokenizer.json`, with its end token; without a path, the ids are UTF-8 bytes.

    Raises ConfigError if `tokenizers` is not installed or the vocabulary lacks the end token, and DataError for an invalid file.
    """
    if not path:
        return Tokenizer(lambda texts: [list(text.encode()) for text in texts], vocabulary=257, end=256)
    check_installed(f"lit.tokenizer={path!r}", "tokenizers", "text")
    import tokenizers

    try:
        library = tokenizers.Tokenizer.from_buffer(read_file(Path(path)))
    except Exception as error:  # the library raises `Exception` itself
        raise DataError(f"lit.tokenizer={path!r}: not a tokenizer file ({error})") from error
    library.no_truncation()
    library.no_padding()
    ids = library.get_vocab(with_added_tokens=True)
    if (token := end or next((each for each in ENDS if each in ids), "")) not in ids:
        wanted = f"no token {end!r}" if end else f"none of the tokens {', '.join(ENDS)}"
        raise ConfigError(f"lit.tokenizer={path!r}: found {wanted} in the vocabulary; set lit.end")

    def tokens_of(texts: Sequence[str]) -> list[list[int]]:
        found = (encoding.ids for encoding in library.encode_batch(list(texts)))
        return [each[:-1] if each[-1:] == [ids[token]] else each for each in found]  # some tokenizers add the end token

    return Tokenizer(tokens_of, max(ids.values()) + 1, ids[token])


def check_vocabulary(tokenizer: Tokenizer, vocabulary: int) -> None:
    """Raises ConfigError unless the text tower's `vocabulary` covers every id of the tokenizer."""
    if tokenizer.vocabulary > vocabulary:
        raise ConfigError(f"vocabulary={vocabulary!r}: expected at least the tokenizer's {tokenizer.vocabulary} ids")


def encode(
    tokenizer: Tokenizer,
    texts: Sequence[str] | Captions,
    length: int,
    *,
    long: Literal["error", "cut"] = "error",
    name: Callable[[int], str] = "caption {}".format,
) -> NDArray[np.int32]:
    """Returns the ids of texts, `(N, length)`, padded with end tokens. long: "cut" truncates texts to leave room for an end token.

    name: a function from the number of a text to its name in errors. Raises ConfigError for a length below 2, and DataError for a text that
    has no tokens or is too long.
    """
    if length < 2:
        raise ConfigError(f"text.length={length!r}: expected at least 2, for one token and the end token")
    ids = np.full((len(texts), length), tokenizer.end, np.int32)
    lengths = np.zeros(len(texts), np.int64)
    for start in range(0, len(texts), CHUNK):
        chunk = [texts[row] for row in range(start, min(start + CHUNK, len(texts)))]
        for row, tokens in enumerate(tokenizer.tokens(chunk), start):
            if not tokens or not texts[row].strip():
                raise DataError(f"{name(row)}: {texts[row][:40]!r} is empty, or has no tokens")
            ids[row, : min(len(tokens), length - 1)] = tokens[: length - 1]
            lengths[row] = len(tokens)
    too_long = np.flatnonzero(lengths >= length)
    if len(too_long) and long == "error":
        row = int(too_long[0])
        raise DataError(
            f"{name(row)}: {texts[row][:40]!r}... has more than text.length={length} tokens including the end token, as have "
            f"{len(too_long)} of {len(texts)} texts (longest: {lengths.max() + 1}); set lit.long='cut' to truncate them"
        )
    return ids
