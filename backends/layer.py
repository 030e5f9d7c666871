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
from moespec.spec.checks import check_at_least, check_option, check_scores, check_size
from moespec.spec.errors import ConfigError, ShapeError
from moespec.spec.options import RouterOptions
from moespec.spec.routers import ROUTERS, Router, RouterName, router_name
from moespec.spec.routing import Params

__all__ = ["Layer", "documented", "drawn", "initial", "layer_of", "regrouped", "warn_untrained", "with_shared"]

Array = Any
BETWEEN = {"gelu": "gelu", "quick_gelu": "quick_gelu", "geglu": "gelu", "swiglu": "silu"}
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

    @property
    def gated(self) -> bool:
        """True if the experts are gated and have the parameter `w3`."""
        return self.expert_activation in ("geglu", "swiglu")

    @property
    def form(self) -> dict[str, str]:
        """The arguments `gelu` and `activation` of `moe_mlp`."""
        return {"gelu": self.gelu, "activation": BETWEEN[self.expert_activation]}

    def shapes(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """The shapes of the parameters of one expert with this hidden width, by the parameter names of the specification."""
        sizes = {"width": self.options.width, "hidden": hidden, "output": self.options.width}
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
        check_scores("x", x, "images tokens width" if x.ndim < 4 else "... width")
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
    expert_activation: activation, "gelu" or "quick_gelu" (`x sigmoid(1.702 x)`, as in CLIP). Gated experts
        `(f(x w1 + b1) * (x w3 + b3)) w2 + b2` need "geglu", where f is GELU, or "swiglu", where f is SiLU.
    expert_bias: whether experts have biases.
    shared_experts: number of experts that serve every token with weight 1, in addition to the chosen experts. The layer computes
        the shared experts as one expert of hidden width `shared_experts * hidden`.
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
    known = {each.name for each in fields(ROUTERS[chosen].Options)}
    decided = (
        {"ids": tokens} if ROUTERS[chosen].requires == "ids" else {"images": group_images} if "images" in known else {}
    )
    options = {**decided, **router_options}
    of_router = ROUTERS[chosen].options(width=width, experts=experts, tokens=group_images * tokens, **options)
    if getattr(of_router, "hashes", 1) != 1:
        raise ConfigError(f"hashes: expected 1, since this layer does not mix experts, got {of_router.hashes}")
    warn_untrained(chosen, of_router)
    first = (hidden, expert_init, seed, expert_bias, shared_experts)
    return Layer(chosen, of_router, group_images, gelu, expert_activation, *first)


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


def with_shared(
    y: Array, expert_mlp: Callable[..., Array], tokens: Array, shared: Mapping[str, Array] | None, **options: str
) -> Array:
    """Adds the shared expert's output for the tokens (G, T, D) to `y`, the output of the routed experts, unless `shared` is None."""
    if shared is None:
        return y
    alone = {name: value[None] for name, value in shared.items()}
    served = expert_mlp(tokens[:, None], alone, **options)[:, 0]
    check_size("w2", y, 2, served.shape[2], "the output width of the shared expert")
    return y + served


def documented(layer: Class) -> Class:
    """Appends the argument descriptions of `layer_of` to the docstring of a layer class."""
    layer.__doc__ = f"{inspect.getdoc(layer)}\n\n{inspect.getdoc(layer_of)}"
    return layer


def initial(layer: Layer) -> dict[str, Params]:
    """The initial arrays of the `router`, the `experts` and, if there is one, the `shared` expert (see `drawn`)."""
    params: dict[str, Params] = {"router": {}, "experts": {}}
    for part, name, values in drawn(layer):
        params.setdefault(part, {})[name] = values
    return params


PARTS = ("router", "experts", "shared")


def drawn(layer: Layer, parts: Sequence[str] = PARTS) -> Iterator[tuple[str, str, Any]]:
    """Yields the part, the name and the value of each initial array, one float32 array at a time.

    Kernels are Glorot uniform and biases normal(1e-6). `Router.init` returns the arrays of the router. The state of a router is a dict
    with the name "state". Tables of hash layers contain expert numbers and are int32.
    """
    generator = np.random.default_rng(layer.seed)
    for name, value in initial_params(ROUTERS[layer.router], generator, layer.options).items():
        if "router" in parts:
            yield "router", name, value.astype(np.int32) if name == "tables" else value
    if "router" in parts and (state := ROUTERS[layer.router].initial_state(layer.options)):
        yield "router", STATE, state
    for part, hidden, experts in (
        ("experts", layer.hidden, (layer.options.experts,)),
        ("shared", layer.shared_experts * layer.hidden, ()),
    ):
        if part not in parts or not hidden:
            return
        limit = math.sqrt(6 / (layer.options.width + hidden))
        for name, shape in layer.shapes(hidden).items():
            values = np.empty((*experts, *shape), np.float32)
            # Draw one expert at a time, to save memory.
            for one in values if experts and layer.expert_init == "independent" else [values]:
                one[...] = (
                    generator.uniform(-limit, limit, shape) if len(shape) == 2 else generator.normal(0, 1e-6, shape)
                )
            yield part, name, values


def regrouped(x: Array, shape: tuple[int, ...]) -> Array:
    """Returns `x.reshape(shape)`. If possible, this function splits or joins the first axis in a separate step, so that JAX can infer
    the sharding over the explicit axes of a mesh."""
    count, first = x.shape[0], shape[0]
    if count > first and count % first == 0:
        x = x.reshape((first, count // first, *x.shape[1:]))
    elif first > count and first % count == 0:
        x = x.reshape((count, first // count, *shape[1:]))
    return x.reshape(shape)
