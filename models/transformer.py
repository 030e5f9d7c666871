"""The pre-norm transformer with mixture-of-experts layers, for images (`vit`) and texts (`text`), written once for every backend.

    x    = x + attention(norm(x));   x = x + mlp_or_moe(norm(x))          for each block

Letters of the shape comments: N images or texts, S tokens of one image or text, D width, H hidden, T tokens of one group.

Sources: Dosovitskiy et al. 2021 (ViT); Riquelme et al. 2021 (V-MoE); google-research/big_vision, `models/vit.py`, MAPHead.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar

from moespec.backends.contract import Backend
from moespec.models import layers, parameters
from moespec.models.experts import KINDS, ExpertsConfig, moe_layout, of_block
from moespec.models.hashing import multi_hash
from moespec.models.layers import Experts, MoeLayer
from moespec.models.options import MOE, option
from moespec.models.parameters import Parameter, constant, glorot_uniform, normal
from moespec.models.router_options import Decided, check_options, named_routers, options_of, settings
from moespec.spec.errors import ConfigError
from moespec.spec.options import RouterOptions
from moespec.spec.own import OwnName
from moespec.spec.ranges import SMALLEST, Count, Range
from moespec.spec.routers import ROUTERS, RouterName, router_name
from moespec.spec.routing import Params, RouterOutput

Array = Any
Norm = Callable[[Params, Array], Array]
"""A layer normalisation function, called with its parameters and an array."""
Config = TypeVar("Config", bound="TransformerConfig")

DECIDED = Decided(("width", "experts", "tokens", "ids", "images"))
"""The router options that the model determines."""


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(ExpertsConfig, layers.BlocksConfig):
    """The configuration fields of all transformers. Raises ConfigError for an invalid value."""

    overridable = ("router", "experts", "router_options", "expert_hidden", *KINDS)
    heads: Count
    """attention heads"""
    norm_epsilon: Annotated[float, Range(SMALLEST, 1, below=False)] = option(1e-6, rare=True)
    """constant that layer normalisations add to the variance"""
    qk_norm: bool = False
    """normalise queries and keys over each head (layer normalisation, scale only)"""
    moe: str = "none"
    """MoE blocks: none, every_2 (1, 3, 5, ...), last_half, first_N, last_N (the first or last N blocks), every_2_last_N (the
    last N of 1, 3, 5, ...), or zero-based block numbers, such as 5,11"""
    router: RouterName | OwnName = option("soft_moe", only=MOE)
    """router of the MoE blocks (moespec list routers), or your own as package.module:ROUTER"""
    experts: int = option(0, only=MOE)
    """number of experts"""
    router_options: Mapping[str, bool | int | float | str | None] = option(factory=dict, only=MOE, hash=False)
    """router options that differ from the defaults (choices, capacity_factor, ...)"""
    expert_hidden: layers.Size = option(0, only=MOE)
    """hidden width of an expert; 0: the hidden width of an MLP"""
    dropout: float = 0.0
    """dropout rate after the embedding, after each attention, inside each dense MLP (after its activation) and after each MLP
    or MoE layer"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "router", router_name(self.router))
        object.__setattr__(self, "block", named_routers(self.block))
        super().__post_init__()
        if self.width % self.heads:
            raise ConfigError(f"heads={self.heads!r} does not divide width={self.width!r}")
        if moe_blocks(self):
            if self.experts < 1:
                raise ConfigError(f"experts={self.experts!r}: moe={self.moe!r} needs at least one expert")
            # Create the router options here to check them, since a compiled model skips these checks.
            object.__setattr__(self, "_options", self._check_routing())
        else:
            check_options(self.router, self.router_options, DECIDED.names)
        self.set_blocks()

    @property
    def form(self) -> Experts:
        """The form of the experts in the MoE blocks."""
        return self.form_of(self.expert_hidden or self.hidden)

    def _check_routing(self) -> RouterOptions:
        """Creates and checks the router options of the MoE blocks."""
        images, rest = divmod(self.group_size, self.sequence)
        if rest and "images" in options_of(self.router):
            raise ConfigError(
                f"group_tokens={self.group_size}: {self.router} needs whole images; expected a multiple of {self.sequence} tokens"
            )
        self.check_form("experts")
        if getattr(self, "round_experts", False) and self.form.kinds != Experts(0).kinds:
            raise ConfigError(
                "round_experts=True: expected experts that are MLPs of the model's width, and weights_on='output'"
            )
        decided = {"width": self.width, "experts": self.experts, "tokens": self.group_size, "ids": self.id_count}
        options = settings(self.router, self.router_options, **decided, images=images)
        multi_hash.check(options, hidden=self.form.hidden, output=self.width, plain=self.form.plain)
        return options

    @property
    def sequence(self) -> int:
        """The number S of tokens of one input."""
        raise NotImplementedError

    @property
    def group_size(self) -> int:
        """Tokens T of a group."""
        raise NotImplementedError

    @property
    def fewest_images(self) -> int:
        """The smallest batch size that fills the groups of tokens."""
        return math.lcm(self.group_size, self.sequence) // self.sequence

    @property
    def id_count(self) -> int:
        """The number of distinct token ids, for routers that use token ids."""
        raise NotImplementedError


def moe_blocks(config: TransformerConfig) -> tuple[int, ...]:
    """Returns the indices (from 0) of the MoE blocks, in order. Raises ConfigError if `config.moe` is invalid for the depth."""
    return layers.placed(config.moe, config.depth)


def moe_layers(config: TransformerConfig, groups: int, items: str) -> list[MoeLayer]:
    """Returns the MoE layers in block order, each with `groups` groups. items: see `MoeLayer`."""
    return [
        MoeLayer(str(block), own.router, router_config(own), groups, items, own.form, f"blocks/{block}/moe")
        for block in moe_blocks(config)
        for own in [of_block(config, block)]
    ]


def router_config(config: TransformerConfig) -> RouterOptions:
    """Returns the router options that all MoE blocks without overrides share (see `of_block`). The model must have MoE blocks."""
    options: RouterOptions = config._options  # type: ignore[attr-defined]
    return options


def id_blocks(config: TransformerConfig) -> list[int]:
    """Returns the indices of the blocks whose routers use token ids."""
    return [block for block in moe_blocks(config) if ROUTERS[of_block(config, block).router].requires == "ids"]


def takes_ids(config: TransformerConfig) -> bool:
    """Returns True if a router of the model uses token ids."""
    return bool(id_blocks(config))


def blocks_layout(config: TransformerConfig, *, qkv_bias: bool = True, layer_scale: float = 0.0) -> Params:
    """Returns the layout of all blocks.

    The attention kernels have shape `(D, heads, D/heads)`, and `out` has shape `(heads, D/heads, D)`. `moespec.models.parameters` defines
    the other parameters. The initial kernels of attention and MLP are Glorot uniform, slots are LeCun normal (truncated at two standard
    deviations), and MLP biases are normal(1e-6). layer_scale: the initial factor on the outputs of attention and MLP; 0 for no factor.
    """
    D, moe = config.width, moe_blocks(config)
    return {
        str(block): {
            "norm1": parameters.norm(D),
            "attention": _attention_layout(config, bias=qkv_bias),
            "norm2": parameters.norm(D),
            **({f"layer_scale{i}": Parameter((D,), constant(layer_scale)) for i in (1, 2)} if layer_scale else {}),
            **({"moe": _moe_layout(of_block(config, block))} if block in moe else {"mlp": _mlp_layout(config)}),
        }
        for block in range(config.depth)
    }


def pool_layout(config: TransformerConfig) -> Params:
    """Returns the layout of the attention pooling."""
    return {
        "probe": Parameter((1, 1, config.width), glorot_uniform(1, config.width)),
        "attention": _attention_layout(config, bias=True),
        "norm": parameters.norm(config.width),
        "mlp": _mlp_layout(config),
    }


def _attention_layout(config: TransformerConfig, *, bias: bool) -> Params:
    D, heads, dim = config.width, config.heads, config.width // config.heads
    glorot = glorot_uniform(D, D)
    projection = {"kernel": Parameter((D, heads, dim), glorot)}
    if bias:
        projection["bias"] = Parameter((heads, dim), constant(0.0))
    layout: Params = {name: dict(projection) for name in ("query", "key", "value")}
    layout["out"] = {"kernel": Parameter((heads, dim, D), glorot), "bias": Parameter((D,), constant(0.0))}
    if config.qk_norm:
        norm = parameters.norm(dim)
        if not getattr(config, "qk_norm_bias", False):
            del norm["bias"]
        layout["query_norm"], layout["key_norm"] = norm, dict(norm)
    return layout


def _mlp_layout(config: TransformerConfig, hidden: int = 0, **form: bool) -> Params:
    return parameters.mlp(config.width, hidden or config.hidden, glorot_uniform, normal(1e-6), **form)


def _moe_layout(config: TransformerConfig) -> Params:
    return moe_layout(config, config.router, router_config(config), config.form, glorot_uniform, normal(1e-6))


def blocks(run: layers.Forward, params: Params, x: Array, *, ids: Array | None = None, causal: bool = False) -> Array:
    """Returns the tokens `x` `(N, S, D)` after all blocks. causal: a token attends only to itself and earlier tokens.

    ids: the ids of the tokens, `(N, S)`, for routers that need them.
    """
    B, config, drop, compute = run.B, run.config, run.drop, run.compute
    norm = partial(layers.layer_norm, B, epsilon=config.norm_epsilon)

    def block(number: int, p: Params, x: Array) -> tuple[Array, list[RouterOutput]]:
        attention, hidden, output = range(3 * number + 1, 3 * number + 4)
        y = _attention(B, compute(p["attention"]), norm(p["norm1"], x), None, norm, causal=causal)
        x = x + drop.branch(scaled(p, 1, drop.units(y, attention)), 2 * number)
        y, outputs = norm(p["norm2"], x), []
        if str(number) in run.moe_layers:
            y, routed = run.moe(str(number), p["moe"], y, ids)
            outputs.append(routed)
        else:
            y = layers.mlp(B, compute(p["mlp"]), y, gelu=config.gelu, drop=partial(drop.units, number=hidden))
        return x + drop.branch(scaled(p, 2, drop.units(y, output)), 2 * number + 1), outputs

    def scaled(p: Params, branch: int, y: Array) -> Array:
        name = f"layer_scale{branch}"
        return y * compute(p[name]) if name in p else y

    return run.blocks(block, params, x)


def pooled(B: Backend, config: TransformerConfig, p: Params, x: Array) -> Array:
    """Pools the tokens `x` `(N, S, D)` to `(N, D)` by the attention of a learned probe."""
    norm = partial(layers.layer_norm, B, epsilon=config.norm_epsilon)
    queries = B.broadcast_to(p["probe"], (x.shape[0], 1, x.shape[2]))
    y = _attention(B, p["attention"], x, queries, norm)  # (N, 1, D)
    return (y + layers.mlp(B, p["mlp"], norm(p["norm"], y), gelu=config.gelu))[:, 0]


def _attention(B: Backend, p: Params, x: Array, queries: Array | None, norm: Norm, *, causal: bool = False) -> Array:
    """Computes multi-head attention over `x` `(N, S, D)`. The queries come from `queries` `(N, Q, D)`, by default from `x`."""
    inputs = {"query": x if queries is None else queries, "key": x, "value": x}
    query, key, value = (B.linear(y, p[name]["kernel"], p[name].get("bias")) for name, y in inputs.items())
    if "query_norm" in p:
        query, key = norm(p["query_norm"], query), norm(p["key_norm"], key)
    options: Any = {"causal": True} if causal else {}
    return B.linear(B.attention(query, key, value, **options), p["out"]["kernel"], p["out"]["bias"], axes=2)
