"""Token ids for hash layers, and the table of one hash. Ids are int32. The functions do not check the values of codes and ids.

Shape comments: P pixels, V codes or ids.
"""

from moespec.backends.common.namespace import Array, Namespace
from moespec.spec.algorithms.hash_layers import check_tables
from moespec.spec.algorithms.token_ids import EPSILON
from moespec.spec.checks import check_at_least, check_integers, check_same_shape, check_scores, check_size

__all__ = ["hash_scores", "hash_table_of", "pair_ids", "patch_codes", "position_ids", "previous_ids"]


def patch_codes(xp: Namespace[Array], patches: Array, codebook: Array) -> Array:
    """patches (G, T, P), codebook (V, P) -> (G, T) int32."""
    check_scores("patches", patches, "groups tokens pixels")
    check_scores("codebook", codebook, "codes pixels")
    check_size("codebook", codebook, 1, patches.shape[2], "the pixels of patches")
    pixels = xp.stop_gradient(xp.promote(patches))
    words = xp.cast(xp.stop_gradient(codebook), pixels.dtype)
    centred = pixels - xp.mean(pixels, 2, keepdims=True)
    normalized = centred / xp.sqrt(xp.mean(xp.square(centred), 2, keepdims=True) + EPSILON)
    nearness = xp.product(normalized, xp.swapaxes(words, 0, 1)) - 0.5 * xp.sum(xp.square(words), 1)
    return xp.argmax(nearness)[..., 0]


def position_ids(xp: Namespace[Array], tokens: Array) -> Array:
    """tokens (G, T, D) -> (G, T) int32."""
    check_scores("tokens", tokens, "groups tokens width")
    return xp.broadcast_to(xp.indices(tokens.shape[1], tokens), tokens.shape[:2])


def previous_ids(xp: Namespace[Array], ids: Array) -> Array:
    """ids (G, T) -> (G, T) int32."""
    check_integers("ids", ids, "groups tokens")
    ids = xp.cast(ids, "int32")
    return xp.concatenate([xp.zeros_like(ids[:, :1]), ids[:, :-1]], 1)


def pair_ids(xp: Namespace[Array], first: Array, second: Array, *, vocabulary: int) -> Array:
    """ids (G, T) twice -> (G, T) int32."""
    vocabulary = check_at_least("vocabulary", vocabulary, 1)
    check_integers("first", first, "groups tokens")
    check_integers("second", second, "groups tokens")
    check_same_shape("second", second, "first", first)
    return xp.cast(first, "int32") * vocabulary + xp.cast(second, "int32")


def hash_table_of(xp: Namespace[Array], tables: Array, *, hash: int = 0) -> Array:
    """tables (hashes, ids) -> (ids,) int32, without gradient."""
    check_tables(tables, hash)
    return xp.cast(tables, "int32")[hash]


def hash_scores(xp: Namespace[Array], ids: Array, tables: Array, *, experts: int) -> Array:
    """ids (G, T), tables (hashes, ids) -> (G, T, E) in float32."""
    numbers = xp.indices(check_at_least("experts", experts, 1), ids)
    check_integers("ids", ids, "groups tokens")
    check_tables(tables, 0)
    count, rows = tables.shape[0], xp.cast(tables, "int32")
    ids, shape = xp.cast(ids, "int32"), (ids.shape[0], tables.shape[1])
    chosen = [xp.take(xp.broadcast_to(rows[k], shape), ids)[..., None] == numbers for k in range(count)]
    return sum((count - k) * xp.promote(xp.cast(each, "int32")) for k, each in enumerate(chosen))
