"""Gradients, compilation and the training step, which uses optax and donates the state."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from moespec.backends.jax.optimizers import Leaves, exported, imported, transformation
from moespec.backends.optimizer import OptimizerConfig
from moespec.backends.pytrees import flatten, unflatten
from moespec.spec.checks import check_at_least
from moespec.spec.errors import ShapeError

__all__ = [
    "TrainState",
    "compile",
    "export_state",
    "finite_state",
    "import_state",
    "init_state",
    "make_step",
    "quick_compile",
    "recomputed",
    "state_average",
    "state_params",
    "value_and_grad",
]

Params = dict[str, Any]
Batch = Any
Metrics = dict[str, jax.Array]
LossFunction = Callable[..., tuple[Any, ...]]


def recomputed(function: Callable[..., Any]) -> Callable[..., Any]:
    """`jax.checkpoint(function)`."""
    return jax.checkpoint(function)


def compile(function: Callable[..., Any]) -> Any:
    """`jax.jit(function)`."""
    return jax.jit(function)


QUICK: dict[str, Any] = {"xla_backend_optimization_level": 0}
"""XLA options that shorten compilation for a CPU."""
if jax.__version_info__ < (0, 11):  # later versions of JAX lack this option
    QUICK["xla_cpu_use_fusion_emitters"] = False


def quick_compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles without XLA's optimisations, for a program that runs once. Inside another program, calls `function` directly."""
    compiled = jax.jit(function, compiler_options=QUICK)

    def call(*args: Any) -> Any:
        nested = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(args))
        return function(*args) if nested else compiled(*args)

    return call


class TrainState(NamedTuple):
    """The training state: parameters, the optimiser's state and configuration, and moving averages of parameters.

    A step donates the input state to JAX, so do not use the input state after the step.
    """

    params: Params
    optimizer: Any
    average: Leaves
    step: jax.Array
    config: "Static"


Step = Callable[[TrainState, Batch, float], tuple[TrainState, Metrics]]
StateUpdate = Callable[[Params, Any], Params]
Results = tuple[Metrics, list[Any]]
"""The metrics, including "loss", averaged over batch parts and devices, and the sums that the loss function returns."""
Gradients = Callable[..., tuple[Leaves, Results]]


def value_and_grad(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turns `function(params, *args) -> (loss, aux)` into a function that returns `((loss, aux), gradients of params)`."""
    return jax.value_and_grad(function, has_aux=True)


@jax.tree_util.register_static
@dataclass(frozen=True)
class Static:
    """The configuration of the optimiser, as a static part of the state."""

    optimizer: OptimizerConfig


def init_state(params: Mapping[str, Any], optimizer: OptimizerConfig) -> TrainState:
    """Returns the state before the first step, with copies of `params`, a nested dict of arrays."""
    owned = _copied(dict(params))
    trained, _ = split_params(owned, optimizer)
    average = _copied(trained) if optimizer.ema is not None else {}
    # With `jax.jit`, a single program creates the zeros of all shapes.
    slots = jax.jit(transformation(optimizer).init)(trained)
    return TrainState(owned, slots, average, jnp.zeros((), jnp.int32), Static(optimizer))


def state_params(state: TrainState) -> Params:
    """Returns the parameters for a forward pass. The parameters are valid until the next step consumes the state."""
    return state.params


def state_average(state: TrainState) -> Params:
    """Returns all parameters, each replaced by its moving average if it has one. The result is valid until the next step."""
    return unflatten({**flatten(state.params), **state.average})


def make_step(
    loss_function: LossFunction,
    optimizer: OptimizerConfig,
    *,
    accumulate: int = 1,
    averaged: bool = False,
    update_states: StateUpdate | None = None,
) -> Step:
    """Returns a compiled `step(state, batch, learning_rate) -> (state, metrics)` (see `moespec.backends.contract.Backend`).

    A new learning rate does not cause recompilation.
    """
    return compiled_step(gradients_of(loss_function, accumulate), optimizer, averaged=averaged, update=update_states)


def gradients_of(loss_function: LossFunction, accumulate: int) -> Gradients:
    """Returns `gradients(trained, frozen, batch) -> (gradients of the trained parameters, (metrics and "loss", sums))`.

    If the loss function uses averaged parameters, the last argument of `gradients` contains the moving averages (see `make_step`).
    """
    accumulate = check_at_least("accumulate", accumulate, 1)

    def of_leaves(trained: Leaves, frozen: Leaves, batch: Batch, *average: Leaves) -> tuple[jax.Array, Results]:
        loss, metrics, *sums = loss_function(unflatten({**trained, **frozen}), batch, *map(unflatten, average))
        found: Results = ({**metrics, "loss": loss}, sums)
        return loss, found

    gradient_of = value_and_grad(of_leaves)

    def evaluate(trained: Leaves, frozen: Leaves, batch: Batch, *average: Leaves) -> tuple[Leaves, Results]:
        (_, found), gradients = gradient_of(trained, frozen, batch, *average)
        return gradients, found

    def evaluate_parts(trained: Leaves, frozen: Leaves, batch: Batch, *average: Leaves) -> tuple[Leaves, Results]:
        def add(total: Leaves, part: Batch) -> tuple[Leaves, Results]:
            gradients, found = evaluate(trained, frozen, part, *average)
            return jax.tree.map(jnp.add, total, gradients), found

        zeros = jax.tree.map(jnp.zeros_like, trained)
        total, (metrics, sums) = jax.lax.scan(add, zeros, _split(batch, accumulate))
        means = jax.tree.map(lambda x: jnp.mean(x, axis=0), metrics)
        return jax.tree.map(lambda x: x / accumulate, total), (means, jax.tree.map(lambda x: jnp.sum(x, axis=0), sums))

    return evaluate if accumulate == 1 else evaluate_parts


def compiled_step(
    gradients_of: Gradients, optimizer: OptimizerConfig, *, averaged: bool = False, update: StateUpdate | None = None
) -> Step:
    """Compiles the step of `make_step`, which calls `gradients_of` to compute the gradients and the metrics."""
    chain = transformation(optimizer)

    def step(state: TrainState, batch: Batch, learning_rate: Any) -> tuple[TrainState, Metrics]:
        trained, frozen = split_params(state.params, optimizer)
        given = ({**trained, **frozen, **state.average},) if averaged else ()
        gradients, (metrics, sums) = gradients_of(trained, frozen, batch, *given)
        norm = jnp.sqrt(jnp.stack([jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(gradients)]).sum())
        if optimizer.clip is not None:
            factor = jnp.minimum(1, optimizer.clip / norm)
            gradients = jax.tree.map(lambda g: g * factor.astype(g.dtype), gradients)
        updates, moments = chain.update(gradients, state.optimizer, trained)
        moved = {
            path: p - (optimizer.rate_of(path) * learning_rate).astype(p.dtype) * updates[path]
            for path, p in trained.items()
        }
        done = state.step + 1
        ema = optimizer.ema_after(done.astype(jnp.result_type(float)), jnp)
        average = {path: ema * a + (1 - ema) * moved[path] for path, a in state.average.items()}
        updated = {} if update is None else flatten(update(state.params, *sums))
        new = TrainState(unflatten({**moved, **frozen, **updated}), moments, average, done, state.config)
        return new, {**metrics, "grad_norm": norm}

    compiled: Step = jax.jit(step, donate_argnums=0)

    @functools.wraps(compiled)
    def call(state: TrainState, batch: Batch, learning_rate: float) -> tuple[TrainState, Metrics]:
        # Converts to a Python float, because JAX compiles a new program for each type of number.
        return compiled(state, batch, float(learning_rate))

    return call


def export_state(state: TrainState) -> dict[str, Any]:
    """Exports the state bit for bit as nested dicts of NumPy arrays. The keys are `params`, the slots in use, and `step` (an int).

    bfloat16 arrays are exported in float32, which represents all bfloat16 numbers exactly.
    """
    return export_leaves(state, np.array)


def finite_state(state: TrainState) -> bool:
    """True if all numbers that `export_state` exports are finite on all devices."""
    leaves = export_leaves(state, lambda leaf: leaf)
    return bool(_finite([leaf for leaf in jax.tree.leaves(leaves) if isinstance(leaf, jax.Array)]))


@jax.jit
def _finite(leaves: list[jax.Array]) -> jax.Array:
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves]).all()


def export_leaves(state: TrainState, array: Callable[[jax.Array], Any]) -> dict[str, Any]:
    """Exports the state like `export_state`, but with `array(leaf)` in place of each leaf."""
    optimizer = state.config.optimizer
    slots = exported(state.optimizer, optimizer, flatten(state.params))
    trees = {"params": flatten(state.params), **slots, **({"ema": state.average} if state.average else {})}

    def wide(leaf: jax.Array) -> Any:
        return array(leaf.astype(jnp.float32) if leaf.dtype == jnp.bfloat16 else leaf)

    arrays = {name: unflatten({path: wide(leaf) for path, leaf in leaves.items()}) for name, leaves in trees.items()}
    return {**arrays, "step": int(state.step)}


def import_state(exported: Mapping[str, Any], optimizer: OptimizerConfig) -> TrainState:
    """Restores a state that `export_state` of any backend exported, bit for bit."""
    state = init_state(exported["params"], optimizer)
    slots = {name: flatten(tree) for name, tree in exported.items() if name not in ("params", "step")}
    average = _copied(slots.pop("ema", {}))
    return state._replace(
        optimizer=imported(state.optimizer, slots, exported["step"]),
        average=average,
        step=jnp.asarray(exported["step"], jnp.int32),
    )


def _copied(tree: Any) -> Any:
    # `may_alias` applies only to JAX arrays, so NumPy arrays are copied first.
    owned = jax.tree.map(lambda leaf: leaf if isinstance(leaf, jax.Array) else np.array(leaf, copy=True), tree)
    return jax.device_put(owned, may_alias=False)


def split_params(params: Params, optimizer: OptimizerConfig) -> tuple[Leaves, Leaves]:
    """Returns the trained parameters and the frozen parameters, by path."""
    leaves = flatten(params)
    trained = {path: leaf for path, leaf in leaves.items() if optimizer.rate_of(path)}
    return trained, {path: leaf for path, leaf in leaves.items() if path not in trained}


def _split(batch: Batch, parts: int) -> Batch:
    def split(leaf: Any) -> Any:
        if leaf.shape[0] % parts:
            raise ShapeError(f"batch: {leaf.shape[0]} examples cannot be split into accumulate={parts} equal parts")
        return leaf.reshape(parts, leaf.shape[0] // parts, *leaf.shape[1:])

    return jax.tree.map(split, batch)
