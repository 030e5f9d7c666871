"""Gradients, compilation, and the training step, which updates the state in place."""

import functools
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from moespec.backends.optimizer import OptimizerConfig
from moespec.backends.pytrees import Path, flatten, tree_map, unflatten
from moespec.backends.torch import optimizers, private
from moespec.backends.torch.arrays import from_numpy, to_numpy, wide
from moespec.spec.checks import check_at_least
from moespec.spec.errors import ConfigError, ShapeError

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
    "trace",
    "value_and_grad",
]

Params = dict[str, Any]
Leaves = dict[Path, Tensor]
LossFunction = Callable[..., Any]
StateUpdate = Callable[[Params, Any], Params]
Results = tuple[dict[str, Tensor], list[Any]]
"""(metrics, sums): the metrics and "loss", averaged over the parts of a batch, and the sums that the loss function also returns."""

RECOMPILE_LIMIT = 64
"""The maximum number of combinations of shapes and options for which torch compiles a function. torch's default is 8."""


def compile(
    function: Callable[..., Any], *, compiler: str = "inductor", cuda_graph: bool = False
) -> Callable[..., Any]:
    """Compiles a pure function with `torch.compile(function, fullgraph=True)` and one of torch's compilers.

    cuda_graph: records the GPU operations once and replays them as a unit. The next call overwrites the results of the previous call.

    An invalid shape, dtype or option raises the specification's error, as without compilation. For a function from
    `value_and_grad`, the loss is compiled together with its backward pass.
    """
    if hasattr(function, "_loss"):
        return value_and_grad(compile(function._loss, compiler=compiler))
    more: Any = {"options": {"triton.cudagraphs": True}} if cuda_graph else {}
    compiled = torch.compile(function, fullgraph=True, backend=compiler, **more)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return function(*args, **kwargs)
        try:
            # Numbers in a configuration are static; otherwise torch would make a number dynamic when its value changes.
            with private.of_dynamo("config.patch")(
                recompile_limit=RECOMPILE_LIMIT, specialize_float=True, specialize_int=True
            ):
                if cuda_graph:
                    torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
                return compiled(*args, **kwargs)
        except private.of_dynamo("exc.Unsupported"):
            # torch reports only that tracing raised an exception. Running the function op by op raises the original exception.
            function(*args, **kwargs)
            raise

    return call


def _not_recorded() -> int:
    """The number of programs that torch could not record as CUDA graphs."""
    return int(private.of_dynamo("utils.counters")["inductor"]["cudagraph_skips"])


def recomputed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Applies `torch.utils.checkpoint` without saving torch's random state, which no function here uses."""
    return functools.partial(checkpoint, function, use_reentrant=False, preserve_rng_state=False)


def quick_compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """Like `compile`, but without code generation: the complete graph and its gradient are traced, then run op by op."""
    return compile(function, compiler="aot_eager")


def trace(function: Callable[..., Any]) -> Callable[..., Any]:
    """Runs `function` once on tensors without values for each set of shapes, then op by op. The arguments are pytrees of tensors.

    `trace` takes less time than `quick_compile`. Code that needs the values of a tensor (`.item()`, `if`, a shape that
    depends on values) raises an error, and so does an operator without a shape rule. `torch.compiler.is_compiling()` is
    true in both runs. For a function from `value_and_grad`, both runs include the backward pass. `trace` tests
    neither Dynamo (unsupported Python, guards) nor the code that a compiler generates.
    """
    traced: set[str] = set()

    def call(*args: Any) -> Any:
        key = str(tree_map(lambda leaf: (leaf.shape, leaf.dtype), args))
        with private.tracing():
            if key not in traced:
                mode = private.TracingMode(allow_non_fake_inputs=True)
                with mode:
                    function(*tree_map(mode.from_tensor, args))
                traced.add(key)
            return function(*args)

    return call


def value_and_grad(function: Callable[..., tuple[Tensor, Any]]) -> Callable[..., tuple[tuple[Tensor, Any], Params]]:
    """Turns `function(params, *args) -> (loss, aux)` into a function that returns `((loss, aux), gradients)`.

    The gradients are a nested dict like `params`, with zeros for parameters that the loss does not depend on.
    """

    def evaluate(params: Params, *args: Any) -> tuple[tuple[Tensor, Any], Params]:
        leaves = {path: leaf.detach().requires_grad_() for path, leaf in flatten(params).items()}
        loss, aux = function(unflatten(leaves), *args)
        if not loss.requires_grad:  # the loss depends on no parameter
            return (loss, _detached(aux)), tree_map(torch.zeros_like, params)
        gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
        return (loss.detach(), _detached(aux)), unflatten(dict(zip(leaves, gradients, strict=True)))

    evaluate._loss = function  # type: ignore[attr-defined]  # for `compile`
    return evaluate


def _detached(tree: Any) -> Any:
    return tree_map(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, tree)


@dataclass
class TrainState:
    """The training state: the parameters (trained parameters are autograd leaves), the optimiser and its configuration,
    the moving averages of parameters, and the number of updates. A step changes the state in place."""

    params: Params
    optimizer: torch.optim.Optimizer
    config: OptimizerConfig
    average: Leaves
    step: int

    def trained(self) -> Leaves:
        """The trained parameters, by path."""
        return {path: leaf for path, leaf in flatten(self.params).items() if leaf.requires_grad}

    def shape_of(self, path: Path, leaf: Tensor) -> tuple[int, ...]:
        """The shape of the complete parameter at `path`. In this class, `leaf` is the complete parameter."""
        return tuple(leaf.shape)


def init_state(params: Params, optimizer: OptimizerConfig) -> TrainState:
    """The state before the first step. `params`: nested dict of NumPy arrays or tensors, which are copied."""
    owned = flatten(from_numpy(params))
    slots: dict[str, Leaves] = {}
    for path, leaf in owned.items():
        for slot, shape in optimizer.slots(path, tuple(leaf.shape)).items():
            slots.setdefault(slot, {})[path] = leaf if slot == "ema" else leaf.new_zeros(shape)
    trees = {name: unflatten(leaves) for name, leaves in slots.items()}
    return import_state({"params": unflatten(owned), **trees, "step": 0}, optimizer)


def state_params(state: TrainState) -> Params:
    """Returns the parameters for a forward pass, without gradient. The next step changes the returned tensors in place."""
    params: Params = _detached(state.params)
    return params


def state_average(state: TrainState) -> Params:
    """Returns the moving average of each parameter, or the parameter if there is no average. The next step changes the tensors in place."""
    return unflatten({**flatten(_detached(state.params)), **state.average})


def export_state(state: TrainState) -> dict[str, Any]:
    """Returns the state as NumPy arrays, bit for bit: nested dicts for `params` and the slots in use, and the integer `step`.

    bfloat16 arrays are exported in float32, which represents them exactly.
    """
    trees = {slot: unflatten(leaves) for slot, leaves in kept_leaves(state).items()}
    return {**to_numpy(trees), "step": state.step}


def finite_state(state: TrainState) -> bool:
    """True if all numbers of the state on this process are finite."""
    leaves = [leaf for kept in kept_leaves(state).values() for leaf in kept.values()]
    return bool(torch.stack([leaf.isfinite().all() for leaf in leaves]).all())


def kept_leaves(state: TrainState) -> dict[str, Leaves]:
    """Returns the tensors of a state: the parameters as "params", and the optimiser's arrays by slot."""
    trees = {"params": flatten(state.params)}
    for path, leaf in state.trained().items():
        for slot in state.config.slots(path, state.shape_of(path, leaf)):
            average = slot == "ema"
            value = state.average[path] if average else optimizers.kept(state.optimizer, leaf, slot)
            trees.setdefault(slot, {})[path] = value
    return trees


def import_state(exported: dict[str, Any], optimizer: OptimizerConfig) -> TrainState:
    """Restores a state that `export_state` of any backend exported, bit for bit."""
    leaves, step = flatten(from_numpy(exported["params"])), int(exported["step"])
    slots = {name: flatten(from_numpy(tree)) for name, tree in exported.items() if name not in ("params", "step")}
    average = slots.pop("ema", {})
    trained = {path: leaf.requires_grad_() for path, leaf in leaves.items() if optimizer.rate_of(path)}
    torch_optimizer = optimizers.make(optimizer, trained)
    for path, leaf in trained.items():
        moments = {slot: values[path] for slot, values in slots.items() if path in values}
        optimizers.keep(optimizer, torch_optimizer, leaf, moments, step)
    return TrainState(unflatten(leaves), torch_optimizer, optimizer, average, step)


def make_step(
    loss_function: LossFunction,
    optimizer: OptimizerConfig,
    *,
    accumulate: int = 1,
    averaged: bool = False,
    update_states: StateUpdate | None = None,
    compiled: bool = True,
    cuda_graph: bool = False,
) -> Callable[[TrainState, Any, float], tuple[TrainState, dict[str, Tensor]]]:
    """`step(state, batch, learning_rate) -> (state, metrics)`: see `moespec.backends.contract.Backend`.

    The step updates the state in place and returns the state. Metrics stay on the device. The forward and backward pass of the loss are
    compiled; a new learning rate causes no recompilation. compiled: if False, runs op by op, without compiling.
    cuda_graph: as for `compile`; requires `accumulate=1`. If torch cannot record a graph, the step warns and runs without a graph.
    """
    check_at_least("accumulate", accumulate, 1)
    if cuda_graph and (accumulate > 1 or not compiled):
        raise ConfigError(
            f"cuda_graph=True: expected compiled=True and accumulate=1, got {compiled!r} and {accumulate!r}"
        )
    evaluate = compile(loss_function, cuda_graph=cuda_graph) if compiled else loss_function

    def step(state: TrainState, batch: Any, learning_rate: float) -> tuple[TrainState, dict[str, Tensor]]:
        trained = state.trained()
        average = (state_average(state),) if averaged else ()
        before = _not_recorded()
        metrics, sums = set_gradients(evaluate, (state.params, *average), trained, batch, accumulate)
        if cuda_graph and _not_recorded() > before:
            warnings.warn("the step has no CUDA graph; set TORCH_LOGS=perf_hints to see why", stacklevel=2)
        metrics["grad_norm"] = norm_of(leaf.grad for leaf in trained.values())
        if cuda_graph:
            metrics = {name: value.clone() for name, value in metrics.items()}
        update(state, metrics["grad_norm"], learning_rate, update_states, sums)
        return state, metrics

    return step


def set_gradients(
    evaluate: LossFunction, given: Sequence[Params], trained: Leaves, batch: Any, parts: int, *, share: float = 1.0
) -> Results:
    """Sets `.grad` of the leaves `trained` to the mean gradient over `parts` equal parts of a batch, times `share`.

    Returns the metrics and "loss", averaged over the parts, and the sums that the loss function returns, added over the
    parts. given: the parameters for `evaluate`, which include `trained`, and optionally their moving averages.
    """
    for leaf in trained.values():
        leaf.grad = None
    reported = [_accumulate_gradient(evaluate, given, part, share / parts) for part in _split(batch, parts)]
    for leaf in trained.values():
        if leaf.grad is None:
            leaf.grad = torch.zeros_like(leaf)
    if parts == 1:
        return reported[0]
    means = {name: torch.stack([part[name] for part, _ in reported]).mean(dim=0) for name in reported[0][0]}
    totals = [flatten(each) for _, sums in reported for each in sums]
    return means, [unflatten({path: sum(each[path] for each in totals) for path in totals[0]})] if totals else []


def _accumulate_gradient(evaluate: LossFunction, given: Sequence[Params], part: Any, share: float) -> Results:
    """Adds the gradient of `share` times the loss of this part to `.grad`. Returns the metrics and sums of the part."""
    loss, metrics, *sums = evaluate(given[0], part, *given[1:])
    torch.autograd.backward(loss * share)
    return {**_detached(metrics), "loss": loss.detach()}, _detached(sums)


def norm_of(gradients: Iterable[Tensor | None]) -> Tensor:
    """Returns the joint norm of the tensors, in float32 or better."""
    present = [gradient for gradient in gradients if gradient is not None]
    norms = private.foreach_norm(present, dtype=wide(*(gradient.dtype for gradient in present)))
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm


def update(
    state: TrainState, norm: Tensor, learning_rate: float, states: StateUpdate | None = None, sums: Sequence[Any] = ()
) -> None:
    """Multiplies the gradients by `min(1, clip / norm)`, then updates the state with them. `norm` is the global norm of the gradients."""
    if states is not None:
        leaves = flatten(state.params)
        for path, leaf in flatten(states(state.params, *sums)).items():
            leaves[path].copy_(leaf)
    trained, config = state.trained(), state.config
    if config.clip is not None:
        gradients = [leaf.grad for leaf in trained.values() if leaf.grad is not None]
        private.foreach_mul(gradients, (config.clip / norm).clamp(max=1.0))
    for group in state.optimizer.param_groups:
        group["lr"] = learning_rate * group["rate"]
    state.optimizer.step()
    if config.ema is not None:
        with torch.no_grad():
            average, decay = list(state.average.values()), float(config.ema_after(state.step + 1))
            private.foreach_mul(average, decay)
            private.foreach_add(average, [trained[path] for path in state.average], alpha=1 - decay)
    state.step += 1


def _split(batch: Any, parts: int) -> list[Any]:
    """Splits `batch` into `parts` equal parts along the leading axis of its arrays."""
    if parts == 1:
        return [batch]

    def part(index: int) -> Callable[[Tensor], Tensor]:
        def take(leaf: Tensor) -> Tensor:
            if leaf.shape[0] % parts:
                raise ShapeError(f"batch: {leaf.shape[0]} examples cannot be split into accumulate={parts} equal parts")
            size = leaf.shape[0] // parts
            return leaf[index * size : (index + 1) * size]

        return take

    return [tree_map(part(index), batch) for index in range(parts)]
