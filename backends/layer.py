"""The code of the MoE layer that all frameworks share: arguments and initial arrays."""

import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import numpy as np

from moespec.backends.optimizer import STATE, initial_params
from moespec.spec.algorithms.gated_experts import AXES
from moespec.spec.algorithms.input_gates import PLACES
from moespec.spec.checks import check_at_least, check_option, check_scores, check_size
from moespec.spec.errors import ConfigError, DtypeError, ShapeError
from moespec.spec.options import RouterOptions
from moespec.spec.routers import ROUTERS, Router, RouterName, router_name
from moespec.spec.routing import Params

__all__ = ["Layer", "check_tokens", "documented", "drawn", "initial", "layer_of", "regrouped", "warn_untrained"]

Array = Any
GATED = {
    **{"geglu": "gelu", "swiglu": "silu", "clamped_swiglu": "clamped_silu"},
    **{"swiglu_oai": "clamped_quick_gelu", "situglu": "situ"},
}
"""The `activation` of `moe_mlp` for each `expert_activation` of gated experts."""
BETWEEN = {**{name: name for name in ("gelu", "quick_gelu", "relu2")}, **GATED}
"""The `activation` of `moe_mlp` for each `expert_activation`."""
Class = TypeVar("Class", bound=type)


@dataclass(frozen=True)
class Layer:
    """The static configuration of a layer: the router, the router's options, the grouping of images, and the form of the experts.

    `options.tokens` is the number of tokens in a group of `group_images` images. The fields after `expert_activation` determine only the
    initial arrays, so a compiled layer does not depend on these fields.
    """

    router: str
    options: RouterOptions
    group_images: int
    gelu: str
    expert_activation: str
    hidden: int = field(repr=False, compare=False)
    expert_init: str = field(repr=False, compare=False)
    seed: int = field(repr=False, compare=False)
    expert_bias: bool = field(repr=False, compare=False)
    shared_experts: int = field(repr=False, compare=False)
    shared_gate: bool = field(repr=False, compare=False)
    latent_width: int = field(repr=False, compare=False)
    latent_norm: bool = field(repr=False, compare=False)
    constant_experts: int = field(repr=False, compare=False)
    copy_experts: int
    zero_experts: int
    weights_on: str

    @property
    def mlps(self) -> int:
        """The number of experts that are MLPs."""
        return self.options.experts - self.constant_experts - self.copy_experts - self.zero_experts

    @property
    def gated(self) -> bool:
        """True if the experts are gated and have the parameter `w3`."""
        return self.expert_activation in GATED

    @property
    def form(self) -> dict[str, Any]:
        """The arguments of `moe_mlp` that are not arrays."""
        form = {"gelu": self.gelu, "activation": BETWEEN[self.expert_activation], "weights_on": self.weights_on}
        return {**form, "copies": self.copy_experts, "zeros": self.zero_experts}

    def shapes(self, hidden: int, width: int) -> dict[str, tuple[int, ...]]:
        """The shapes of the parameters of one MLP with these widths, by the parameter names of the specification."""
        sizes = {"width": width, "hidden": hidden, "output": width}
        return {
            name: tuple(sizes[axis] for axis in axes.split()[1:])
            for name, axes in AXES.items()
            if (self.gated or name not in ("w3", "b3")) and (self.expert_bias or name.startswith("w"))
        }

    def options_of(self, x: Array, *, train: bool) -> tuple[int, RouterOptions]:
        """Returns the number of groups in x (images, ..., width), and the router's options for the number of tokens in a group.

        Raises ShapeError if the width of x is not the width of the layer or if the images do not split into groups, and ConfigError if
        the router cannot train on groups of this size.
        """
        check_scores("x", x, "images tokens width" if getattr(x, "ndim", 0) < 4 else "... width")
        check_size("x", x, x.ndim - 1, self.options.width, "the width of the layer")
        images, tokens = x.shape[0], math.prod(x.shape[1:-1])
        if images % self.group_images:
            raise ShapeError(f"x: {images} images cannot be split into groups of group_images={self.group_images}")
        options = self.options
        if tokens * self.group_images != options.tokens:
            options = options.of_tokens(tokens * self.group_images)
        if train:
            self._check_training(options, tokens)
        return images // self.group_images, options

    def _check_training(self, options: RouterOptions, tokens: int) -> None:
        try:
            options.check_training()
        except ConfigError as error:
            for images in range(1, 1 + options.experts * getattr(options, "shards", 1)):
                try:
                    options.of_tokens(images * tokens).check_training()
                except ConfigError:
                    continue
                raise ConfigError(f"{error}; set group_images={images}, for example") from None
            raise

    def check_places(self, tokens: int) -> None:
        """Raises ShapeError if an image has more token positions, which are the default ids, than the hash tables have ids."""
        ids: int = self.options.ids  # type: ignore[attr-defined]
        if tokens > ids:
            raise ShapeError(f"x: has {tokens} tokens, but the hash tables have only {ids} ids")


def layer_of(
    width: int,
    hidden: int,
    experts: int,
    *,
    tokens: int,
    router: RouterName | Router[Any],
    group_images: int,
    gelu: str,
    expert_init: str,
    seed: int,
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
    router_options: Mapping[str, Any],
) -> Layer:
    """The layers of all frameworks take the same arguments:

    width, hidden: widths of the input and of the hidden layer of each expert, a perceptron `gelu(x w1 + b1) w2 + b2`.
    experts: number of experts.
    tokens: number of tokens in one image, the product of all axes between the first and the last. This number determines the capacity.
        Inputs with a different number of tokens get a different capacity, except in Soft MoE, where the slots are parameters.
    router: a key of `ROUTERS`, or a custom `Router`.
    group_images: number of images that are routed together as one group. This number must divide the number of images in a batch.
    gelu: form of GELU, "tanh" or "erf".
    expert_activation: activation, "gelu", "quick_gelu" (`x sigmoid(1.702 x)`, as in CLIP) or "relu2" (`max(x, 0)^2`, as in Nemotron 3).
        Gated experts `(f(x w1 + b1) * (x w3 + b3)) w2 + b2` need "geglu", where f is GELU, "swiglu", where f is SiLU, or a variant of
        it that bounds both factors (see `expert_mlp`): "clamped_swiglu" (DeepSeek-V4), "swiglu_oai" (gpt-oss), "situglu" (Kimi K3).
    expert_bias: whether experts have biases.
    shared_experts: number of experts that serve every token with weight 1, in addition to the chosen experts. The layer computes
        the shared experts as one expert of hidden width `shared_experts * hidden`.
    shared_gate: whether the sigmoid of a linear function of the token weights the shared experts, as in Qwen2-MoE.
    latent_width, latent_norm: the width at which the experts compute, between a projection down and a projection up, as in Nemotron 3
        (0: `width`), and whether an RMSNorm precedes the projection up, as in Kimi K3.
    constant_experts, copy_experts, zero_experts: how many of the `experts` are not MLPs, but mix the token with a learned vector,
        return the token, or return 0, as in MoE++ and LongCat-Flash. They are the last experts, in this order.
    weights_on: "output", or "input" if the combine weights multiply the inputs of the MLPs, as in Llama 4.
    expert_init: initial values of experts, either "independent" or "shared" by all experts.
    seed: seed of the initial values (Glorot uniform kernels, normal(1e-6) biases, router parameters), which are equal in all frameworks.
    router_options: options of the router (see `ROUTERS[router].Options`), such as choices or importance_weight. For a router that
        needs token ids, `ids` is the number of different ids, by default `tokens`, the number of positions in the image.

    Raises ConfigError for an argument out of range or an option that the router does not have.
    """
    sizes = {"width": width, "hidden": hidden, "experts": experts, "tokens": tokens, "group_images": group_images}
    width, hidden, experts, tokens, group_images = (check_at_least(name, value, 1) for name, value in sizes.items())
    seed, shared_experts = check_at_least("seed", seed, 0), check_at_least("shared_experts", shared_experts, 0)
    check_option("expert_init", expert_init, ("independent", "shared"))
    chosen = router_name(router)
    check_option("gelu", gelu, ("tanh", "erf"))
    check_option("expert_activation", expert_activation, tuple(BETWEEN))
    if type(expert_bias) is not bool:
        raise ConfigError(f"expert_bias={expert_bias!r}: expected True or False")
    check_option("weights_on", weights_on, PLACES)
    for name, value in {"shared_gate": shared_gate, "latent_norm": latent_norm}.items():
        if type(value) is not bool:
            raise ConfigError(f"{name}={value!r}: expected True or False")
    latent_width = check_at_least("latent_width", latent_width, 0)
    if shared_gate and not shared_experts:
        raise ConfigError("shared_gate=True: expected shared_experts=1 or more")
    if latent_norm and not latent_width:
        raise ConfigError("latent_norm=True: expected latent_width=1 or more")
    kinds = {"constant_experts": constant_experts, "copy_experts": copy_experts, "zero_experts": zero_experts}
    kinds = {name: check_at_least(name, value, 0) for name, value in kinds.items()}
    if sum(kinds.values()) >= experts:
        name = max(kinds, key=kinds.__getitem__)
        raise ConfigError(f"{name}={kinds[name]}: expected at least one MLP among experts={experts}, got {kinds}")
    known = {each.name for each in fields(ROUTERS[chosen].Options)}
    decided = (
        {"ids": tokens} if ROUTERS[chosen].requires == "ids" else {"images": group_images} if "images" in known else {}
    )
    options = {**decided, **router_options}
    of_router = ROUTERS[chosen].options(width=width, experts=experts, tokens=group_images * tokens, **options)
    if getattr(of_router, "hashes", 1) != 1:
        raise ConfigError(f"hashes: expected 1, since this layer does not mix experts, got {of_router.hashes}")
    warn_untrained(chosen, of_router)
    without_mlp = kinds["constant_experts"], kinds["copy_experts"], kinds["zero_experts"]
    first = (hidden, expert_init, seed, expert_bias, shared_experts, shared_gate, latent_width, latent_norm)
    return Layer(chosen, of_router, group_images, gelu, expert_activation, *first, *without_mlp, weights_on)


SOFTMAX_OF_CHOSEN = {"noisy_top_k": "choices", "hierarchical_top_k": "choices_per_level"}
"""For each router whose weights are a softmax over only the chosen experts, the option that sets the number of choices."""


def warn_untrained(router: str, options: RouterOptions) -> None:
    """Warns if each token has a single choice with the constant weight 1, because the task's loss then does not train the router."""
    name = SOFTMAX_OF_CHOSEN.get(router, "choices")
    divided = getattr(options, "normalize_selected", False) and getattr(options, "epsilon", 0.0) < 1e-3
    if getattr(options, name, 0) != 1 or not (divided or router in SOFTMAX_OF_CHOSEN):
        return
    remedy, setting = f"{name}=2 or more", f"{name}=1"
    if router not in SOFTMAX_OF_CHOSEN:
        remedy, setting = "normalize_selected=False", f"{name}=1 with normalize_selected=True"
    message = f"{setting}: the weight of the only choice of {router} is always 1, so the task's loss does not train the router"
    warnings.warn(f"{message}; use {remedy} (ledger SG-2)", stacklevel=4)


def documented(layer: Class) -> Class:
    """Appends the argument descriptions of `layer_of` to the docstring of a layer class."""
    layer.__doc__ = f"{inspect.getdoc(layer)}\n\n{inspect.getdoc(layer_of)}"
    return layer


def initial(layer: Layer) -> dict[str, Params]:
    """The initial arrays of the `router`, the `experts` and, if there are any, the other `PARTS` (see `drawn`)."""
    params: dict[str, Params] = {"router": {}, "experts": {}}
    for part, name, values in drawn(layer):
        params.setdefault(part, {})[name] = values
    return params


PARTS = ("router", "experts", "shared", "latent", "constants")


def drawn(layer: Layer, parts: Sequence[str] = PARTS) -> Iterator[tuple[str, str, Any]]:
    """Yields the part, the name and the value of each initial array, one float32 array at a time.

    Kernels are Glorot uniform, biases and the shared gate normal(1e-6), and the
    vectors of constant experts standard normal. `Router.init` returns the arrays of the router. The state of a router is a dict
    with the name "state". Tables of hash layers contain expert numbers and are int32.
    """
    generator = np.random.default_rng(layer.seed)
    for name, value in initial_params(ROUTERS[layer.router], generator, layer.options).items():
        if "router" in parts:
            yield "router", name, value.astype(np.int32) if name == "tables" else value
    if "router" in parts and (state := ROUTERS[layer.router].initial_state(layer.options)):
        yield "router", STATE, state
    D, latent = layer.options.width, layer.latent_width
    for part, hidden, width, experts in (
        ("experts", layer.hidden, latent or D, (layer.mlps,)),
        ("shared", layer.shared_experts * layer.hidden, D, ()),
    ):
        if part not in parts or not hidden:
            continue
        limit = math.sqrt(6 / (width + hidden))
        for name, shape in layer.shapes(hidden, width).items():
            values = np.empty((*experts, *shape), np.float32)
            # Draw one expert at a time, to save memory.
            for one in values if experts and layer.expert_init == "independent" else [values]:
                one[...] = (
                    generator.uniform(-limit, limit, shape) if len(shape) == 2 else generator.normal(0, 1e-6, shape)
                )
            yield part, name, values
    for part, name, draw in _others(layer, generator):
        if part in parts:
            yield part, name, np.asarray(draw(), np.float32)


def _others(layer: Layer, generator: np.random.Generator) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """Yields the part, the name and the draw of each array around the MLPs."""
    D, L, n = layer.options.width, layer.latent_width, layer.constant_experts

    def kernel(*shape: int) -> Any:
        limit = math.sqrt(6 / sum(shape[-2:]))
        return generator.uniform(-limit, limit, shape)

    if layer.shared_gate:
        yield "shared", "gate", lambda: generator.normal(0, 1e-6, D)
    if L:
        yield "latent", "down", lambda: kernel(D, L)
        yield "latent", "up", lambda: kernel(L, D)
    if layer.latent_norm:
        yield "latent", "norm", lambda: np.ones(L)
    if n:
        yield "constants", "value", lambda: generator.standard_normal((n, D))
        yield "constants", "mix", lambda: kernel(n, D, 2)


def check_tokens(name: str, array: Array, x: Array, *more: str, kind: type = object) -> None:
    """Raises DtypeError unless `array` is an array, of this kind, and ShapeError unless it has the token axes of `x`, then axes `more`."""
    if not (isinstance(array, kind) and hasattr(array, "dtype") and hasattr(array, "shape")):
        raise DtypeError(f"{name}: expected {'an array' if kind is object else 'a tensor'}, got {type(array).__name__}")
    shape, tokens = tuple(array.shape), tuple(x.shape[:-1])
    if shape[: len(tokens)] != tokens or len(shape) != len(tokens) + len(more):
        expected = ", ".join(map(str, (*tokens, *more)))
        raise ShapeError(f"{name}: expected the shape ({expected}) of the tokens, got {shape}")


def regrouped(x: Array, shape: tuple[int, ...]) -> Array:
    """Returns `x.reshape(shape)`. If possible, this function splits or joins the first axis in a separate step, so that JAX can infer
    the sharding over the explicit axes of a mesh."""
    count, first = x.shape[0], shape[0]
    if count > first and count % first == 0:
        x = x.reshape((first, count // first, *x.shape[1:]))
    elif first > count and first % count == 0:
        x = x.reshape((count, first // count, *shape[1:]))
    return x.reshape(shape)
