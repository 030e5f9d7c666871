"""Token ids of images, for routers that need them (hash layers): what each token is, seen before any layer has run.

| kind | id of a patch | number |
|---|---|---|
| `patch_code` | the nearest codeword of its pixels, see `patch_codes` | V |
| `position` | its place in the grid, row by row | S |
| `previous` | the code of the patch before, 0 for the first | V |
| `bigram` | the code of the patch before and its own | V V |
| `position_code` | its place and its code | S V |

V codes, S patches. A class token, which comes first, has one id more than the patches. Section 12.
"""

from typing import Any

__all__ = ["KINDS", "count", "of_images", "patches_of", "uses_codes"]

Array = Any

KINDS = ("patch_code", "position", "previous", "bigram", "position_code")


def uses_codes(kind: str) -> bool:
    """Whether ids of this kind need a codebook."""
    return kind != "position"


def count(kind: str, *, patches: int, codes: int, class_token: bool) -> int:
    """The number of different ids of images with so many patches."""
    numbers = {"patch_code": codes, "position": patches, "previous": codes}
    numbers |= {"bigram": codes * codes, "position_code": patches * codes}
    return numbers[kind] + class_token


def of_images(B: Any, images: Array, codebook: Array | None, *, kind: str, patch_size: int, class_token: bool) -> Array:
    """The ids of all tokens, `(N, S)` int32, of images `(N, H, W, Ch)`; codebook `(V, P)`, None if there are no codes."""
    patches = patches_of(B, images, patch_size)
    if codebook is None:
        ids, codes = B.position_ids(patches), 0
    else:
        ids, codes = B.patch_codes(patches, codebook), codebook.shape[0]
    if kind == "previous":
        ids = B.previous_ids(ids)
    elif kind == "bigram":
        ids = B.pair_ids(B.previous_ids(ids), ids, vocabulary=codes)
    elif kind == "position_code":
        ids = B.pair_ids(B.position_ids(patches), ids, vocabulary=codes)
    if class_token:
        last = count(kind, patches=ids.shape[1], codes=codes, class_token=False)
        ids = B.concatenate([0 * ids[:, :1] + last, ids], 1)
    return ids


def patches_of(B: Any, images: Array, size: int) -> Array:
    """The pixels of each patch in a row: `(N, H, W, Ch)` to `(N, patches, size * size * Ch)`."""
    n, height, width, channels = images.shape
    split = images.reshape((n, height // size, size, width // size, size, channels))
    return B.transpose(split, (0, 1, 3, 2, 4, 5)).reshape((n, -1, size * size * channels))
