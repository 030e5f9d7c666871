"""Group-limited choice: selection scores restricted to the best groups of experts. The selection scores carry no gradient."""

from moespec.backends.common.namespace import Array, Namespace
from moespec.spec.algorithms.group_limited import check_groups
from moespec.spec.checks import check_option, check_same_shape, check_scores

__all__ = ["group_limited_scores"]

AXES = "groups tokens experts"


def group_limited_scores(
    xp: Namespace[Array],
    scores: Array,
    group_by: Array | None = None,
    *,
    groups: int,
    limit: int,
    best: int = 2,
    outside: str = "excluded",
) -> Array:
    """scores and group_by (G, T, E) -> (G, T, E)."""
    check_scores("scores", scores, AXES)
    group_by = scores if group_by is None else group_by
    check_scores("group_by", group_by, AXES)
    check_same_shape("group_by", group_by, "scores", scores)
    size = check_groups(groups, limit, best, scores.shape[2])
    check_option("outside", outside, ("excluded", "zero"))
    scores = xp.promote(xp.stop_gradient(scores))
    members = xp.promote(xp.stop_gradient(group_by)).reshape(*scores.shape[:2], groups, size)
    of_groups = xp.sum(xp.largest(members, best)[0], 3)
    limited = xp.is_chosen(xp.top_indices(of_groups, limit), of_groups)
    limited = xp.broadcast_to(limited[..., None], members.shape).reshape(*scores.shape)
    if outside == "zero":
        return xp.where(limited, scores, 0.0)
    least = -xp.max(-scores, 2, keepdims=True)
    return xp.where(limited, scores, 2 * xp.where(least < 0, least, 0.0) - 1)
