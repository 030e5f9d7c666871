"""Replaces the MLPs of a complete model, such as a model from timm or Hugging Face, with experts."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from moespec.backends.torch.nn.layer import KEEPING, MoE
from moespec.backends.torch.nn.perceptron import linears
from moespec.spec.errors import ConfigError
from moespec.spec.routers import Router, RouterName, router_name
from moespec.version import version

__all__ = ["replace_mlps"]

CONFIG = "moespec"
"""The entry of a transformers configuration that records the replacements."""


def replace_mlps(
    model: nn.Module,
    experts: int,
    *,
    tokens: int,
    blocks: Sequence[int] | None = None,
    router: RouterName | Router[Any] = KEEPING,
    **options: Any,
) -> dict[str, float]:
    """Replaces MLPs of a model in place with layers from `MoE.from_mlp`. Returns how much each layer differs from the replaced MLP.

    The difference is the largest absolute difference between outputs, divided by the largest absolute output, at
    evaluation on random tokens: about 1e-7 if the layer computes the same function, and NaN on the meta device.

    model: a model with blocks that have `mlp` (timm, transformers 5), or `intermediate` and `output` (transformers 4).
    tokens: number of tokens per image in these blocks, including the class token, if any.
    blocks: block numbers in the order of the model, where -1 is the last block; default: the second half of the blocks, as in the papers.
    router: the default preserves the function of the MLPs. Call `update_states` after each step to update the default router's bias.
    options: passed to `MoE.from_mlp`: `noise`, `group_images`, the options of the router, ...

    In a transformers model, the configuration entry `moespec` records the replacement for moespec's `from_pretrained`.

    Raises ConfigError for a model without such blocks, a block number out of range, or an MLP that computes something else.
    """
    options["router"] = router_name(router)
    places = list(_places(model))
    if not places:
        raise ConfigError(
            f"model: {type(model).__name__} has no block whose `mlp`, or `intermediate` and `output`, is an MLP of linear layers"
        )
    count = len(places)
    chosen = list(range(count // 2, count) if blocks is None else blocks)
    if isinstance(blocks, str) or any(type(number) is not int for number in chosen):
        raise ConfigError(f"blocks={blocks!r}: expected block numbers, such as [-2, -1]")
    if wrong := [number for number in chosen if not -count <= number < count]:
        raise ConfigError(f"blocks={chosen}: there is no block {wrong[0]}; the model has {count} blocks")
    # Create all layers before inserting any, so that an error leaves the model unchanged.
    replaced = [places[number] for number in sorted({n % count for n in chosen})]
    copies = [_copied(place, experts, tokens, options) for place in replaced]
    for place, (layer, _) in zip(replaced, copies, strict=True):
        place.put(layer)
    config: Any = getattr(model, "config", None)
    if hasattr(config, "to_json_string"):
        before = getattr(config, CONFIG, {}).get("replaced", [])
        call = {"experts": experts, "tokens": tokens, "blocks": [int(number) for number in chosen], **options}
        setattr(config, CONFIG, {"version": version(), "replaced": [*before, call]})
    return {place.name: difference for place, (_, difference) in zip(replaced, copies, strict=True)}


class Place(NamedTuple):
    """An MLP in a model: the name, a module that computes the MLP, and a function that inserts a layer in place of the MLP."""

    name: str
    mlp: nn.Module
    put: Callable[[MoE], None]


class _WithoutResidual(nn.Module):
    def __init__(self, intermediate: nn.Module, output: nn.Module) -> None:
        super().__init__()
        self.intermediate, self.output = intermediate, output
        self.training = intermediate.training

    def forward(self, x: Tensor) -> Any:
        return self.output(self.intermediate(x), torch.zeros_like(x))


class _Residual(nn.Module):
    """Replaces the `output` module of a block. Keeps only the last operation of `output`, which adds the residual."""

    def forward(self, hidden: Tensor, residual: Tensor) -> Tensor:
        return hidden + residual


def _places(model: nn.Module) -> Iterator[Place]:
    """Yields the MLP of each block that has `mlp`, or has `intermediate` and an `output` that adds the residual."""
    for name, block in model.named_modules():
        children, prefix = dict(block.named_children()), f"{name}." if name else ""
        if "mlp" in children and len(linears(children["mlp"])) in (2, 3):
            yield Place(f"{prefix}mlp", children["mlp"], partial(setattr, block, "mlp"))
        elif {"intermediate", "output"} <= children.keys() and linears(children["intermediate"]):
            pair = _WithoutResidual(children["intermediate"], children["output"])
            yield Place(f"{prefix}intermediate", pair, partial(_put_for_a_pair, block))


def _put_for_a_pair(block: Any, layer: MoE) -> None:
    block.intermediate, block.output = layer, _Residual()


def _copied(place: Place, experts: int, tokens: int, options: dict[str, Any]) -> tuple[MoE, float]:
    mlp = place.mlp
    layer = MoE.from_mlp(mlp, experts, tokens=tokens, **options)
    weight = layer.experts.fc1.weight
    if weight.is_meta:
        return layer, float("nan")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(layer.group_images, tokens, weight.shape[1], generator=generator).to(weight.device, weight.dtype)
    training = mlp.training
    with torch.no_grad():
        before, after = mlp.eval()(x).float(), layer.eval()(x).float()
    mlp.train(training)
    layer.train(training).forget()
    return layer, ((after - before).abs().max() / before.abs().max()).item()
