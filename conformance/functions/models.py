"""Models, their training, and optimiser steps, as functions of arrays.

A model calls functions of a backend and, like a target, is loaded by name. In a bfloat16 run, the model computes in
bfloat16, but parameters stay in float32. The training loop runs outside compiled code, as in a user's program. The
target's `compile` compiles the loss, and the target's `make_step` may compile the rest of the step.
"""

import importlib
import inspect
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.backends.contract import Backend
from moespec.conformance.format import routing_arrays
from moespec.conformance.functions.describe import DENSE, SLOTS, Choice, Function, Output

__all__ = ["BLOCKS", "FUNCTIONS", "prepare"]

BLOCKS = 4
CONFIGS = {"vit": "VitConfig", "mixer": "MixerConfig", "sparse_mlp": "SparseMlpConfig"}
"""Maps the module name of each model to the name of its configuration class."""
KEPT = (1, 5)
"""The parameters after these steps, and after the last step, are results of the case."""


def prepare(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return a model's module and configuration, from the options `model` and optionally `dtype`.
    Call this function outside compiled code."""
    rest = {key: value for key, value in options.items() if key != "dtype"}
    module = importlib.import_module(f"moespec.models.{name}")
    with warnings.catch_warnings(action="ignore"):  # ignores warnings that a router trains badly
        config = getattr(module, CONFIGS[name])(**options["model"], dtype=options.get("dtype", "float32"))
    return {**rest, "model": module, "config": config}


def _forward(
    B: Backend,
    *,
    params: Any,
    images: Array,
    model: Any,
    config: Any,
    noise: Array | None = None,
    random: Any = None,
    train: bool = False,
) -> dict[str, Any]:
    """Return a model's results by name. noise: maps the number of each MoE layer to its noise. random: the key for dropout."""
    drawn = [noise[number] for number in sorted(noise)] if noise else None
    output = model.forward(B, config, params, images, noise=drawn, random=random, train=train)
    sparse = getattr(config, "router", "") != "soft_moe"
    results = {"logits": output.logits, "features": output.features}
    results |= {f"losses/{term}": value for term, value in output.losses.items()}
    for block, routing in enumerate(output.routings):
        results |= {f"block{block}/{part}": array for part, array in routing_arrays(routing, sparse=sparse).items()}
    return results


def _forward_function(name: str, *needs: str, routed: bool = True) -> Function:
    """Describe a model's forward pass as a function. needs: the public names that a target must define."""

    def output(axes: str = "") -> Output:
        return Output(axes, scale="spread", constant="model", rounded=True)

    outputs = {"logits": output("images classes"), "features": output("images width"), "losses/*": output()}
    for block in range(BLOCKS if routed else 0):
        outputs |= {
            f"block{block}/slots": Output("groups experts capacity", "int"),
            f"block{block}/weights": output("groups experts capacity"),
            f"block{block}/dispatch": output(DENSE),
            f"block{block}/combine": output(DENSE),
        }
    return Function(
        f"{name}_forward",
        outputs,
        Choice(_forward, scale="spread", constant="model") if routed else None,
        run=_forward,
        needs=needs,
        prepare=partial(prepare, name),
        batched=True,
    )


def _trainer(options: dict[str, Any]) -> dict[str, Any]:
    """Return the prepared options: the model and the optimiser."""
    optimizer = importlib.import_module("moespec.backends.optimizer").OptimizerConfig(**options["optimizer"])
    return {**prepare("vit", options), "optimizer": optimizer}


def _loss(B: Backend, model: Any, config: Any, *, train: bool, metrics: bool) -> Callable[[Any, Any], Any]:
    """Return the loss function of a batch. The function also returns the summed statistics and, if `metrics`, the routing."""
    from moespec.models.layers import returned  # most cases do not need this module

    def loss_function(params: Any, batch: Any) -> tuple[Any, ...]:
        output = model.forward(B, config, params, batch["images"], train=train)
        loss = B.mean(B.softmax_cross_entropy(output.logits, batch["targets"]), 0)
        for term in output.losses.values():
            loss = loss + term
        if not metrics:
            return returned(loss, {}, output.statistics)
        (routing,) = [routing.dense() for routing in output.routings]
        return returned(loss, routing_arrays(routing, sparse=config.router != "soft_moe"), output.statistics)

    return loss_function


def _trained(
    B: Backend,
    *,
    params: Any,
    images: Array,
    targets: Array,
    model: Any,
    config: Any,
    optimizer: Any,
    rates: Any,
    batch: int,
    accumulate: int = 1,
    train: bool = False,
    compile: Callable[[Any], Any] = lambda function: function,
    before: Callable[[Any, Any], None] = lambda params, images: None,
) -> dict[str, Any]:
    """Train for one step per entry of `rates`, on consecutive batches of `batch` images.

    accumulate: number of micro-batches whose gradients are averaged. train: passed to the model.
    before: called before each step with the current parameters and images.
    """
    from moespec.models.layers import state_update

    # `compile` compiles the loss for all targets, so `make_step` need not compile the loss again.
    options: dict[str, Any] = {"compiled": False} if "compiled" in inspect.signature(B.make_step).parameters else {}
    options |= {"accumulate": accumulate} if accumulate > 1 else {}
    options |= state_update(B, model.moe_layers(config, batch // accumulate))
    loss = _loss(B, model, config, train=train, metrics=accumulate == 1)  # a step would average micro-batches' routings
    step = B.make_step(compile(loss), optimizer, **options)
    state = B.init_state(params, optimizer)
    metrics: list[dict[str, Any]] = []
    results: dict[str, Any] = {}
    for n, rate in enumerate(rates):
        start = n * batch % images.shape[0]
        part = {"images": images[start : start + batch], "targets": targets[start : start + batch]}
        before(B.state_params(state), part["images"])
        state, found = step(state, part, rate)
        metrics.append(B.to_numpy(found))
        if n + 1 in (*KEPT, len(rates)):
            results[f"parameters/{n + 1}"] = _flat(B.export_state(state)["params"])
    each = {name: np.stack([np.asarray(one[name]) for one in metrics]) for name in metrics[0]}
    return {"losses": each.pop("loss"), "gradient_norms": each.pop("grad_norm"), **each, **results}


def _flat(tree: Any) -> Any:
    """Concatenate all parameters into one vector, sorted by name."""
    if isinstance(tree, dict):
        return np.concatenate([_flat(tree[name]) for name in sorted(tree)])
    return np.asarray(tree).ravel()


def _passes(B: Backend, *, model: Any, config: Any, train: bool = False, **options: Any) -> None:
    """Run the forward pass of each training step on `B`, while the reference computes the steps."""

    def forward(params: Any, images: Array) -> None:
        model.forward(B, config, params, images, train=train)

    reference = importlib.import_module("moespec.backends.numpy")
    _trained(reference, model=model, config=config, train=train, before=forward, **options)


_trajectory = partial(Output, scale="spread", constant="trajectory", rounded=True)

TRAJECTORY = {
    "losses": _trajectory("steps"),
    "gradient_norms": _trajectory("steps"),
    "slots": Output("steps " + SLOTS["slots"].axes, "int"),
    "weights": _trajectory("steps " + SLOTS["weights"].axes),
    "dispatch": _trajectory(f"steps {DENSE}"),
    "combine": _trajectory(f"steps {DENSE}"),
    "parameters/*": _trajectory("parameters"),
}


def _optimizer(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with the optimiser. The options contain no dtype, since optimiser steps always use float32."""
    optimizer = importlib.import_module("moespec.backends.optimizer").OptimizerConfig(**options["optimizer"])
    return {"optimizer": optimizer, "rates": options["rates"], **{k: options[k] for k in ("compile",) if k in options}}


def _stepped(
    B: Backend,
    *,
    params: Any,
    gradients: Any,
    optimizer: Any,
    rates: Any,
    compile: Callable[[Any], Any] = lambda function: function,
) -> dict[str, Any]:
    """Run one optimiser step per entry of `rates`. gradients: arrays with a leading axis of steps."""

    def loss_function(params: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
        leaves = [(value * batch[name][key][0]).sum() for name, part in params.items() for key, value in part.items()]
        return sum(leaves[1:], leaves[0]), {}

    options: dict[str, Any] = {"compiled": False} if "compiled" in inspect.signature(B.make_step).parameters else {}
    step = B.make_step(compile(loss_function), optimizer, **options)
    state, parameters, metrics = B.init_state(params, optimizer), [], []
    for n, rate in enumerate(rates):
        batch = {name: {key: g[n : n + 1] for key, g in part.items()} for name, part in gradients.items()}
        state, found = step(state, batch, rate)
        parameters.append(_flat(B.export_state(state)["params"]))
        metrics.append(B.to_numpy(found))
    exported = B.export_state(state)
    kept = {f"kept/{name}": _flat(tree) for name, tree in exported.items() if name not in ("params", "step")}
    return {
        "parameters": np.stack(parameters),
        "gradient_norms": np.stack([np.asarray(found["grad_norm"]) for found in metrics]),
        **kept,
    }


_stepping = partial(Output, scale="spread", constant="trajectory", rounded=True)

FUNCTIONS = (
    _forward_function("vit", "ROUTERS", "moe_layer", "attention", "convolution", "layer_norm", "patch_embed"),
    _forward_function("mixer", "layer_norm", "patch_embed", "transpose", "gelu", routed=False),
    _forward_function("sparse_mlp", "ROUTERS", "moe_layer", "rescale", "layer_norm", "patch_embed", "transpose"),
    Function(
        "vit_train",
        TRAJECTORY,
        Choice(_passes, scale="magnitude", constant="drift"),
        run=_trained,
        needs=(
            *("make_step", "init_state", "state_params", "export_state"),
            *("ROUTERS", "moe_layer", "softmax_cross_entropy"),
        ),
        prepare=_trainer,
        traced=False,
        compiles=True,
        batched=True,
        pooled=True,
    ),
    Function(
        "optimizer_steps",
        {
            "parameters": _stepping("steps parameters"),
            "gradient_norms": _stepping("steps"),
            "kept/*": _stepping("parameters"),
        },
        run=_stepped,
        needs=("make_step", "init_state", "export_state"),
        prepare=_optimizer,
        traced=False,
        compiles=True,
        batched=True,
    ),
)
