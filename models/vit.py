"""The vision transformer with mixture-of-experts layers (MoE-ViT), written once for every backend.

    x    = patches(images) @ kernel + bias  (+ class token)  + positions
    x    = x + attention(norm(x));   x = x + mlp_or_moe(norm(x))          for each block (pre-norm)
    out  = head(pool(norm(x)))

A MoE block routes groups of `group_images` images: `(N, S, D)` is reshaped to `(G, T, D)` with T = group_images * S, in
row-major order. Letters of the shape comments: N images, S tokens of one image, D width, H hidden, G groups,
T tokens of one group, E experts.

Sources: Dosovitskiy et al. 2021 (ViT); Riquelme et al. 2021 (V-MoE); Puigcerver et al. 2024 (Soft MoE); Liu et al.
2024 (routers, placement). Section 16 of the algorithm sheet has the table of variants and their parameter counts.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moespec.spec.errors import ConfigError, ShapeError
from moespec.spec.routers import ROUTERS, lecun_normal
from moespec.spec.routing import Noise, Params, RouterConfig, RouterOutput

__all__ = [
    "NAMES",
    "SIZES",
    "Output",
    "VitConfig",
    "forward",
    "init",
    "moe_blocks",
    "moe_noise",
    "named",
    "parameter_count",
    "parameter_shapes",
    "router_config",
]

Array = Any
Shape = tuple[int, ...]
Draw = Callable[[np.random.Generator, Shape], NDArray[Any]]


# ---------------------------------------------------------------------------------------------------------- config


@dataclass(frozen=True, kw_only=True)
class VitConfig:
    """The static description of one MoE-ViT. Raises ConfigError for a value that has no meaning.

    image_size: height and width of the square images, in pixels.
    patch_size: height and width of a patch, in pixels; divides image_size.
    channels: channels of an image.
    width, depth, hidden, heads: width D of a token, number of blocks, hidden width H of an MLP, attention heads.
    classes: outputs of the head; 0 for no head.
    pool: "gap" (mean over tokens), "token" (a class token) or "map" (attention pooling by a learned probe).
    positions: "learned", "sincos2d" (frequencies 10000^(-i/(P-1)), P = width/4) or "sincos2d_moco" (10000^(-i/P)).
    qk_norm: layer normalisation (scale only) of queries and keys over each head.
    qk_norm_bias: that normalisation also has a bias, as in timm; needs qk_norm.
    gelu: "tanh" (approximation) or "erf" (exact).
    moe: which blocks are MoE: "none", "every_2" (1, 3, 5, ...), "last_half", "last_N" (the last N blocks) or
        "every_2_last_N" (the last N of 1, 3, 5, ...). The fields below concern these blocks only.
    router: name of the router, a key of `ROUTERS`.
    experts: number of experts.
    router_options: fields of `RouterConfig` that differ from the router's defaults (choices, capacity_factor, ...).
    expert_init: "independent" initial values for each expert, or "shared" by all experts of a block.
    group_images: images routed together as one group.
    dtype: "float32" computes in the dtype of the parameters (which are initialised in float32); "bfloat16" computes
        the blocks in bfloat16 from float32 parameters, with router logits, final norm, pooling and head in float32.
    head_bias: initial value of the bias of the head.
    """

    image_size: int = 224
    patch_size: int = 16
    channels: int = 3
    width: int
    depth: int
    hidden: int
    heads: int
    classes: int = 1000
    pool: str = "gap"
    positions: str = "learned"
    qk_norm: bool = False
    qk_norm_bias: bool = False
    gelu: str = "tanh"
    moe: str = "none"
    router: str = "soft_moe"
    experts: int = 0
    router_options: Mapping[str, bool | int | float | str] = field(default_factory=dict, hash=False)
    expert_init: str = "independent"
    group_images: int = 1
    dtype: str = "float32"
    head_bias: float = 0.0

    def __post_init__(self) -> None:
        for name in ("image_size", "patch_size", "channels", "width", "depth", "hidden", "heads", "group_images"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)!r}: expected an integer >= 1")
        if self.classes < 0:
            raise ConfigError(f"classes={self.classes!r}: expected an integer >= 0 (0: no head)")
        for name, allowed in _OPTIONS.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(f"{name}={getattr(self, name)!r}: expected one of {', '.join(allowed)}")
        if self.image_size % self.patch_size:
            raise ConfigError(f"patch_size={self.patch_size!r} does not divide image_size={self.image_size!r}")
        if self.width % self.heads:
            raise ConfigError(f"heads={self.heads!r} does not divide width={self.width!r}")
        if self.qk_norm_bias and not self.qk_norm:
            raise ConfigError("qk_norm_bias=True without qk_norm=True: there is no normalisation to have a bias")
        if self.positions != "learned" and (self.width % 4 or self.width < 8):
            raise ConfigError(f"width={self.width!r}: positions={self.positions!r} needs a multiple of 4, at least 8")
        if moe_blocks(self):
            if self.experts < 1:
                raise ConfigError(f"experts={self.experts!r}: moe={self.moe!r} needs at least one expert")
            router_config(self)

    @property
    def sequence(self) -> int:
        """Tokens S of one image: its patches, and the class token if there is one."""
        return (self.image_size // self.patch_size) ** 2 + (self.pool == "token")


_OPTIONS = {
    "pool": ("gap", "token", "map"),
    "positions": ("learned", "sincos2d", "sincos2d_moco"),
    "gelu": ("tanh", "erf"),
    "expert_init": ("independent", "shared"),
    "dtype": ("float32", "bfloat16"),
}

SIZES: dict[str, dict[str, int]] = {
    "ti": {"width": 192, "depth": 12, "hidden": 768, "heads": 3},
    "s": {"width": 384, "depth": 12, "hidden": 1536, "heads": 6},
    "b": {"width": 768, "depth": 12, "hidden": 3072, "heads": 12},
    "l": {"width": 1024, "depth": 24, "hidden": 4096, "heads": 16},
    "h": {"width": 1280, "depth": 32, "hidden": 5120, "heads": 16},
    "vmoe_s": {"width": 512, "depth": 8, "hidden": 2048, "heads": 8},
}
"""Size -> its fields of `VitConfig`. `vmoe_s` is the S of the V-MoE paper, which is not the S of the field."""

TINY: dict[str, int] = {
    **{"image_size": 8, "patch_size": 2, "channels": 1, "classes": 10},
    **{"width": 64, "depth": 4, "hidden": 128, "heads": 4},
}
"""`vit_tiny`: for images of 8 x 8 pixels such as the handwritten digits, and for tests."""

NAMES: tuple[str, ...] = (
    *("vit_tiny", "vit_ti16", "vit_s8", "vit_s14", "vit_s16", "vit_s32", "vit_b16", "vit_b32"),
    *("vit_l16", "vit_l32", "vit_h14", "vit_vmoe_s32"),
)
"""The usual names. `named` takes any patch size: `vit_<size><patch>`."""


def named(name: str, **overrides: Any) -> VitConfig:
    """The configuration of the model `name`, `vit_tiny` or `vit_<size><patch>` (a size of `SIZES`), with `overrides`.

    Raises ConfigError for a name or a field that does not exist.
    """
    if name == "vit_tiny":
        fields: dict[str, Any] = dict(TINY)
    else:
        match = re.fullmatch(r"vit_([a-z_]+)([1-9]\d*)", name)
        if match is None or match[1] not in SIZES:
            raise ConfigError(f"name={name!r}: expected vit_tiny or vit_<size><patch>, size one of {', '.join(SIZES)}")
        fields = {**SIZES[match[1]], "patch_size": int(match[2])}
    unknown = sorted(set(overrides) - set(VitConfig.__dataclass_fields__))
    if unknown:
        known = ", ".join(VitConfig.__dataclass_fields__)
        raise ConfigError(f"{unknown[0]}={overrides[unknown[0]]!r} is not a field of VitConfig: {known}")
    return VitConfig(**{**fields, **overrides})


def moe_blocks(config: VitConfig) -> tuple[int, ...]:
    """The blocks that are MoE, in order (zero-based). Raises ConfigError for a placement that does not exist."""
    odd, every = range(1, config.depth, 2), range(config.depth)
    if config.moe == "none":
        return ()
    if config.moe == "every_2":
        return tuple(odd)
    if config.moe == "last_half":
        return tuple(every[config.depth - config.depth // 2 :])
    match = re.fullmatch(r"(every_2_)?last_([1-9]\d*)", config.moe)
    if match is None:
        raise ConfigError(f"moe={config.moe!r}: expected none, every_2, last_half, last_N or every_2_last_N")
    candidates, count = odd if match[1] else every, int(match[2])
    if count > len(candidates):
        raise ConfigError(f"moe={config.moe!r}: only {len(candidates)} such blocks when depth={config.depth}")
    return tuple(candidates[len(candidates) - count :])


def router_config(config: VitConfig) -> RouterConfig:
    """The configuration of the routers of the MoE blocks. Raises ConfigError for an unknown router or option."""
    if config.router not in ROUTERS:
        raise ConfigError(f"router={config.router!r}: expected one of {', '.join(ROUTERS)}")
    given = {"width": config.width, "experts": config.experts, "tokens": config.group_images * config.sequence}
    options = set(RouterConfig.__dataclass_fields__) - set(given)
    for name, value in config.router_options.items():
        if name not in options:
            raise ConfigError(f"router_options[{name!r}]={value!r}: expected one of {', '.join(sorted(options))}")
    return ROUTERS[config.router].configure(**given, **config.router_options)


def moe_noise(config: VitConfig, images: int) -> list[Noise]:
    """The noise of each MoE block in training, in block order, for a batch of `images`; shapes `(G, ...)`.

    Empty if the router takes none, or if there is no MoE block.
    """
    blocks = moe_blocks(config)
    noise = ROUTERS[config.router].noise(router_config(config)) if blocks else None
    return [replace(noise, shape=(_groups(config, images), *noise.shape)) for _ in blocks] if noise else []


def _groups(config: VitConfig, images: int) -> int:
    if images % config.group_images:
        raise ShapeError(f"images: {images} images cannot be split into groups of group_images={config.group_images}")
    return images // config.group_images


# ------------------------------------------------------------------------------------------------------ parameters


class _Parameter(NamedTuple):
    """One parameter: its shape, and how its initial values are drawn."""

    shape: Shape
    draw: Draw


def parameter_shapes(config: VitConfig) -> Params:
    """The nested dict of parameters with shapes in place of arrays; no parameter is allocated.

    The names and shapes are listed once, in `_layout`: a Linear has a `kernel` (inputs first) and a `bias`; attention
    kernels are `(D, heads, D/heads)`, `out` is `(heads, D/heads, D)`; experts are stacked on a leading axis E.
    """
    return _map(_layout(config), lambda path, parameter: parameter.shape)


def parameter_count(config: VitConfig) -> int:
    """The number of parameters, from their shapes."""
    counts: list[int] = []
    _map(_layout(config), lambda path, parameter: counts.append(math.prod(parameter.shape)))
    return sum(counts)


def init(config: VitConfig, seed: int = 0) -> Params:
    """Initial parameters: a nested dict of NumPy float32 arrays, the same bits whatever the backend.

    Each parameter has its own random stream, derived from the seed and the parameter's name, so adding a block leaves
    the others as they were. Kernels of attention and MLP are Glorot uniform, the patch embedding and the slots LeCun
    normal (truncated at two standard deviations), positions normal(0.02), MLP biases normal(1e-6), the head kernel 0.

    Raises ConfigError for a negative seed.
    """
    if seed < 0:
        raise ConfigError(f"seed={seed!r}: expected an integer >= 0")

    def fill(path: tuple[str, ...], parameter: _Parameter) -> NDArray[np.float32]:
        generator = np.random.default_rng([seed, *"/".join(path).encode()])
        return np.asarray(parameter.draw(generator, parameter.shape), np.float32)

    return _map(_layout(config), fill)


def _layout(config: VitConfig) -> Params:
    """Every parameter of the model, its name, shape and initial values."""
    D, p, classes = config.width, config.patch_size, config.classes
    layout: Params = {
        "embedding": {
            "kernel": _Parameter((p, p, config.channels, D), _lecun_normal(p * p * config.channels)),
            "bias": _Parameter((D,), _constant(0.0)),
        }
    }
    if config.pool == "token":
        layout["token"] = _Parameter((1, 1, D), _constant(0.0))
    if config.positions == "learned":
        layout["positions"] = _Parameter((1, config.sequence, D), _normal(0.02))
    moe = moe_blocks(config)
    layout["blocks"] = {
        str(block): {
            "norm1": _norm(D),
            "attention": _attention_layout(config),
            "norm2": _norm(D),
            **({"moe": _moe_layout(config)} if block in moe else {"mlp": _mlp_layout(config)}),
        }
        for block in range(config.depth)
    }
    layout["norm"] = _norm(D)
    if config.pool == "map":
        layout["pool"] = {
            "probe": _Parameter((1, 1, D), _glorot_uniform(1, D)),
            "attention": _attention_layout(config),
            "norm": _norm(D),
            "mlp": _mlp_layout(config),
        }
    if classes:
        layout["head"] = {
            "kernel": _Parameter((D, classes), _constant(0.0)),
            "bias": _Parameter((classes,), _constant(config.head_bias)),
        }
    return layout


def _attention_layout(config: VitConfig) -> Params:
    D, heads, dim = config.width, config.heads, config.width // config.heads
    glorot = _glorot_uniform(D, D)
    layout: Params = {
        name: {"kernel": _Parameter((D, heads, dim), glorot), "bias": _Parameter((heads, dim), _constant(0.0))}
        for name in ("query", "key", "value")
    }
    layout["out"] = {"kernel": _Parameter((heads, dim, D), glorot), "bias": _Parameter((D,), _constant(0.0))}
    if config.qk_norm:
        norm = _norm(dim) if config.qk_norm_bias else {"scale": _Parameter((dim,), _constant(1.0))}
        layout["query_norm"], layout["key_norm"] = norm, dict(norm)
    return layout


def _mlp_layout(config: VitConfig) -> Params:
    D, H = config.width, config.hidden
    return {
        "w1": _Parameter((D, H), _glorot_uniform(D, H)),
        "b1": _Parameter((H,), _normal(1e-6)),
        "w2": _Parameter((H, D), _glorot_uniform(H, D)),
        "b2": _Parameter((D,), _normal(1e-6)),
    }


def _moe_layout(config: VitConfig) -> Params:
    """Router parameters come from the specification; each expert is a dense MLP, stacked on a leading axis."""
    router, settings = ROUTERS[config.router], router_config(config)
    # The router alone knows its parameters. Asking it for them once is cheap (a kernel of E columns), unlike experts.
    names = {name: np.shape(value) for name, value in router.init(np.random.default_rng(0), settings).items()}

    def draw(name: str) -> Draw:
        return lambda generator, shape: router.init(generator, settings)[name]

    return {
        "router": {name: _Parameter(shape, draw(name)) for name, shape in names.items()},
        "experts": {
            name: _Parameter((config.experts, *dense.shape), _stacked(dense.draw, config.expert_init))
            for name, dense in _mlp_layout(config).items()
        },
    }


def _norm(dim: int) -> Params:
    return {"scale": _Parameter((dim,), _constant(1.0)), "bias": _Parameter((dim,), _constant(0.0))}


def _constant(value: float) -> Draw:
    return lambda generator, shape: np.full(shape, value, np.float32)


def _normal(std: float) -> Draw:
    return lambda generator, shape: np.float32(std) * generator.standard_normal(shape, np.float32)


def _glorot_uniform(inputs: int, outputs: int) -> Draw:
    limit = np.float32(math.sqrt(6 / (inputs + outputs)))
    return lambda generator, shape: limit * (2 * generator.random(shape, np.float32) - 1)


def _lecun_normal(inputs: int) -> Draw:
    return lambda generator, shape: lecun_normal(generator, shape, inputs)


def _stacked(draw: Draw, expert_init: str) -> Draw:
    """`draw` for E experts at once; "shared" draws one and copies it."""
    if expert_init == "independent":
        return draw
    return lambda generator, shape: np.broadcast_to(draw(generator, shape[1:]), shape).copy()


def _map(tree: Params, function: Callable[[tuple[str, ...], Any], Any], path: tuple[str, ...] = ()) -> Params:
    """`function(path, leaf)` for every leaf of a nested dict."""
    return {
        key: _map(value, function, (*path, key)) if isinstance(value, dict) else function((*path, key), value)
        for key, value in tree.items()
    }


# --------------------------------------------------------------------------------------------------------- forward


class Output(NamedTuple):
    """What the model returns.

    logits: `(N, classes)`, or None without a head. features: `(N, D)`, what the head sees.
    losses: weighted auxiliary losses by name, summed over MoE blocks. routings, metrics: one per MoE block, in order.
    """

    logits: Array
    features: Array
    losses: dict[str, Array]
    routings: list[Any]
    metrics: list[dict[str, Array]]


def forward(
    B: Any,
    config: VitConfig,
    params: Params,
    images: Array,
    *,
    noise: list[Array] | None = None,
    train: bool = False,
) -> Output:
    """The model on `images` `(N, image_size, image_size, channels)`, with backend `B`.

    `params` are arrays of `B` in the layout of `parameter_shapes`; images have the dtype of the parameters. `noise` is
    one array per MoE block, as `moe_noise` says, or None. `train` is passed to the
    routers.

    Raises ShapeError when images have another shape, or when N is not a multiple of `group_images`, and ConfigError
    when the number of noise arrays is not the number of MoE blocks.
    """
    moe = moe_blocks(config)
    expected = (config.image_size, config.image_size, config.channels)
    if len(images.shape) != 4 or tuple(images.shape[1:]) != expected:
        raise ShapeError(f"images has shape {tuple(images.shape)}: expected (N, {', '.join(map(str, expected))})")
    if moe:
        _groups(config, images.shape[0])
    if noise is not None and len(noise) != len(moe):
        raise ConfigError(f"noise has {len(noise)} arrays: expected one for each of the {len(moe)} MoE blocks")

    compute = _compute_dtype(B, config)
    x = _embed(B, config, params, images)  # (N, S, D)
    outputs: list[RouterOutput] = []
    for block in range(config.depth):
        p = params["blocks"][str(block)]
        x = x + _attention(B, compute(p["attention"]), _layer_norm(B, p["norm1"], x), None)
        y = _layer_norm(B, p["norm2"], x)
        if block in moe:
            y, output = _moe(B, config, p["moe"], y, noise[len(outputs)] if noise else None, train)
            outputs.append(output)
        else:
            y = _mlp(B, config, compute(p["mlp"]), y)
        x = x + y
    if config.dtype == "bfloat16":
        x = B.cast(x, "float32")
    x = _layer_norm(B, params["norm"], x)
    features = _pool(B, config, params, x)  # (N, D)
    logits = features @ params["head"]["kernel"] + params["head"]["bias"] if config.classes else None

    losses: dict[str, Array] = {}
    for output in outputs:
        for name, value in output.losses.items():
            losses[name] = losses[name] + value if name in losses else value
    return Output(logits, features, losses, [o.routing for o in outputs], [o.metrics for o in outputs])


def _compute_dtype(B: Any, config: VitConfig) -> Callable[[Any], Any]:
    """A function that casts an array, or every array of a nested dict, to the dtype of the blocks."""
    if config.dtype == "float32":
        return lambda tree: tree

    def compute(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {name: compute(value) for name, value in tree.items()}
        return B.cast(tree, config.dtype)

    return compute


def _embed(B: Any, config: VitConfig, params: Params, images: Array) -> Array:
    """Images to tokens with positions, `(N, S, D)`; the class token comes first."""
    compute = _compute_dtype(B, config)
    embedding = compute(params["embedding"])
    x = B.patch_embed(compute(images), embedding["kernel"], embedding["bias"])
    if config.positions != "learned":
        x = x + compute(_sincos_positions(B, config, x))
    if config.pool == "token":
        token = B.broadcast_to(compute(params["token"]), (x.shape[0], 1, config.width))
        x = B.concatenate([token, x], 1)
    return x + compute(params["positions"]) if config.positions == "learned" else x


def _sincos_positions(B: Any, config: VitConfig, x: Array) -> Array:
    """Fixed positions of the patches `(1, patches, D)`: sines and cosines of column and row, P = D/4 frequencies each.

    `[sin u w_i, cos u w_i, sin v w_i, cos v w_i]`, i = 0..P-1, with `w_i = 10000^(-i/(P-1))` and (u, v) = (column, row)
    for "sincos2d" (the vmoe and big_vision code), `w_i = 10000^(-i/P)` and (u, v) = (row, column) for "sincos2d_moco"
    (the MoCo v3 code). A class token has no position.
    """
    grid, P = config.image_size // config.patch_size, config.width // 4
    moco = config.positions == "sincos2d_moco"
    frequencies = 10000.0 ** (-B.arange(P, x) / (P if moco else P - 1))
    angles = B.arange(grid, x)[:, None] * frequencies  # (grid, P)
    waves = B.concatenate([B.sin(angles), B.cos(angles)], 1)  # (grid, 2P)
    by_row = B.broadcast_to(waves[:, None], (grid, grid, 2 * P))
    by_column = B.broadcast_to(waves[None], (grid, grid, 2 * P))
    halves = [by_row, by_column] if moco else [by_column, by_row]
    return B.concatenate(halves, 2).reshape((1, grid * grid, config.width))


def _layer_norm(B: Any, p: Params, x: Array) -> Array:
    return B.layer_norm(x, p["scale"], p.get("bias"), epsilon=1e-6)


def _attention(B: Any, p: Params, x: Array, queries: Array | None) -> Array:
    """Multi-head attention over `x` `(N, S, D)`, from `queries` `(N, Q, D)` or from `x` itself."""
    query = _project(B, p["query"], x if queries is None else queries)
    key, value = _project(B, p["key"], x), _project(B, p["value"], x)
    if "query_norm" in p:
        query, key = _layer_norm(B, p["query_norm"], query), _layer_norm(B, p["key_norm"], key)
    return B.einsum("nshk,hkd->nsd", B.attention(query, key, value), p["out"]["kernel"]) + p["out"]["bias"]


def _project(B: Any, p: Params, x: Array) -> Array:
    return B.einsum("nsd,dhk->nshk", x, p["kernel"]) + p["bias"]  # (N, S, heads, D/heads)


def _mlp(B: Any, config: VitConfig, p: Params, x: Array) -> Array:
    return B.gelu(x @ p["w1"] + p["b1"], form=config.gelu) @ p["w2"] + p["b2"]


def _moe(
    B: Any, config: VitConfig, p: Params, x: Array, noise: Array | None, train: bool
) -> tuple[Array, RouterOutput]:
    tokens = x.reshape((x.shape[0] // config.group_images, config.group_images * x.shape[1], x.shape[2]))  # (G, T, D)
    output = B.ROUTERS[config.router].route(p["router"], tokens, router_config(config), noise=noise, train=train)
    experts = _compute_dtype(B, config)(p["experts"])
    y = B.moe_layer(tokens, output.routing, lambda inputs: B.expert_mlp(inputs, experts, gelu=config.gelu))
    return y.reshape(x.shape), output


def _pool(B: Any, config: VitConfig, params: Params, x: Array) -> Array:
    if config.pool == "token":
        return x[:, 0]
    if config.pool == "gap":
        return B.mean(x, 1)
    p = params["pool"]
    y = _attention(B, p["attention"], x, B.broadcast_to(p["probe"], (x.shape[0], 1, x.shape[2])))  # (N, 1, D)
    return (y + _mlp(B, config, p["mlp"], _layer_norm(B, p["norm"], y)))[:, 0]
