"""What the tests of JAX with explicit axes run in a process of their own, which has four devices: FILE ROUTER ROUTER ..."""

import pickle
import sys
from pathlib import Path
from typing import Any

import jax
import mesh_cases as cases
import numpy as np
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax_mesh_process import collectives_of

from moespec.backends import jax as B
from moespec.backends import layer as shared
from moespec.backends.jax import equinox as for_equinox
from moespec.backends.jax import nnx as for_nnx
from moespec.backends.optimizer import STATE
from moespec.models import mixer, vit
from moespec.models.random_keys import of_step

STUDY = [router for router in cases.CASES if router != "noisy_top_k"]
IMAGES, TOKENS, WIDTH = 8, 8, 8
MESHES = {"data": (("data",), (4,)), "experts": (("data", "expert"), (2, 2))}
"""The axes of each mesh: images are split over all of them, experts over `expert`."""
OPTIONS = {
    "pool": {"pool": "token", "registers": 1, "group_images": 2},
    "drop": {"dropout": 0.1, "stochastic_depth": 0.2, "stem": 1, "positions": "learned"},
    "hash": {"router": "hash"},
}


def main(file: str, *routers: str) -> None:
    """Writes what was computed, on one device and on four: of some routers, and of all what is traced."""
    jax.config.update("jax_enable_x64", True)
    results: dict[Any, Any] = {("traced", router): traced(router) for router in B.ROUTERS}
    for router in routers:
        results["layer", router, "experts"] = layer(router, "experts")
        if router in STUDY:
            results["layer", router, "data"] = layer(router, "data")
            results["model", router] = model(vit, cases.model(router))
    for name, options in OPTIONS.items():
        config = vit.named("vit_tiny", **{**ONE_BLOCK, "router": "softmax_token_choice", **options})
        results["options", name] = model(vit, config)
    results["options", "mixer"] = model(mixer, mixer.named("mixer_tiny", channels=1, classes=10, depth=1))
    results |= {"automatic": automatic(), "modules": modules(), "fewer": fewer_groups(), "errors": errors()}
    Path(file).write_bytes(pickle.dumps(results))


ONE_BLOCK = {"moe": "last_1", "depth": 1, "experts": 4, "channels": 1, "classes": 10}


def on_mesh(name: str, types: AxisType = AxisType.Explicit) -> tuple[Any, Any, Any]:
    """A mesh, and how images and experts are split."""
    axes, sizes = MESHES[name]
    mesh = jax.make_mesh(sizes, axes, axis_types=(types,) * len(axes))
    return mesh, PartitionSpec(axes), PartitionSpec("expert" if "expert" in axes else None)


def put(mesh: Any, tree: Any, spec: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.device_put(leaf, NamedSharding(mesh, spec)), tree)


def placed(mesh: Any, params: Any, experts: Any) -> Any:
    """Parameters, of which those of experts are split."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: put(mesh, leaf, experts if "experts" in jax.tree_util.keystr(path) else PartitionSpec()),
        params,
    )


def compared(function: Any, one: Any, four: Any, mesh: Any) -> dict[str, Any]:
    """What a function makes on one device, and on four with what these send."""
    want = jax.jit(function)(*one)
    with jax.set_mesh(mesh):
        program = jax.jit(function).lower(*four).compile()
        got = program(*four)
    return {"want": B.to_numpy(want), "got": B.to_numpy(got), "sent": collectives_of(program.as_text())}


def gradient(function: Any) -> Any:
    """What a function returns, and the gradients of its first entry, the loss, in parameters and images."""

    def gradients(params: Any, images: Any, *rest: Any) -> Any:
        call = lambda params, images: function(params, images, *rest)  # noqa: E731
        (_, outputs), (for_params, for_images) = jax.value_and_grad(call, (0, 1), has_aux=True, allow_int=True)(
            params, images
        )
        zeros = jax.tree.map(lambda leaf: np.zeros(()) if leaf.dtype == jax.dtypes.float0 else leaf, for_params)
        return {"found": outputs, "params": zeros, "images": for_images}

    return gradients


def layer_of(router: str) -> tuple[Any, Any, Any, Any]:
    """A layer as a function of parameters and tokens, these, and its noise."""
    options = {"capacity_factor": float("inf")} if router == "noisy_top_k" else {}
    start = {"expert_init": "independent", "seed": 0}
    layer = shared.layer_of(
        WIDTH, 16, 4, tokens=TOKENS, router=router, group_images=1, gelu="tanh", **start, router_options=options
    )
    params = jax.tree.map(lambda leaf: leaf.astype(float) if leaf.dtype == np.float32 else leaf, shared.initial(layer))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((IMAGES, TOKENS, WIDTH))
    noise = B.ROUTERS[router].noise(layer.options)
    drawn = None if noise is None else rng.uniform(0.1, 0.9, (IMAGES, *noise.shape))
    ids = {"ids": np.tile(np.arange(TOKENS, dtype="i4"), (IMAGES, 1))} if B.ROUTERS[router].requires == "ids" else {}

    def function(params: Any, x: Any, drawn: Any, ids: Any) -> Any:
        own = dict(params["router"])
        state = own.pop(STATE, None)
        output = B.ROUTERS[router].route(own, x, layer.options, state=state, noise=drawn, train=True, **ids)
        y = B.moe_mlp(x, output.routing, params["experts"])
        return (y * y).mean() + sum(output.losses.values()), (y, output.losses, output.metrics, output.statistics)

    return function, params, x, (drawn, ids)


def on_four(router: str, name: str) -> tuple[Any, Any, Any, Any]:
    """The layer of a router as a function, what it is given on one device and on four, and the mesh of these."""
    mesh, images, experts = on_mesh(name)
    function, params, x, rest = layer_of(router)
    four = (placed(mesh, params, experts), put(mesh, x, images), *put(mesh, rest, images))
    return function, (params, x, *rest), four, mesh


def traced(router: str) -> int:
    """How many all-to-alls the layer of a router and its gradients ask for, before it is compiled."""
    function, _, four, mesh = on_four(router, "experts")
    with jax.set_mesh(mesh):
        return jax.jit(gradient(function)).lower(*four).as_text().count("stablehlo.all_to_all")


def layer(router: str, name: str) -> dict[str, Any]:
    """The layer of a router, and its gradients."""
    function, one, four, mesh = on_four(router, name)
    with jax.set_mesh(mesh):
        forward = jax.jit(lambda *arguments: function(*arguments)[1][0]).lower(*four).compile().as_text()
    return {"forward": collectives_of(forward), **compared(gradient(function), one, four, mesh)}


def model(family: Any, config: Any) -> dict[str, Any]:
    """A whole model, its losses and gradients in training, with images split over all devices and all parameters on each."""
    mesh, split, _ = on_mesh("data")
    params = cases.params(config) if family is vit else family.init(config)
    size = config.image_size
    images = np.random.default_rng(0).standard_normal((IMAGES, size, size, config.channels))
    random = of_step(IMAGES, seed=0, step=3)

    def loss(params: Any, images: Any, random: Any) -> Any:
        drops = {"random": random} if getattr(config, "dropout", 0) else {}
        output = family.forward(B, config, params, images, train=True, **drops)
        return (output.logits**2).mean() + sum(output.losses.values()), (output.logits, output.losses, output.metrics)

    four = (put(mesh, params, PartitionSpec()), put(mesh, images, split), put(mesh, random, PartitionSpec()))
    return compared(gradient(loss), (params, images, random), four, mesh)


def automatic() -> dict[str, Any]:
    """A layer on a mesh with automatic axes, which are explicit for the layer."""
    mesh, images, experts = on_mesh("experts", AxisType.Auto)
    function, params, x, _ = layer_of("softmax_token_choice")
    y = lambda params, x: function(params, x, None, {})[1][0]  # noqa: E731
    specs = {"router": {"kernel": PartitionSpec()}, "experts": dict.fromkeys(params["experts"], experts)}
    want = jax.jit(y)(params, x)
    with jax.set_mesh(mesh):
        four = (placed(mesh, params, experts), put(mesh, x, images))
        program = jax.jit(jax.sharding.explicit_axes(y, in_sharding=(specs, images))).lower(*four).compile()
        got = program(*four)
        by_xla = collectives_of(jax.jit(y).lower(*four).compile().as_text())
    return {
        "want": B.to_numpy(want),
        "got": B.to_numpy(got),
        "sent": collectives_of(program.as_text()),
        "by_xla": by_xla,
    }


def modules() -> dict[str, Any]:
    """The layers for Flax, by its logical axes, and for Equinox."""
    mesh, images, experts = on_mesh("experts")
    settings: Any = {"tokens": TOKENS, "router": "softmax_expert_choice"}
    x = layer_of("softmax_expert_choice")[2]
    want = for_nnx.MoE(WIDTH, 16, 4, deterministic=True, **settings)(x)
    rules = [("expert", "expert"), ("embed", "data"), ("mlp", None)]
    with jax.set_mesh(mesh), nnx.logical_axis_rules(rules):
        moe = for_nnx.MoE(WIDTH, 16, 4, deterministic=True, **settings)
        split = str(jax.typeof(moe.experts["w1"].get_value()).sharding.spec)
        rows = put(mesh, x, images)
        flax = nnx.jit(lambda moe, x: moe(x))(moe, rows)
        other = for_equinox.MoE(WIDTH, 16, 4, inference=True, **settings)
        object.__setattr__(other, "experts", put(mesh, other.experts, experts))
        equinox, *_ = jax.jit(other.__call__)(rows)
    return {"want": np.array(want), "nnx": np.array(flax), "equinox": np.array(equinox), "split": split}


def fewer_groups() -> dict[str, Any]:
    """Images split over one axis of two, experts over the other."""
    mesh, _, experts = on_mesh("experts")
    function, params, x, rest = layer_of("soft_moe")
    four = (placed(mesh, params, experts), put(mesh, x, PartitionSpec("data")), *rest)
    return compared(gradient(function), (params, x, *rest), four, mesh)


def errors() -> dict[str, str]:
    """What is said of a group that several devices have, of groups that do not divide, and of MultiHash."""
    mesh, images, experts = on_mesh("experts")
    function, params, x, rest = layer_of("soft_moe")
    split = placed(mesh, params, experts)
    ids, tables = np.zeros((IMAGES, TOKENS), np.int32), np.zeros((2, 4), np.int32)
    calls = {
        "group": lambda: for_nnx.MoE(WIDTH, 16, 4, tokens=TOKENS, group_images=8)(put(mesh, x, images)),
        "groups": lambda: function(split, put(mesh, x[:2], PartitionSpec("data")), *rest),
        "multi_hash": lambda: B.multi_hash_mlp(put(mesh, x, images), ids, tables, split["experts"]),
    }
    with jax.set_mesh(mesh):
        return cases.messages(calls)


if __name__ == "__main__":
    main(*sys.argv[1:])
