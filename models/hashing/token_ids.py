"""Computes the token ids of images, which hash layers need, before any layer runs.

| kind | id of a patch | number of ids |
|---|---|---|
| `patch_code` | the code: the index of the codeword nearest to its pixels, see `patch_codes` | V |
| `position` | its position in the grid, row by row | S |
| `previous` | the code of the previous patch; 0 for the first patch | V |
| `bigram` | the pair of the previous patch's code and its own code | V V |
| `position_code` | the pair of its position and its code | S V |

V codes, S patches. The class token and the registers come first in the sequence, but their ids are larger than all ids of patches."""

from typing import Any, Literal, Protocol, get_args

from moespec.backends.contract import Backend
from moespec.models.parameters import Parameter, normal
from moespec.spec.routing import Params

Array = Any

IdKind = Literal["patch_code", "position", "previous", "bigram", "position_code"]
KINDS = get_args(IdKind)


class IdConfig(Protocol):
    """The fields of a model's configuration that determine its token ids; see `moespec.models.vit.VitConfig`."""

    @property
    def image_size(self) -> int: ...
    @property
    def patch_size(self) -> int: ...
    @property
    def channels(self) -> int: ...
    @property
    def prefix(self) -> int: ...
    @property
    def token_ids(self) -> str: ...
    @property
    def codes(self) -> int: ...


def uses_codes(config: IdConfig) -> bool:
    """Returns True if the token ids depend on a codebook."""
    return config.token_ids != "position"


def count(config: IdConfig) -> int:
    """Returns the number of distinct token ids of the model."""
    patches = (config.image_size // config.patch_size) ** 2
    return _of_patches(config.token_ids, patches, config.codes) + config.prefix


def pixels(config: IdConfig) -> int:
    """Returns the number of values in a patch, which is also the size of a codeword."""
    return config.patch_size**2 * config.channels


def layout(config: IdConfig) -> Params:
    """Returns the layout of the codebook `ids/codebook` `(V, P)`, which is not trained; an empty dict if the ids need no codebook.

    The initial codewords are random; `moespec.training.loop.hash_tables` computes codewords from a data set.
    """
    if not uses_codes(config):
        return {}
    return {"ids": {"codebook": Parameter((config.codes, pixels(config)), normal(1.0))}}


def of_images(B: Backend, config: IdConfig, params: Params, images: Array) -> Array:
    """Returns the ids `(N, S)` int32 of all tokens of the images `(N, H, W, Ch)`. params: the parameters of the model."""
    return made_of(B, config, images, params["ids"]["codebook"] if uses_codes(config) else None)


def made_of(B: Backend, config: IdConfig, images: Array, codebook: Array | None) -> Array:
    """Returns the ids `(N, S)` int32 of all tokens of the images. codebook: an array `(V, P)`, or None if the ids need no codebook."""
    patches = patches_of(B, images, config.patch_size)
    if codebook is None:
        ids, codes = B.position_ids(patches), 0
    else:
        ids, codes = B.patch_codes(patches, codebook), codebook.shape[0]
    if config.token_ids == "previous":
        ids = B.previous_ids(ids)
    elif config.token_ids == "bigram":
        ids = B.pair_ids(B.previous_ids(ids), ids, vocabulary=codes)
    elif config.token_ids == "position_code":
        ids = B.pair_ids(B.position_ids(patches), ids, vocabulary=codes)
    of_patches = _of_patches(config.token_ids, ids.shape[1], codes)
    before = [0 * ids[:, :1] + of_patches + i for i in range(config.prefix)]
    return B.concatenate([*before, ids], 1) if before else ids


def patches_of(B: Backend, images: Array, size: int) -> Array:
    """Converts images `(N, H, W, Ch)` to rows of pixels `(N, patches, size * size * Ch)`, one row per patch."""
    n, height, width, channels = images.shape
    # Each reshape splits or joins a single axis, because JAX requires this for arrays with explicit mesh axes.
    rows = images.reshape((n, height // size, size, width, channels))
    split = rows.reshape((*rows.shape[:3], width // size, size, channels))
    patches = B.transpose(split, (0, 1, 3, 2, 4, 5)).reshape((n, -1, size, size, channels))
    return patches.reshape((n, -1, size * size * channels))


def _of_patches(kind: str, patches: int, codes: int) -> int:
    numbers = {"patch_code": codes, "position": patches, "previous": codes}
    numbers |= {"bigram": codes * codes, "position_code": patches * codes}
    return numbers[kind]
