"""Code that all models share: configuration checks, the placement of MoE blocks, and the layers around a router.

Letters of the shape comments: N images, S tokens of one image, D width, G groups, T tokens (or channels) of one group,
E experts.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from dataclasses import fields as fields_of
from functools import partial
from string import digits as DIGITS
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar, get_origin

from moespec.backends.contract import Backend
from moespec.backends.layer import BETWEEN, GATED, regrouped
from moespec.backends.optimizer import STATE
from moespec.models import parameters
from moespec.models.checks import check_value
from moespec.models.hashing import multi_hash
from moespec.models.options import option
from moespec.models.random_keys import draws_of
from moespec.spec.algorithms.dropout import check_rate
from moespec.spec.errors import ConfigError, ShapeError
from moespec.spec.options import RouterOptions
from moespec.spec.ranges import LARGEST, Count, Range, option_types, plain
from moespec.spec.routers import ROUTERS
from moespec.spec.routing import Noise, Params, RouterOutput

Array = Any
Config = TypeVar("Config")

SIZE = 2**31 - 1
"""The largest size of an axis, because the frameworks index axes with 32-bit integers."""
Size = Annotated[int, Range(0, SIZE + 1)]
"""The type of a size for which 0 has a special meaning, such as no head."""


@dataclass(frozen=True, kw_only=True)
class BlocksConfig:
    """The configuration fields of all models. Raises ConfigError for an invalid value."""

    inputs: ClassVar[str]
    """the name of the inputs in error messages"""
    width: Count
    """width D of a token: channels of a patch"""
    depth: Annotated[int, Range(1, 10_000, below=False)]
    """number of blocks, dense and MoE"""
    hidden: Count
    """hidden width H of an MLP, or of the MLP over channels"""
    gelu: Literal["tanh", "erf"] = option("tanh", rare=True)
    """form of the GELU: the tanh approximation, or exact"""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """compute dtype; float32: the dtype of the parameters (initialised in float32); bfloat16: blocks in bfloat16, with router
    logits, final norm, pooling and head in float32"""
    stochastic_depth: float = 0.0
    """probability that an input skips a residual branch of the last block in training; falls linearly to 0 at the first block"""

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for name, hint in option_types(kind).items():
            value = getattr(self, name)
            if get_origin(hint) is not Mapping:
                check_value(name, value, hint)
            elif not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
                raise ConfigError(f"{name}={value!r}: expected a table")
            else:
                value = {key: plain(entry) for key, entry in value.items()}
            object.__setattr__(self, name, plain(value))
        for name in ("dropout", "stochastic_depth"):
            if hasattr(self, name):
                check_rate(name, getattr(self, name))
        if isinstance(self, CommonConfig) and self.image_size % self.patch_size:
            raise ConfigError(f"patch_size={self.patch_size!r} does not divide image_size={self.image_size!r}")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class CommonConfig(BlocksConfig):
    """The configuration fields of all image models."""

    inputs = "images"
    image_size: Count = 224
    """height and width of the square images, in pixels"""
    patch_size: Count = 16
    """height and width of a patch, in pixels; divides image_size"""
    channels: Count = option(3, rare=True)
    """number of channels of an image"""
    classes: Size = 1000
    """number of outputs of the head; 0 for no head"""
    head_bias: Annotated[float, Range(-LARGEST, LARGEST, below=False)] = 0.0
    """initial bias of the head; -log(classes) suits the sigmoid loss"""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Height, width and channels of an image."""
        return (self.image_size, self.image_size, self.channels)

    @property
    def sequence(self) -> int:
        """The number S of patches of one image."""
        return (self.image_size // self.patch_size) ** 2


@dataclass(frozen=True)
class Family(Generic[Config]):
    """Builds the functions of a model family from its configuration class, its sizes, and these functions:

    layout: returns every parameter of a model, with its name, shape and initial values. moe_layers: returns the MoE layers. features:
        computes the input of the head from a forward pass, the parameters and the inputs.
    """

    kind: type[Config]
    sizes: Mapping[str, Mapping[str, Any]]
    layout: Callable[[Config], Params]
    moe_layers: Callable[[Config, int], "list[MoeLayer]"]
    features: Callable[["Forward", Params, Array], Array]

    def named(self, name: str, **overrides: Any) -> Config:
        """Returns the configuration of the model `name`: a size from the table, with `overrides` applied.

        If the table sets no patch size, the name ends with the patch size, as in vit_s16. Raises ConfigError for an
        unknown name, and for an override that is not a field of the configuration.
        """
        size = name.rstrip(DIGITS)
        fields, patch = self.sizes.get(size), name[len(size) :]
        known: Mapping[str, Any] = {each.name: each for each in fields_of(self.kind)}  # type: ignore[arg-type]

        def in_name(fields: Mapping[str, Any]) -> bool:
            return "patch_size" in known and "patch_size" not in fields

        if fields is None or in_name(fields) != bool(patch) or not re.fullmatch(r"|[1-9]\d{0,8}", patch):
            names = (f"{size}<patch>" if in_name(own) else size for size, own in self.sizes.items())
            raise ConfigError(f"name={name!r}: expected one of {', '.join(names)}")
        if unknown := sorted(set(overrides) - set(known)):
            raise ConfigError(
                f"{unknown[0]}={overrides[unknown[0]]!r}: the model {name!r} has no such field; {self.kind.__name__} "
                f"has: {', '.join(known)}"
            )
        return self.kind(**{**({"patch_size": int(patch)} if patch else {}), **fields, **overrides})

    def parameter_shapes(self, config: Config) -> Params:
        """Returns the nested dict of parameters with shapes instead of arrays. Allocates no parameter."""
        return parameters.shapes(self.layout(config))

    def parameter_count(self, config: Config) -> int:
        """Returns the number of trained parameters, without constants."""
        return parameters.count(self.layout(config))

    def init(self, config: Config, seed: int = 0, *, lazily: bool = False) -> Params:
        """Returns the initial parameters, a nested dict of NumPy float32 arrays, which are identical for every backend.

        Each parameter has a separate random stream, derived from the seed and the name of the parameter, so adding a block does
        not change other parameters. The initial kernel of the head is 0. Raises ConfigError for a negative seed.
        """
        return parameters.initial(self.layout(config), seed, lazily=lazily)

    def forward(
        self,
        B: Backend,
        config: Config,
        params: Params,
        inputs: Array,
        *,
        noise: list[Array] | None = None,
        random: Array | None = None,
        train: bool = False,
        recompute: bool = False,
    ) -> "Output":
        """Runs the model on `inputs`, images `(N, image_size, image_size, channels)` or ids of texts `(N, length)`, with backend `B`.

        `params` are arrays of `B` in the layout of `parameter_shapes`; images have the dtype of the parameters. `noise` is a list of
        arrays, as `moe_noise` specifies, or None. `random` `(N, 4)` holds the integers from `random_keys.of_step` for dropout and
        stochastic depth. `train` selects training mode: dropout, stochastic depth and the training mode of routers. `recompute` enables
        activation checkpointing of the blocks; all routings are then None.

        Raises ShapeError and ConfigError as `Forward` does.
        """
        drawn: Any = {"noise": noise, "random": random, "train": train, "recompute": recompute}
        run = Forward(B, config, params, inputs, self.moe_layers, **drawn)
        return run.output(params, self.features(run, params, inputs))

    def moe_noise(self, config: Config, images: int) -> list[Noise]:
        """Describes the noise of a training step on `images` images: one array `(G, ...)` per MoE layer whose router uses noise, in order.

        The list is empty if no router uses noise.
        """
        each = [
            (layer.groups, ROUTERS[layer.router].noise(layer.settings)) for layer in self.moe_layers(config, images)
        ]
        return [replace(noise, shape=(groups, *noise.shape)) for groups, noise in each if noise]


PLACEMENTS = "none, every_2, last_half, first_N, last_N, every_2_last_N, or block numbers such as 5,11"


def placed(moe: str, depth: int) -> tuple[int, ...]:
    """Returns the indices (from 0) of the MoE blocks among `depth` blocks, in order.

    moe: see `transformer.TransformerConfig`. Raises ConfigError if `moe` is invalid or names blocks that do not exist.
    """
    odd, every = range(1, depth, 2), range(depth)
    if moe == "none":
        return ()
    if moe == "every_2":
        return tuple(odd)
    if moe == "last_half":
        return tuple(every[depth - depth // 2 :])
    if re.fullmatch(r"\d{1,9}(, ?\d{1,9})*", moe):
        return _listed(moe, depth)
    match = re.fullmatch(r"(first|last|every_2_last)_([1-9]\d{0,8})", moe)
    if match is None:
        raise ConfigError(f"moe={moe!r}: expected {PLACEMENTS}")
    candidates, count = odd if match[1] == "every_2_last" else every, int(match[2])
    if count > len(candidates):
        raise ConfigError(f"moe={moe!r}: a model with depth={depth} has only {len(candidates)} such blocks")
    return tuple(candidates[:count] if match[1] == "first" else candidates[len(candidates) - count :])


def _listed(moe: str, depth: int) -> tuple[int, ...]:
    blocks = tuple(int(number) for number in moe.split(","))
    if list(blocks) != sorted(set(blocks)):
        raise ConfigError(f"moe={moe!r}: expected each block once, in ascending order")
    if blocks[-1] >= depth:
        raise ConfigError(f"moe={moe!r}: depth={depth} has no block {blocks[-1]}; block numbers start at 0")
    return blocks


class Experts(NamedTuple):
    """The form of a layer's experts: the hidden width, the activation, and whether the experts have biases. shared: the hidden width of
    the expert that processes every token; 0 for no shared expert. shared_gate: whether a sigmoid gate weights this expert. latent: the
    width at which the experts compute; 0 for the width of the tokens. latent_norm: whether an RMSNorm precedes the projection up.
    constants, copies, zeros: the number of experts of each kind without an MLP. weights_on: as in `moe_mlp`.
    """

    hidden: int
    activation: str = "gelu"
    bias: bool = True
    shared: int = 0
    shared_gate: bool = False
    latent: int = 0
    latent_norm: bool = False
    constants: int = 0
    copies: int = 0
    zeros: int = 0
    weights_on: str = "output"

    @property
    def gated(self) -> bool:
        """True if each expert has a third matrix, `w3`."""
        return self.activation in GATED

    @property
    def plain(self) -> bool:
        """True if all experts have the form of the MLP in a dense block, and no expert is shared."""
        return self == Experts(self.hidden)

    @property
    def without_mlp(self) -> int:
        """The number of experts without an MLP, which are the last experts of the router."""
        return self.constants + self.copies + self.zeros

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The fields after `shared`."""
        return tuple(self)[4:]

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `moe_mlp` that are not arrays and differ from the defaults, except `gelu`."""
        form = {"activation": BETWEEN[self.activation]}
        named = {"copies": self.copies, "zeros": self.zeros, "weights_on": self.weights_on}
        return form | {name: value for name, value in named.items() if value not in (0, "output")}


class MoeLayer(NamedTuple):
    """One MoE layer of a model, for a batch of a given size.

    name: the number of the block ("3"), followed by the mixed items if the block has two MoE layers ("3_tokens"). router: the name of the
    router. settings: the options of the router, where `tokens` is the number T of items in a group. groups: the number G of groups.
    items: the kind of the routed items, which is "patches" (in a grid, optionally after a class token), or "channels" or "tokens"
    (without a position in the image). experts: the form of the experts. path: the path of the layer's parameters, such as "blocks/3/moe".
    """

    name: str
    router: str
    settings: RouterOptions
    groups: int
    items: str
    experts: Experts
    path: str = ""


def split(items: int, group: int, what: str, field: str, *, inputs: str = "images") -> int:
    """Returns the number of groups with `group` items each. Raises ShapeError unless `group` divides `items`."""
    if items % group:
        raise ShapeError(f"{inputs}: {items} {what} cannot be split into groups of {field}={group}")
    return items // group


ExpertActivation = Literal["gelu", "geglu", "swiglu", "relu2", "clamped_swiglu", "swiglu_oai", "situglu"]
"""The forms of experts that models have; see `expert_mlp`."""

Block = Callable[[int, Params, Array], tuple[Array, list[RouterOutput]]]
"""A function that applies one block: it maps the block's number, parameters and tokens to new tokens and the router outputs."""


class Output(NamedTuple):
    """The result of a model.

    logits: an array `(N, classes)`, or None without a head. features: the input `(N, D)` of the head. losses: weighted auxiliary losses
    by name, summed over MoE layers. routings, metrics: one entry per MoE layer, in order. A MultiHash layer has the routing of its first
    hash. With activation checkpointing, all routings are None. statistics: inputs of router state updates, by layer path.
    """

    logits: Array
    features: Array
    losses: dict[str, Array]
    routings: list[Any]
    metrics: list[dict[str, Array]]
    statistics: dict[str, dict[str, Array]] = {}  # noqa: RUF012


class Forward:
    """The forward pass of all families: it checks inputs, draws random numbers, and applies the blocks and the head in order.

    compute: casts arrays to the dtype of the blocks. drop: applies dropout or stochastic depth to an array.

    Raises ShapeError if the images or the text ids have the wrong shape or do not fill the groups of the routers.
    Raises ConfigError if the number of noise arrays differs from the number of MoE layers whose routers take noise, or
    if a model with dropout or stochastic depth has no `random` in training.
    """

    def __init__(
        self,
        B: Backend,
        config: Any,
        params: Params,
        inputs: Array,
        moe_layers: Callable[[Any, int], list[MoeLayer]],
        *,
        noise: list[Array] | None = None,
        random: Array | None = None,
        train: bool = False,
        recompute: bool = False,
    ) -> None:
        shape, expected = tuple(inputs.shape), config.input_shape
        if shape[1:] != expected:
            raise ShapeError(f"{config.inputs}: expected shape (N, {', '.join(map(str, expected))}), got {shape}")
        self.moe_layers = {layer.name: layer for layer in moe_layers(config, inputs.shape[0])}
        noisy = [name for name, layer in self.moe_layers.items() if ROUTERS[layer.router].noise(layer.settings)]
        if noise is not None and len(noise) != len(noisy):
            count = len(noisy)
            raise ConfigError(f"noise: expected {count} arrays, one for each MoE layer with noise, got {len(noise)}")
        self.B, self.config, self._train, self._recompute = B, config, train, recompute
        self._noise = dict(zip(noisy, noise or [], strict=False))
        self.compute = compute_dtype(B, config.dtype)
        like = next(iter(params["embedding"].values()))
        self.drop = draws_of(B, config, random, inputs, train=train, like=like)
        self._outputs: list[RouterOutput] = []

    def moe(self, name: str, p: Params, items: Array, ids: Array | None = None) -> tuple[Array, RouterOutput]:
        """Applies the MoE layer `name` to `items` `(..., width)`, which form groups in row-major order. Keeps the shape.

        ids: the token ids of the items, `(...)`, for a router that uses token ids.
        """
        B, layer = self.B, self.moe_layers[name]
        grouped = regrouped(items, (layer.groups, layer.settings.tokens, items.shape[-1]))  # (G, T, D)
        experts = self.compute(p["experts"])
        around = {part: self.compute(p[part]) for part in ("shared", "latent", "constants") if part in p}
        needed = {"ids": regrouped(ids, grouped.shape[:2])} if ROUTERS[layer.router].requires == "ids" else {}
        if multi_hash.chosen(layer.settings):
            y, output = multi_hash.layer(B, layer.settings, p["router"], experts, grouped, **needed)
            return regrouped(y, items.shape), output
        drawn: Any = {"state": p["router"].get(STATE), "noise": self._noise.get(name), "train": self._train}
        output = B.ROUTERS[layer.router].route(p["router"], grouped, layer.settings, **drawn, **needed)
        options: Any = {"gelu": self.config.gelu, **layer.experts.arguments}
        if getattr(self.config, "round_experts", False):
            rounded = B.round_to_bfloat16
            y = B.moe_layer(rounded(grouped), output.routing, lambda x: rounded(B.expert_mlp(x, experts, **options)))
            for shared in around.values():  # `VitConfig` rejects other parts
                y = (
                    y
                    + B.expert_mlp(grouped[:, None], {name: each[None] for name, each in shared.items()}, **options)[
                        :, 0
                    ]
                )
        else:
            y = B.moe_mlp(grouped, output.routing, experts, **around, **options)
        return regrouped(y, items.shape), output

    def blocks(self, block: Block, params: Params, x: Array) -> Array:
        """Returns the tokens after all blocks, in float32 if the blocks compute in bfloat16.

        With activation checkpointing, the router outputs contain None instead of routings.
        """
        for number in range(self.config.depth):
            one, p = partial(block, number), params["blocks"][str(number)]
            if self._recompute:
                x, numbers = self.B.recomputed(partial(self._numbers, one))(p, x)
                self._outputs.extend(RouterOutput(None, *each) for each in numbers)
            else:
                x, outputs = one(self.B.whole(p), x)
                self._outputs.extend(outputs)
        return self.B.cast(x, "float32") if self.config.dtype == "bfloat16" else x

    def _numbers(self, block: Callable[..., Any], p: Params, x: Array) -> tuple[Array, list[tuple[Any, ...]]]:
        y, outputs = block(self.B.whole(p), x)
        return y, [(output.losses, output.metrics, output.statistics) for output in outputs]

    def output(self, params: Params, features: Array) -> Output:
        """Returns the result for `features` `(N, D)`: the logits, if the model has a head, and the losses and metrics of the routers."""
        logits = features @ params["head"]["kernel"] + params["head"]["bias"] if self.config.classes else None
        losses: dict[str, Array] = {}
        for output in self._outputs:
            for name, value in output.losses.items():
                losses[name] = losses[name] + value if name in losses else value
        outputs, layers = self._outputs, self.moe_layers.values()
        pairs = zip(layers, outputs, strict=True)
        return Output(
            logits,
            features,
            losses,
            [each.routing for each in outputs],
            [each.metrics for each in outputs],
            {layer.path: each.statistics for layer, each in pairs if each.statistics},
        )


def compute_dtype(B: Backend, dtype: str) -> Callable[[Any], Any]:
    """Returns a function that casts an array, or every array of a nested dict, to the dtype of the blocks."""
    if dtype == "float32":
        return lambda tree: tree

    def compute(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {name: compute(value) for name, value in tree.items()}
        return B.cast(tree, dtype)

    return compute


def layer_norm(B: Backend, p: Params, x: Array, *, epsilon: float = 1e-6) -> Array:
    """Layer normalisation."""
    return B.layer_norm(x, p["scale"], p.get("bias"), epsilon=epsilon)


def mlp(B: Backend, p: Params, x: Array, *, gelu: str, drop: Callable[[Array], Array] = lambda hidden: hidden) -> Array:
    """Computes `drop(gelu(x w1 + b1)) w2 + b2` along the last axis."""
    return B.linear(drop(B.gelu(B.linear(x, p["w1"], p["b1"]), form=gelu)), p["w2"], p["b2"])


def returned(total: Any, metrics: dict[str, Any], statistics: dict[str, Any]) -> tuple[Any, ...]:
    """Returns the results of a loss function: the total, the metrics and, if there are any, the statistics."""
    return (total, metrics, statistics) if statistics else (total, metrics)


def state_update(B: Backend, layers: Iterable[MoeLayer]) -> dict[str, Any]:
    """Returns a dict with the argument `update_states` of `make_step`, or an empty dict if no router of `layers` has state."""
    stateful = [layer for layer in layers if ROUTERS[layer.router].state(layer.settings)]
    return {"update_states": partial(updated_states, B, stateful)} if stateful else {}


def updated_states(B: Backend, layers: Iterable[MoeLayer], params: Params, statistics: Mapping[str, Any]) -> Params:
    """Computes the router states after a step, as nested dicts, from the summed `Output.statistics`."""
    new: Params = {}
    for layer in layers:
        if layer.path in statistics:
            router, branch = params, new
            for name in (*layer.path.split("/"), "router"):
                router, branch = router[name], branch.setdefault(name, {})
            branch[STATE] = B.ROUTERS[layer.router].update(layer.settings, router[STATE], statistics[layer.path])
    return new
