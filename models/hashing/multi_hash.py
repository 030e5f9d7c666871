"""MultiHash: a hash layer with several hashes. MultiHash mixes several experts inside one MLP, so a routing cannot describe the layer."""

import math
from typing import Any, TypeGuard

from moespec.backends.contract import Backend
from moespec.spec.checks import check_segments
from moespec.spec.errors import ConfigError
from moespec.spec.options import RouterOptions
from moespec.spec.routers.hash import Options
from moespec.spec.routing import Params, RouterOutput

__all__ = ["check", "chosen", "layer"]

Array = Any


def chosen(settings: RouterOptions) -> TypeGuard[Options]:
    """Returns True if the options of a router select MultiHash."""
    return isinstance(settings, Options) and settings.hashes > 1


def check(settings: RouterOptions, *, hidden: int, output: int, plain: bool) -> None:
    """Raises ConfigError for options that MultiHash does not support, and for experts that are not plain MLPs.

    The number of hashes must divide the hidden width and the output width. MultiHash drops no token, so no option may limit the capacity.
    """
    if not chosen(settings):
        return
    if not plain:
        raise ConfigError(f"router_options.hashes={settings.hashes}: MultiHash needs plain experts with biases only")
    check_segments(settings.hashes, hidden=hidden, output=output)
    no_limit = {"capacity_factor": math.inf, "eval_capacity_factor": None, "slots_per_expert": None}
    for name, value in no_limit.items():
        if (got := getattr(settings, name)) != value:
            raise ConfigError(f"router_options.{name}={got!r}: expected {value!r}, since MultiHash has no capacity")


def layer(
    B: Backend, settings: Options, params: Params, experts: Params, tokens: Array, *, ids: Array
) -> tuple[Array, RouterOutput]:
    """Applies the layer to `tokens` `(G, T, D)` with the token ids `ids` `(G, T)`.

    Returns the outputs, and a RouterOutput with the routing of the first hash and the metrics averaged over all hashes.
    """
    tables = B.cast(params["tables"], "int32")
    routings = [B.hash_routing(ids, tables[m], experts=settings.experts, like=tokens) for m in range(settings.hashes)]
    each = [B.routing_metrics(routing) for routing in routings]
    metrics = {name: sum((one[name] for one in each[1:]), each[0][name]) / len(each) for name in each[0]}
    return B.multi_hash_mlp(tokens, ids, tables, experts), RouterOutput(routings[0], {}, metrics)
