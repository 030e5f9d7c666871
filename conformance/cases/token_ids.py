"""Cases of the token ids of hash layers. Patches and codewords lie on a grid with exact distances, so every tie is intended."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, single, tensor
from moespec.conformance.author.inputs import grid, integers, tokens
from moespec.conformance.author.variant import Spec, Variant, variant
from moespec.conformance.format import Tensor

G, T, V = 2, 6, 5


def cases() -> Iterator[Definition]:
    yield from _codes()
    yield from _others()


def _codes() -> Iterator[Definition]:
    def case(name: str, kind: str, purpose: str, patches: Any, codebook: Any, *flags: str) -> Definition:
        tensors: dict[str, Any] = {"patches": tensor(patches, "groups tokens pixels")}
        tensors["codebook"] = tensor(codebook, "codes pixels")
        return single("token_ids", "patch_codes", name, kind, purpose, *flags, exact_ties=kind == "tie", **tensors)

    patches, words = grid("hash/patches", (G, T, 6)), grid("hash/codebook", (V, 6))
    yield case("codes", "value", "The nearest codeword of each patch.", patches, words, "generated_code")
    sizes = grid("hash/codebook/sizes", (V, 6)) * np.array([[0.25], [1], [3], [0.5], [2]])
    purpose = "The nearest codeword, not the one with the largest product."
    yield case("codes_of_all_lengths", "value", purpose, grid("hash/patches/b", (G, T, 6)), sizes)
    one, other = np.array([1.0, -1, 1, -1]), np.array([1.0, 1, -1, -1])
    faint = np.stack([[one / 4096, one / 256, other * 0], [other / 4096, one * 0 + 1, other / 4]])
    purpose = "A patch of nearly one colour is nearer to 0 than to its contrast."
    words = np.array([one * 0, one, other, -one])
    yield case("codes_faint", "value", purpose, faint, words)
    plain = np.stack([[one * 0 + 3, one * 0], [one * 0 - 1, one * 0 + 0.5]])
    purpose = "A patch of one colour is 0."
    yield case("codes_flat", "degenerate", purpose, plain, words[[1, 0, 2, 3]], "degenerate_size")
    plain = np.stack([[one * 0, one * 0 + 2], [one * 0 - 1, one * 0 + 4]])
    words = np.array([[2.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, -1, 0], [0, 0, 0, 1]])
    yield case("codes_tied", "tie", "The lower of codewords at equal distance.", plain, words, "tie_order")


def _ids(values: Any) -> Tensor:
    return tensor(values, "groups tokens")


def _others() -> Iterator[Definition]:
    case, size = partial(single, "token_ids"), "degenerate_size"
    place = partial(case, "position_ids")
    yield place("position", "value", "The place of a token.", tokens=tokens("hash/states"))
    alone = tokens("hash/state", (1, 1, 4))
    yield place("position_one", "degenerate", "One token.", size, tokens=alone)
    ids = _ids(integers("hash/ids", (G, T), 1, 4))
    before = partial(case, "previous_ids")
    yield before("previous", "value", "The id before, 0 for the first.", ids=ids)
    yield before("previous_one", "degenerate", "One token.", size, ids=_ids([[3]]))
    first = _ids(integers("hash/first", (G, T), 0, 6))
    purpose = "The first id counts as many as there are second ones."
    yield case("pair_ids", "pair", "value", purpose, first=first, second=ids, vocabulary=V)
    purpose = "Pairs that float32 does not have."
    many: dict[str, Any] = {"first": _ids([[16384, 16387, 40000]]), "second": _ids([[4, 2, 1024]]), "vocabulary": 1025}
    yield case("pair_ids", "pair_large", "value", purpose, **many)


def codes_to_the_higher(B: Spec, patches: Array, codebook: Array) -> Array:
    """Among codewords at equal distance, a patch gets the codeword of higher index."""
    return (len(codebook) - 1 - B.patch_codes(patches, codebook[::-1])).astype(np.int32)


def _nearest(pixels: Array, codebook: Array) -> Any:
    return np.argmin(np.sum((pixels[..., None, :] - codebook).real ** 2, axis=-1), axis=-1).astype(np.int32)


def codes_of_raw_pixels(B: Spec, patches: Array, codebook: Array) -> Array:
    """Patches are compared without normalising their pixels."""
    return _nearest(patches, codebook)


def codes_without_epsilon(B: Spec, patches: Array, codebook: Array) -> Array:
    """A patch is divided by its standard deviation without an epsilon, and a constant patch stays 0."""
    centred = patches - np.mean(patches, axis=2, keepdims=True)
    spread = np.sqrt(np.mean(centred.real**2, axis=2, keepdims=True))
    return _nearest(centred / np.where(spread == 0, 1, spread), codebook)


def first_precedes_itself(B: Spec, ids: Array) -> Array:
    """The first token of a group counts as its own predecessor."""
    return np.concatenate([ids[:, :1], ids[:, :-1]], axis=1)


def variants() -> Iterator[Variant]:
    yield variant(codes_to_the_higher, "patch_codes", ledger="HT-3b")
    yield variant(codes_of_raw_pixels, "patch_codes", ledger="TI-2c")
    yield variant(codes_without_epsilon, "patch_codes", ledger="TI-2b")
    yield variant(first_precedes_itself, "previous_ids", ledger="TI-3b")
