"""torchtitan: the router and the bias update on one device. The router drops no token, so the adapter rejects cases with drops."""

from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call
from torchtitan.components.optimizer.optimizer import register_moe_load_balancing_hook
from torchtitan.models.common.linear import Linear
from torchtitan.models.common.moe import TokenChoiceTopKRouter

from moespec.conformance.peers.adapters.on_torch import SIGMOID, dense, only, shared, top_k_router

__getattr__ = shared


def _choose(tokens: Tensor, kernel: Tensor, options: Any, bias: Tensor | None = None) -> Tensor:
    """`TokenChoiceTopKRouter`."""
    experts, width = kernel.shape
    more: dict[str, Any] = {"score_func": "softmax"}
    if bias is not None:
        only(options, **SIGMOID)
        more = {"score_func": "sigmoid", "route_scale": options.scale}
        if options.expert_groups > 1:
            more |= {"num_expert_groups": options.expert_groups, "num_limited_groups": options.chosen_groups}
    settings = TokenChoiceTopKRouter.Config(
        num_experts=experts, gate=Linear.Config(in_features=width, out_features=experts), top_k=options.choices,
        route_norm=options.normalize_selected, **more,
    )  # fmt: skip
    peer = TokenChoiceTopKRouter(settings)
    gates, chosen, _ = functional_call(peer, {"gate.weight": kernel}, (tokens[None], bias))
    return dense(experts, chosen[0], gates[0])


def balance_bias(bias: Tensor, load: Tensor, *, rate: float) -> Tensor:
    """`register_moe_load_balancing_hook`, whose hook updates the bias of a layer."""
    if rate == 0:
        raise NotImplementedError("the rate is above 0")
    moe, model, hooks = nn.Module(), nn.Module(), list[Any]()
    moe.load_balance_coeff, moe.tokens_per_expert_E, moe.expert_bias_E = rate, load.clone(), bias.clone()  # type: ignore[assignment]
    block = nn.Module()
    block.moe_enabled, block.moe = True, moe  # type: ignore[assignment]
    model.layers = nn.ModuleDict({"0": block})
    optimizers: Any = SimpleNamespace(register_step_pre_hook=hooks.append)
    devices: Any = SimpleNamespace(get_optional_mesh=lambda _: None, ep_enabled=False)
    register_moe_load_balancing_hook(optimizers, [model], devices)
    hooks[0]()
    return moe.expert_bias_E


ROUTERS = {name: top_k_router(_choose, double=True) for name in ("sigmoid_token_choice", "softmax_token_choice")}
