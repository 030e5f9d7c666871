"""Finds the published models of `spec/implementations/models.json` that route as a recorded gate does."""

from collections.abc import Mapping
from typing import Any

from moespec.spec.implementations.models import models
from moespec.spec.routers import ROUTERS

__all__ = ["published"]

SHOWN = (
    *("choices", "normalize_selected", "affinity", "expert_groups", "chosen_groups", "group_score", "group_bias"),
    "outside",
)
"""The options that the choices and weights of a gate show, besides `scale`."""
CLOSE = 2e-3
"""The relative difference between equal scales, which a recording gives to four digits."""
MOST = 6
"""The maximum number of names that the text lists."""


def published(router: str, options: Mapping[str, Any], experts: int, *, biased: bool) -> str:
    """Returns the text that names the models with this router and the options that a recording shows, or "" if there is none.

    biased: whether there is a selection bias, if the router has one. Models with the same number of experts come first.
    """
    scale, *own = _shown(router, options, experts)
    found: tuple[list[str], list[str]] = ([], [])
    for row in (row for row in models().values() if row.router == router):
        its_scale, *its = _shown(router, row.options, row.experts)
        same_bias = "affinity" not in row.options or biased == (row.options.get("bias_update_rate") != 0)
        if its == own and same_bias and abs(its_scale - scale) <= CLOSE * scale:
            found[row.experts != experts].append(row.name)
    texts = [", ".join(names[:MOST]) + f" and {len(names) - MOST} more" * (len(names) > MOST) for names in found]
    texts[1] = f"{'; ' if texts[0] else ''}with another number of experts: {texts[1]}" if texts[1] else ""
    return f"{texts[0]}{texts[1]} (moespec ledger --model NAME shows the layer)" if any(found) else ""


def _shown(router: str, options: Mapping[str, Any], experts: int) -> list[Any]:
    whole = ROUTERS[router].options(width=1, experts=experts, tokens=experts, **options)
    return [getattr(whole, "scale", 1.0), *(getattr(whole, name, None) for name in SHOWN)]
