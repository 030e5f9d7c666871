"""The specification's own routers, group by group: what the routers of the compiled backends are compared with."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.backends.numpy.routing import SoftRouting, by_slot, group_mean, groups, stacked
from moespec.spec.routers import ROUTERS as SPEC_ROUTERS
from moespec.spec.routing import Params, Router, RouterConfig, RouterOutput

__all__ = ["ROUTERS"]


def _batched(router: Router) -> Callable[..., RouterOutput]:
    def route(
        params: Params,
        tokens: NDArray[Any],
        config: RouterConfig,
        *,
        noise: NDArray[Any] | None = None,
        train: bool = False,
        **needed: Any,
    ) -> RouterOutput:
        """tokens (G, T, D), noise (G, T, E), ids (G, T); losses and metrics are means over the groups."""
        outputs = [
            router.route(params, config=config, train=train, **group)
            for group in groups(tokens=tokens, noise=noise, **needed)
        ]
        routings, losses, metrics = (list(column) for column in zip(*outputs, strict=True))
        # A slot that mixes tokens has no record by slot.
        is_soft = any((np.count_nonzero(routing.dispatch, axis=0) > 1).any() for routing in routings)
        routing = SoftRouting(*stacked(routings)) if is_soft else by_slot(routings)
        return RouterOutput(routing, group_mean(losses), group_mean(metrics))

    return route


ROUTERS: dict[str, Router] = {name: replace(router, route=_batched(router)) for name, router in SPEC_ROUTERS.items()}
"""The routers by name."""
