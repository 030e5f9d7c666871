"""Modules: `MoE`, which takes the place of the MLP of a transformer block, and `Model`, which holds a whole model.

    block.mlp = MoE(384, 1536, experts=16, tokens=196, router="soft_moe")
    ...
    loss = criterion(model(images), targets) + auxiliary_loss(model)

Parameters start from the same NumPy draws as everywhere else, on the CPU. Gating noise comes from torch's generator,
and only in training. What the last forward pass found out besides its output stays on the module: `losses` (the
weighted auxiliary losses by name, with gradient) and `metrics` (for logs). Copies and pickles leave them out. For a
checkpoint inside a compiled function, torch wants to be told that this is fine:
`torch._dynamo.config.skip_fwd_side_effects_in_bwd_under_checkpoint = True`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import moespec.backends.torch as B
from moespec.backends.optimizer import CONSTANTS
from moespec.backends.torch.grouped import moe_mlp
from moespec.spec.checks import check_at_least, check_option, check_scores, check_size
from moespec.spec.errors import ConfigError, ShapeError
from moespec.spec.routing import Noise

__all__ = ["MoE", "Model", "ParameterTree", "auxiliary_loss"]


class ParameterTree(nn.Module):
    """A nested dict of arrays as parameters, constants as buffers.

    `{"blocks": {"1": {"w": ...}}}` has the state-dict name `blocks.1.w`.
    """

    def __init__(self, arrays: dict[str, Any]) -> None:
        super().__init__()
        self._names = tuple(arrays)
        for name, value in arrays.items():
            if isinstance(value, dict):
                self.add_module(name, ParameterTree(value))
            elif name in CONSTANTS:
                self.register_buffer(name, torch.from_numpy(_constant(name, value)))
            else:
                self.register_parameter(name, nn.Parameter(torch.from_numpy(np.array(value))))

    def params(self) -> dict[str, Any]:
        """The nested dict, with the parameters themselves as leaves."""
        children = {name: getattr(self, name) for name in self._names}
        return {name: child.params() if isinstance(child, ParameterTree) else child for name, child in children.items()}


def _constant(name: str, value: Any) -> NDArray[Any]:
    """Tables hold experts: as integers, which `.to(torch.bfloat16)` leaves as they are."""
    return np.array(value, np.int32 if name == "tables" else None)


class _Reporting(nn.Module):
    """A module with `losses` and `metrics` of its last forward pass, which hold a graph and so are never copied."""

    losses: dict[str, Tensor]
    metrics: Any

    def _forget(self) -> None:
        self.losses, self.metrics = {}, None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "losses": {}, "metrics": None}


class MoE(_Reporting):
    """A mixture-of-experts layer in place of an MLP: (images, tokens, width) to the same shape and dtype.

    width, hidden: of each expert, a perceptron `gelu(x w1 + b1) w2 + b2`.
    experts: their number.
    tokens: tokens of one image, for which the capacity is computed. An input with another number is routed with the
        capacity of that number; the slots of Soft MoE, which are parameters, stay as many as they are.
    router: a key of `ROUTERS`.
    group_images: images that are routed together, as one group; the batch must be a multiple.
    gelu: "tanh" or "erf".
    expert_init: "independent" initial values, or "shared" by all experts.
    seed: of the initial values (Glorot uniform kernels, biases normal(1e-6), the router's own).
    router_options: options of that router (`ROUTERS[router].Options` has them): choices, importance_weight, ... Of a
        router that needs token ids, `ids` is their number, `tokens` if not given: the places in the image.

    Router logits, weights and losses are computed in float32 or better, also under autocast or in bfloat16.

    Raises ConfigError for an argument out of range or an option that the router does not have, ShapeError for an input
    of another width or a batch that does not split into groups.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        experts: int,
        *,
        tokens: int,
        router: str = "soft_moe",
        group_images: int = 1,
        gelu: str = "tanh",
        expert_init: str = "independent",
        seed: int = 0,
        **router_options: Any,
    ) -> None:
        super().__init__()
        sizes = {"width": width, "hidden": hidden, "experts": experts, "tokens": tokens, "group_images": group_images}
        for name, value in sizes.items():
            check_at_least(name, value, 1)
        check_at_least("seed", seed, 0)
        check_option("router", router, B.ROUTERS)
        check_option("gelu", gelu, ("tanh", "erf"))
        check_option("expert_init", expert_init, ("independent", "shared"))
        if B.ROUTERS[router].needs == "ids":
            router_options.setdefault("ids", tokens)
        self.router_name, self.group_images, self.gelu = router, group_images, gelu
        sizes = {"width": width, "experts": experts, "tokens": group_images * tokens}
        self.options = B.ROUTERS[router].options(**sizes, **router_options)
        if getattr(self.options, "hashes", 1) != 1:
            raise ConfigError(f"hashes: a layer of whole experts has one, expected 1, got {self.options.hashes}")
        generator = np.random.default_rng(seed)
        self.router = ParameterTree(B.ROUTERS[router].init(generator, self.options))
        self.experts = ParameterTree(_expert_arrays(generator, width, hidden, experts, expert_init == "shared"))
        self._forget()

    def forward(self, x: Tensor, ids: Tensor | None = None) -> Tensor:
        """x: (images, tokens, width); ids: (images, tokens), for a router that needs token ids, the places if None."""
        check_scores("x", x, "images tokens width")
        check_size("x", x, 2, self.options.width, "the width of the layer")
        if x.shape[0] % self.group_images:
            raise ShapeError(f"x: {x.shape[0]} images do not split into groups of group_images={self.group_images}")
        tokens = x.reshape(x.shape[0] // self.group_images, -1, x.shape[2])
        router, options = B.ROUTERS[self.router_name], self.options
        if tokens.shape[1] != options.tokens:
            options = options.of_tokens(tokens.shape[1])
        wanted = router.noise(options) if self.training else None
        noise = None if wanted is None else _draw(replace(wanted, shape=(len(tokens), *wanted.shape)), x.device)
        needed = {}
        if router.needs == "ids":
            needed["ids"] = (self._places(x) if ids is None else ids).reshape(tokens.shape[:2])
        output = router.route(self.router.params(), tokens, options, noise=noise, train=self.training, **needed)
        y = moe_mlp(tokens, output.routing, self.experts.params(), gelu=self.gelu)
        self.losses, self.metrics = output.losses, output.metrics
        return y.reshape(x.shape)

    def _places(self, x: Tensor) -> Tensor:
        """The place of each token in its image, (images, tokens)."""
        if x.shape[1] > self.options.ids:
            raise ShapeError(f"x: {x.shape[1]} tokens have more places than the {self.options.ids} ids of the tables")
        return torch.arange(x.shape[1], dtype=torch.int32, device=x.device).expand(x.shape[:2])

    def extra_repr(self) -> str:
        options = "".join(f"{field.name}={getattr(self.options, field.name)!r}, " for field in fields(self.options))
        return f"router={self.router_name!r}, {options}group_images={self.group_images}"


def _draw(noise: Noise, device: torch.device) -> Tensor:
    if noise.interval is None:
        return torch.randn(noise.shape, device=device)
    low, high = noise.interval
    return low + (high - low) * torch.rand(noise.shape, device=device)


def _integers(inputs: Tensor) -> Tensor:
    """What dropout is drawn from, `(images, 4)`: three words of torch's generator, and the number of the image."""
    images = torch.arange(inputs.shape[0], dtype=torch.int32, device=inputs.device)
    words = torch.randint(-(2**31), 2**31, (3,), device=inputs.device).to(torch.int32)
    return torch.cat([words.expand(len(images), 3), images[:, None]], dim=1)


def _expert_arrays(
    generator: np.random.Generator, width: int, hidden: int, experts: int, shared: bool
) -> dict[str, NDArray[np.float32]]:
    def draw(shape: tuple[int, ...], uniform: bool) -> NDArray[np.float32]:
        shape = shape if shared else (experts, *shape)
        values = generator.uniform(-limit, limit, shape) if uniform else generator.normal(0, 1e-6, shape)
        return np.broadcast_to(values, (experts, *shape) if shared else shape).astype(np.float32)

    limit = math.sqrt(6 / (width + hidden))
    return {
        "w1": draw((width, hidden), True),
        "b1": draw((hidden,), False),
        "w2": draw((hidden, width), True),
        "b2": draw((width,), False),
    }


class Model(ParameterTree, _Reporting):
    """A model written against a backend, as a module; it returns the logits (the features, without a head).

        Model(vit.forward, config, vit.init(config, seed), noise=vit.moe_noise)

    forward: `forward(B, config, params, inputs, *, noise, train)` returns an object with `logits`, `features`, `losses`
        and `metrics`.
    config: given to it. In training of one with a rate of `dropout` or `stochastic_depth` above 0, `forward` gets `random`
        too, `(images, 4)` integers of torch's generator.
    params: nested dict of NumPy arrays. They become parameters: `blocks.1.moe.experts.w1` in the state dict, and
        `params()` gives the nested dict back.
    noise: `noise(config, batch size)`, the `Noise` that each MoE block takes in training, in order; None for no noise.
    """

    def __init__(
        self,
        forward: Callable[..., Any],
        config: Any,
        params: dict[str, Any],
        *,
        noise: Callable[[Any, int], Sequence[Noise]] | None = None,
    ) -> None:
        super().__init__(params)
        self.config = config
        self._forward, self._noise = forward, noise
        self._forget()

    def forward(self, inputs: Tensor) -> Tensor:
        noise = None
        if self.training and self._noise is not None:
            noise = [_draw(wanted, inputs.device) for wanted in self._noise(self.config, inputs.shape[0])] or None
        drops = any(getattr(self.config, name, 0) for name in ("dropout", "stochastic_depth"))
        random = {"random": _integers(inputs)} if self.training and drops else {}
        output: Any = self._forward(B, self.config, self.params(), inputs, noise=noise, **random, train=self.training)
        self.losses, self.metrics = output.losses, output.metrics
        result: Tensor = output.features if output.logits is None else output.logits
        return result


def auxiliary_loss(module: nn.Module) -> Tensor:
    """The sum of the auxiliary losses of all `MoE` and `Model` modules in `module`, of their last forward pass.

    They are weighted already. A scalar, 0 when there are none.
    """
    values = [value for child in module.modules() if isinstance(child, _Reporting) for value in child.losses.values()]
    return torch.stack(values).sum() if values else torch.zeros(())
