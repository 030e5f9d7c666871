"""The logits of a cosine router."""

from moespec.backends.common.namespace import Array, Namespace
from moespec.backends.common.soft_moe import inverse_norm
from moespec.spec.algorithms.cosine_logits import EPSILON, FORMS, LARGEST_LOG_SCALE
from moespec.spec.checks import check_option, check_scores, check_size

__all__ = ["cosine_logits"]


def cosine_logits(
    xp: Namespace[Array],
    tokens: Array,
    projection: Array,
    embeddings: Array,
    temperature: Array,
    projection_bias: Array | None = None,
    *,
    form: str = "log_scale",
) -> Array:
    """tokens (G, T, D), projection (D, P), embeddings (P, E), temperature a scalar, projection_bias (P,) -> (G, T, E)."""
    check_scores("tokens", tokens, "groups tokens width")
    check_scores("projection", projection, "width dimensions")
    check_scores("embeddings", embeddings, "dimensions experts")
    check_scores("temperature", temperature, "")
    check_size("projection", projection, 0, tokens.shape[2], "the width of tokens")
    check_size("embeddings", embeddings, 0, projection.shape[1], "the dimensions of projection")
    check_option("form", form, FORMS)
    projected = xp.product(tokens, projection)
    if projection_bias is not None:
        check_scores("projection_bias", projection_bias, "dimensions")
        check_size("projection_bias", projection_bias, 0, projection.shape[1], "the dimensions of projection")
        projected = projected + xp.promote(projection_bias)
    embeddings, temperature = xp.promote(embeddings), xp.promote(temperature)
    rows = projected * inverse_norm(xp, projected, 2, "clamped", EPSILON)
    cosines = xp.product(rows, embeddings * inverse_norm(xp, embeddings, 0, "clamped", EPSILON))
    if form == "divide":
        return cosines / temperature
    return cosines * xp.exp(xp.where(temperature < LARGEST_LOG_SCALE, temperature, LARGEST_LOG_SCALE))
