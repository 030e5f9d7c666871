"""The layer that replaces an MLP."""

from collections.abc import Sequence
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any, Self

import torch
from torch import Tensor, nn

import moespec.backends.torch as B
from moespec.backends.layer import GATED, PARTS, Layer, check_tokens, documented, drawn, layer_of
from moespec.backends.optimizer import STATE
from moespec.backends.routers import composed
from moespec.backends.torch.nn.draws import draw
from moespec.backends.torch.nn.experts import Experts, Perceptrons
from moespec.backends.torch.nn.hub import OnHub
from moespec.backends.torch.nn.padding import without_padding
from moespec.backends.torch.nn.perceptron import perceptron
from moespec.backends.torch.nn.reporting import TORCHSCRIPT, Reporting
from moespec.backends.torch.nn.state import RouterState
from moespec.backends.torch.nn.tree import ParameterTree, assign
from moespec.backends.torch.private import is_observed
from moespec.spec.checks import check_non_negative
from moespec.spec.errors import ConfigError
from moespec.spec.routers import Router, RouterName, Routers
from moespec.spec.routing import RouterOutput

_Device = torch.device | str | None
KEEPING: RouterName = "sigmoid_token_choice"
"""With this router and its default options, a layer whose experts all copy one MLP computes the same function as the MLP."""
WITHOUT_METRICS = composed(SimpleNamespace(**{**vars(B), "routing_metrics": lambda routing: {}}))
"""The routers without the metrics of routings, which cost a fifth of a small layer's time."""
OF_MLP = {"gelu", "expert_init", "expert_activation", "expert_bias", "shared_experts", "shared_gate", "device", "dtype"}
OF_MLP |= {"latent_width", "latent_norm", "constant_experts"}
"""Arguments of `MoE` that `from_mlp` sets itself and does not accept."""


@documented
class MoE(Reporting, OnHub):
    """A mixture-of-experts layer that replaces an MLP: (images, ..., width) to the same shape and dtype.

    All axes except the first and the last are token axes: (images, tokens, width) as in a ViT, or
    (images, height, width of the image, channels) as in Swin and ConvNeXt.

    device, dtype: the device and dtype of parameters, as in other torch modules. On the meta device, no initial values are drawn.

    Parameters: `router.kernel` and others, `experts.fc1.weight` (experts, width, hidden), `experts.fc1.bias` (experts, hidden),
    `experts.fc2.weight`, `experts.fc2.bias`. Gated experts add `experts.fc3`, with the shapes of `fc1`; shared experts
    add `shared.fc1.weight` (width, shared_experts * hidden) and others, and their gate `shared.gate` (width,). Latent experts add
    `latent.down` (width, latent), `latent.up` and `latent.norm`, constant experts `constants.value` (n, width) and `constants.mix`
    (n, width, 2). Router logits, weights and losses are computed in float32 or better, even under autocast or in bfloat16. Gating
    noise is drawn from torch's generator, only in training.

    A forward pass raises ShapeError for an input of a different width or a batch that cannot be split into groups.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        experts: int,
        *,
        tokens: int,
        router: RouterName | Router[Any] = "soft_moe",
        group_images: int = 1,
        gelu: str = "tanh",
        expert_init: str = "independent",
        seed: int = 0,
        expert_activation: str = "gelu",
        expert_bias: bool = True,
        shared_experts: int = 0,
        shared_gate: bool = False,
        latent_width: int = 0,
        latent_norm: bool = False,
        constant_experts: int = 0,
        copy_experts: int = 0,
        zero_experts: int = 0,
        weights_on: str = "output",
        device: _Device = None,
        dtype: torch.dtype | None = None,
        **router_options: Any,
    ) -> None:
        super().__init__()
        start: Any = {"group_images": group_images, "gelu": gelu, "expert_init": expert_init, "seed": seed}
        start |= {"expert_activation": expert_activation, "expert_bias": expert_bias, "shared_experts": shared_experts}
        start |= {"shared_gate": shared_gate, "latent_width": latent_width, "latent_norm": latent_norm}
        start |= {"constant_experts": constant_experts, "copy_experts": copy_experts, "zero_experts": zero_experts}
        start["weights_on"] = weights_on
        layer = layer_of(width, hidden, experts, tokens=tokens, router=router, **start, router_options=router_options)
        # `_layer` looks up the layer by its `repr`, because torch.compile treats strings as constants. If the layer were an attribute,
        # torch.compile would replace numbers that differ between layers with symbols, but a capacity needs concrete values.
        self._text = repr(layer)
        self._layers = {self._text: layer}
        dtype = torch.get_default_dtype() if dtype is None else dtype
        try:
            torch.empty(0, device=device, dtype=dtype, requires_grad=True)
        except (AssertionError, RuntimeError, TypeError) as error:
            raise ConfigError(f"device={device!r}, dtype={dtype!r}: {str(error).splitlines()[0]}") from error
        router_arrays = {name: values for _, name, values in drawn(layer, ["router"])}
        self.router = ParameterTree(router_arrays, device=device, dtype=dtype)
        if STATE in router_arrays:
            self._state.rule = layer.router, layer.options
        of_experts: Any = {"gated": layer.gated, "bias": expert_bias, "device": device, "dtype": dtype}
        width, shared = layer.options.width, layer.shared_experts * layer.hidden
        self.experts = Experts(latent_width or width, layer.hidden, layer.mlps, form=layer.form, **of_experts)
        self.shared = Perceptrons(width, shared, **of_experts) if shared else None
        if self.shared is not None and shared_gate:
            self.shared.gate = nn.Parameter(torch.empty(width, device=device, dtype=dtype))
        self.latent, self.constants = (_tree(layer, part, device, dtype) for part in PARTS[3:])
        self.forget()
        if not self.experts.fc1.weight.is_meta:
            self.reset_parameters()

    @classmethod
    def from_mlp(
        cls,
        mlp: nn.Module,
        experts: int,
        *,
        tokens: int,
        router: RouterName | Router[Any] = KEEPING,
        seed: int = 0,
        noise: float = 0.0,
        **options: Any,
    ) -> Self:
        """Creates a layer whose experts all start as copies of a trained MLP, with the device and dtype of the MLP.

        mlp: a module of any class that computes `fc2(gelu(fc1(x)))` or `fc2(f(fc1(x)) * fc3(x))`, where f is GELU or
            SiLU, with two or three `torch.nn.Linear`. A gated MLP with two layers packs fc1 and fc3 in either order,
            like timm's GluMlp and SwiGLUPacked. A trial on random numbers verifies the formula and identifies f.
            Dropout is not copied. If a gated MLP has no biases, the experts have none.
        noise: standard deviation of the noise added to each expert's weights, relative to the weights' standard
            deviation: `w + noise std(w) n`, with normal n drawn from `seed`.
        options: `group_images` and the options of the router.

        At evaluation without noise, the layer returns the same output as the MLP if the combine weights of each token sum to 1 and no token
        is dropped. These conditions hold for sigmoid_token_choice, gshard and softmax_expert_choice with `capacity_factor` equal to the
        number of experts (or inf), and for softmax_token_choice with `normalize_selected=True`, `choices=2` or more and the same capacity.
        Other routers scale the output by the gate, and Soft MoE mixes tokens. `replace_mlps` reports the difference.

        Raises ConfigError for a module that computes something else. Source: Sparse Upcycling (arXiv 2212.05055).
        """
        copied = perceptron("mlp", mlp)
        if fixed := sorted(OF_MLP & options.keys()):
            raise ConfigError(f"{fixed[0]}={options[fixed[0]]!r}: the MLP determines this option; remove it")
        noise, weight = check_non_negative("noise", noise), copied.weights["w1"]
        width, hidden = weight.shape
        biases = copied.expert_activation not in GATED or any(name.startswith("b") for name in copied.weights)
        start: dict[str, Any] = {
            "gelu": copied.gelu,
            "expert_activation": copied.expert_activation,
            "expert_bias": biases,
        }
        start |= {"seed": seed, "dtype": weight.dtype}
        with torch.device("meta"):  # avoids drawing values that would be overwritten
            layer = cls(width, hidden, experts, tokens=tokens, router=router, **start, **options)
        if weight.is_meta:
            return layer
        layer.to_empty(device=weight.device)
        layer._assign(["router"])
        generator = torch.Generator("cpu").manual_seed(seed)
        with torch.no_grad():
            for name, target in layer.experts.params().items():
                target.copy_(copied.weights.get(name, torch.zeros(())))
                if noise and name.startswith("w"):
                    drawn_noise = torch.randn(target.shape, generator=generator).to(target)
                    target.add_(drawn_noise * (noise * copied.weights[name].std()))
        return layer.train(mlp.training)

    def reset_parameters(self) -> None:
        """Sets all parameters and tables to their initial values. After creation on the meta device, call `to_empty` first."""
        self._assign(PARTS)

    def _assign(self, parts: Sequence[str]) -> None:
        of: Any = {"experts": self.experts, "shared": self.shared, "latent": self.latent, "constants": self.constants}
        for part, name, values in drawn(self._layer, parts):
            if name == STATE:
                for each, array in values.items():
                    assign(getattr(self._state, each), array)
            else:
                assign(getattr(self.router, name) if part == "router" else of[part].params()[name], values)

    @property
    def _state(self) -> RouterState:
        state: RouterState = self.router.get_submodule(STATE)  # type: ignore[assignment]
        return state

    @property
    def _layer(self) -> Layer:
        return self._layers[self._text]

    @property
    def _arguments(self) -> dict[str, Any]:
        layer = self._layer
        values = {each.name: getattr(of, each.name) for of in (layer, layer.options) for each in fields(of)}
        del values["options"]
        return {**values, "tokens": layer.options.tokens // layer.group_images}

    @property
    def options(self) -> Any:
        """The router's options, `ROUTERS[router].Options`, for groups of `group_images` images."""
        return self._layer.options

    @property
    def group_images(self) -> int:
        """The number of images routed together."""
        return self._layer.group_images

    def forward(
        self, x: Tensor, ids: Tensor | None = None, mask: Tensor | None = None, choices: Tensor | None = None
    ) -> Tensor:
        """x: (images, ..., width); ids: (images, ...), for a router that needs token ids; default: the token positions.

        choices: (images, ..., choices) integers, recorded choices that replace the choices of the router (see `replay_choices`).
        mask: (images, ...) booleans, false for padding. Groups are routed without padding. The remaining tokens
            determine the capacity, and the output for padding is 0. Groups with equal token counts are computed
            together. The token counts are read on the host, which breaks the graph of torch.compile.
        """
        if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
            raise ConfigError(TORCHSCRIPT)
        layer = self._layer
        groups, options = layer.options_of(x, train=self.training and mask is None)
        tokens = x.reshape(groups, options.tokens, x.shape[-1])
        if mask is not None:
            check_tokens("mask", mask, x, kind=Tensor)
        needed: dict[str, Tensor] = {}
        if B.ROUTERS[layer.router].requires == "ids":
            if ids is None:
                ids = self._places(x, mask, options.tokens // layer.group_images)
            else:
                check_tokens("ids", ids, x, kind=Tensor)
            needed["ids"] = ids.reshape(groups, options.tokens)
        if choices is not None:
            check_tokens("choices", choices, x, "choices", kind=Tensor)
            needed["choices"] = choices.reshape(groups, options.tokens, choices.shape[-1])
        metrics: Any = None
        if mask is None and not torch.compiler.is_compiling() and not is_observed(tokens):
            y, output = self._routed(tokens, needed, options, WITHOUT_METRICS)
            routing = type(output.routing)(*(_detached(each) for each in output.routing))
            metrics = lambda: {**B.routing_metrics(routing), **output.metrics}  # noqa: E731
        elif mask is None:
            y, output = self._routed(tokens, needed, options)
        elif self.experts.group is not None:
            raise ConfigError("mask: expected None, since expert parallelism needs equal token counts in all processes")
        else:
            y, output = without_padding(self._of_any_size, tokens, needed, mask.reshape(groups, options.tokens))
        return self.report(y.reshape(x.shape), output.losses, metrics or output.metrics)

    def _places(self, x: Tensor, mask: Tensor | None, tokens: int) -> Tensor:
        """Returns the default ids: the positions of tokens in the image, not counting padding."""
        if mask is None:
            self._layer.check_places(tokens)
            return torch.arange(tokens, dtype=torch.int32, device=x.device).expand(x.shape[0], tokens)
        there = mask.reshape(-1, tokens).cumsum(dim=1)
        self._layer.check_places(int(there.max()))
        return (there - 1).clamp_min(0).int()

    def _of_any_size(self, tokens: Tensor, needed: dict[str, Tensor]) -> tuple[Tensor, RouterOutput]:
        """Calls `_routed` with the options for this number of tokens."""
        options = self.options.of_tokens(tokens.shape[1])
        if self.training:
            options.check_training()
        return self._routed(tokens, needed, options)

    def _routed(
        self, tokens: Tensor, needed: dict[str, Tensor], options: Any, routers: Routers = B.ROUTERS
    ) -> tuple[Tensor, RouterOutput]:
        """Returns the output for tokens (groups, tokens, width) and other arrays per token, and the router's output."""
        router = routers[self._layer.router]
        draws = router.noise(options) if self.training else None
        noise = None if draws is None else draw(replace(draws, shape=(len(tokens), *draws.shape)), tokens.device)
        params = self.router.params()
        state = params.get(STATE)
        output = router.route(params, tokens, options, state=state, noise=noise, train=self.training, **needed)
        if self.training and output.statistics:
            self._state.add(output.statistics)
        parts = {"shared": self.shared, "latent": self.latent, "constants": self.constants}
        around = {name: None if part is None else part.params() for name, part in parts.items()}
        y: Tensor = self.experts(tokens, output.routing, **around)
        return y, output

    def extra_repr(self) -> str:
        options = "".join(f"{field.name}={getattr(self.options, field.name)!r}, " for field in fields(self.options))
        return f"router={self._layer.router!r}, {options}group_images={self.group_images}"


def _tree(layer: Layer, part: str, device: _Device, dtype: torch.dtype) -> ParameterTree | None:
    """A module with the initial arrays of a part of the layer, or None if the layer does not have this part."""
    arrays = {name: values for _, name, values in drawn(layer, [part])}
    return ParameterTree(arrays, device=device, dtype=dtype) if arrays else None


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value
