"""soft-moe (of bwconrad): `SoftMoELayerWrapper`.

The adapter loads only the module of the layer, because the package itself imports timm for vision transformers.
"""

import importlib.util
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from moespec.conformance.peers.adapters.on_torch import (
    PAPER,
    Recorded,
    Routed,
    SuiteExpert,
    only,
    shared,
    soft_moe_router,
)
from moespec.spec.values import present

__getattr__ = shared


def _module_of_layer() -> ModuleType:
    package = importlib.util.find_spec("soft_moe")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'soft_moe'", name="soft_moe")
    spec = importlib.util.spec_from_file_location(
        "soft_moe_layer", f"{package.submodule_search_locations[0]}/soft_moe.py"
    )
    spec = present("soft_moe", spec)
    module = importlib.util.module_from_spec(spec)
    present("loader", spec.loader).exec_module(module)
    return module


SoftMoELayerWrapper = _module_of_layer().SoftMoELayerWrapper


def soft_routing(tokens: Tensor, slots: Tensor, *, scale: Any = 1.0, normalize: bool = True, **forms: str) -> Routed:
    """The weights inside `SoftMoELayerWrapper.forward`."""
    only({**PAPER, **forms}, **PAPER)
    width, experts, capacity = slots.shape
    params = {"phi": slots}
    if normalize:
        params["scale"] = torch.as_tensor(scale, dtype=slots.dtype).reshape(1)

    def layer(tokens: Tensor, experts_of_suite: Any) -> Tensor:
        members = iter(SuiteExpert(experts_of_suite, e, experts) for e in range(experts))
        peer = SoftMoELayerWrapper(width, experts, capacity, lambda: next(members), normalize=normalize)
        result: Tensor = functional_call(peer, params, (tokens,))
        return result

    with Recorded() as recorded:
        layer(tokens, lambda inputs: inputs)
    _, dispatch, combine = recorded.weights
    return Routed(dispatch, combine, layer)


def moe_layer(tokens: Tensor, routing: Routed, experts: Any) -> Tensor:
    """`SoftMoELayerWrapper.forward` with the experts of the suite."""
    return routing.whole(tokens, experts)


ROUTERS = {"soft_moe": soft_moe_router(soft_routing, "`SoftMoELayerWrapper.forward` and the weights inside it.")}
