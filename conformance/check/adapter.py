"""An adapter is the interface to a kernel that computes a complete layer without exposing the steps of the layer.

    layer(x, params, options) -> output

x: tokens (groups, tokens, width) in the run's dtype.
params: `{"router": {"kernel"}, "experts": {"w1", "b1", "w2", "b2"}}` with the specification's shapes; the router of Soft MoE has `{"slots",
    "scale"}` instead. `params["router"]` also contains the state of a router: `bias` of `sigmoid_token_choice`,
    `penalty` of `relu`, `thresholds` of `batch_expert_choice`. The suite does not compare gradients with respect to the state.
options: `router`, the router's name; every field of the router's `Options` in `moespec.spec.ROUTERS`; `train`, whether the layer
    routes as in training; `gelu`, the form of GELU; `capacity`, the slots per expert. If `options["capacity"] >=
    options["tokens"]`, for example because `capacity_factor` is infinite, the layer drops no choice.
output: (groups, tokens, width).

A case counts as not implemented if `layer` raises NotImplementedError or `not_offered` declines the case; see `declined.py`. An adapter
without `from_numpy(tree, dtype)` receives NumPy arrays, cannot run in bfloat16, and may return a float64 output. `to_numpy(tree)` converts
results to NumPy. `with_dtype(dtype)` is a context manager that sets the dtype. The suite compares only the layer's output and gradients,
and runs no single steps, error cases, or cases with noise, token ids or recorded choices.
`__moespec_version__` is the version that the adapter follows.

The method `vjp` computes the gradients. If an adapter has no `vjp` and `from_numpy` returns torch or JAX arrays, that
framework differentiates `layer` with respect to x and all params.

    vjp(x, params, options, cotangent) -> (gradient of x, gradients of params)

cotangent: the loss's gradient with respect to the output, in the output's shape and the run's dtype. The gradients of params form a pytree
with the structure of params, but may omit the state. The compiled mode uses `compile(function)`, by default `torch.compile` or `jax.jit`.
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np

from moespec.conformance.check.target import Facts, Job, Target, Values, claimed
from moespec.conformance.compare import Dtype
from moespec.conformance.failure import NotOfferedError
from moespec.conformance.format import Case
from moespec.spec import ROUTERS
from moespec.spec.errors import ConfigError
from moespec.spec.values import present

__all__ = ["Adapter", "Kernel", "kernel"]


@dataclass(frozen=True)
class Framework:
    """The operations of torch or JAX on arrays.

    value_and_grad: transforms `f(params, rest) -> (scalar, more)` into a function that also returns the gradient of
    params, a dict of dicts. sum: returns the sum of an array. cast: converts an array to a named dtype. compile: compiles a function.
    """

    value_and_grad: Callable[..., Any]
    sum: Callable[..., Any]
    cast: Callable[..., Any]
    compile: Callable[..., Any]


def framework_of(array: Any) -> Framework | None:
    """Returns the framework of a torch tensor or JAX array, or None for another object. Imports neither framework."""
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and isinstance(array, torch.Tensor):
        return Framework(_torch_gradient, torch.sum, lambda x, dtype: x.to(getattr(torch, dtype)), torch.compile)
    if jax is not None and isinstance(array, jax.Array):

        def value_and_grad(function: Any) -> Any:
            return jax.value_and_grad(function, has_aux=True)

        return Framework(value_and_grad, jax.numpy.sum, lambda x, dtype: x.astype(dtype), jax.jit)
    return None


def _torch_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `value_and_grad` of a function; unused parameters have gradient 0. Raises NotOfferedError if no autograd graph exists."""
    torch = sys.modules["torch"]

    def differentiated(params: dict[str, dict[str, Any]], rest: Any) -> Any:
        leaves = {
            key: {name: array.detach().requires_grad_(array.is_floating_point()) for name, array in part.items()}
            for key, part in params.items()
        }
        value, more = function(leaves, rest)
        if not value.requires_grad:
            raise NotOfferedError("autograd cannot differentiate the layer, and the adapter has no vjp")
        flat = [array for part in leaves.values() for array in part.values()]
        slopes = iter(torch.autograd.grad(value, flat, materialize_grads=True))
        return (value, more), {key: {name: next(slopes) for name in part} for key, part in leaves.items()}

    return differentiated


@dataclass(frozen=True)
class Kernel:
    """The functions and declarations of an adapter that the suite uses."""

    layer: Callable[..., Any]
    vjp: Callable[..., Any] | None
    from_numpy: Callable[..., Any]
    to_numpy: Callable[..., Any]
    with_dtype: Callable[..., AbstractContextManager[Any]]
    compiler: Callable[..., Any] | None
    not_offered: dict[str, str]
    __moespec_version__: str

    @cached_property
    def framework(self) -> Framework | None:
        """The framework, torch or JAX, that differentiates and compiles functions of the adapter's arrays, or None for other arrays."""
        with self.with_dtype("float32"):
            return framework_of(self.from_numpy({"x": np.zeros(1, np.float32)}, "float32")["x"])

    @property
    def compile(self) -> Callable[..., Any]:
        """Returns the compiler of the adapter or, by default, of its framework. Raises NotOfferedError if the adapter has neither."""
        if self.compiler is None and self.framework is None:
            text = "an adapter without compile, whose arrays are neither torch's nor JAX's, is not compiled"
            raise NotOfferedError(text)
        return self.compiler or present("framework", self.framework).compile


def kernel(name: str) -> Kernel:
    """Returns the adapter `package.module` or `package.module:object`. If the object is a class, calls the class without arguments.

    Raises ConfigError if the module has no such adapter. Does not catch exceptions that the import of the module raises.
    """
    module, _, path = name.partition(":")
    adapter: Any = importlib.import_module(module)
    if path:
        try:
            adapter = attrgetter(path)(adapter)
        except AttributeError as error:
            raise ConfigError(f"the module {module!r} has no {path!r}") from error
    if isinstance(adapter, type):
        adapter = adapter()
    if not callable(getattr(adapter, "layer", None)):
        raise ConfigError("expected a method layer(x, params, options)")
    return Kernel(
        adapter.layer,
        getattr(adapter, "vjp", None),
        getattr(adapter, "from_numpy", _from_numpy),
        getattr(adapter, "to_numpy", lambda tree: tree),
        getattr(adapter, "with_dtype", lambda dtype: nullcontext()),
        getattr(adapter, "compile", None),
        getattr(adapter, "not_offered", {}),
        claimed(adapter),
    )


def _from_numpy(tree: Any, dtype: str) -> Any:
    if dtype == "bfloat16":
        raise ValueError("NumPy has no bfloat16, and the adapter has no from_numpy")
    if isinstance(tree, Mapping):
        return {name: _from_numpy(value, dtype) for name, value in tree.items()}
    return np.asarray(tree, dtype)


class Adapter(Target):
    """An adapter in one dtype; see the module's docstring."""

    kind = "adapter"
    declines = True

    def __init__(self, name: str, dtype: Dtype) -> None:
        self.name, self.dtype, self.module = name, dtype, kernel(name)

    @property
    def on_numpy(self) -> bool:
        """Whether the adapter computes with NumPy arrays because it has no `from_numpy`."""
        return bool(self.module.from_numpy is _from_numpy)

    def check_dtypes(self, results: Mapping[str, Any]) -> None:
        """Checks dtypes like `Target.check_dtypes`, but accepts all dtypes of NumPy arrays, because NumPy promotes float32 to float64."""
        if not self.on_numpy:
            super().check_dtypes(results)

    def copies(self, arrays: Values) -> Values:
        """Copies NumPy arrays. Copies no torch or JAX arrays, because an adapter's `to_numpy` need only accept the adapter's output."""
        return super().copies(arrays) if self.on_numpy else {}

    def facts(self) -> Facts:
        """Returns the target's properties. No function counts as missing, since an adapter raises NotImplementedError to decline a case."""
        return replace(super().facts(), missing={})

    @staticmethod
    def wanted(case: Case) -> Case:
        """Returns a router case with only the results of the layer, because an adapter computes nothing else. Drops state gradients."""
        if not _is_layer(case):
            return case
        *steps, layer = case.stages
        if wanted := case.gradients:
            by = {name: value for name, value in wanted.wrt.items() if not name.startswith("state/")}
            case = replace(case, gradients=replace(wanted, wrt=by))
        return replace(case, stages=(*(replace(stage, outputs={}) for stage in steps), layer))

    @staticmethod
    def lacks(job: Job, facts: Facts, dtype: Dtype) -> str:
        """Returns the reason why the adapter cannot run a job, or ""."""
        case = job.case
        if reason := facts.declared(case):
            return reason
        if case.expect is not None:
            return "error cases are not run on an adapter"
        if not _is_layer(case) or job.stage.name != case.stages[-1].name:
            return "an adapter computes whole layers"
        parts = {name.partition("/")[0] for name in case.inputs}
        taken = [name for name in ("noise", "ids", "choices") if name in parts]
        if not taken and case.gradients and case.gradients.losses:
            return "an adapter returns no losses"
        return f"an adapter takes no {taken[0]}" if taken else ""

    def without_gradients(self) -> str:
        """Returns the reason why the adapter has no gradients, or ""."""
        if self.module.vjp is not None or self.module.framework is not None:
            return ""
        return "an adapter without vjp, whose arrays are neither torch's nor JAX's, has no gradients"

    def derivative(self, job: Job) -> Callable[[Values, Any], Values] | None:
        """Returns a function that calls the adapter's `vjp` on the layer's arrays and a cotangent, or None if the adapter has no `vjp`."""
        if self.module.vjp is None:
            return None
        options = _options(job)

        def run(values: Values, cotangent: Any) -> Values:
            by_tokens, by_params = self._declining(self.module.vjp, values, options, cotangent)
            below = {f"{part}/{name}": array for part, tree in by_params.items() for name, array in tree.items()}
            return {"tokens": by_tokens, **below}

        return run

    def array_operations(self) -> Any:
        """Returns an object that offers `value_and_grad`, `sum` and `cast` for the adapter's arrays."""
        return self.module.framework

    def result(self, job: Job, compile: Any = None) -> Callable[[Values], Any]:
        """Returns a function that takes the layer's arrays and calls the adapter's `layer`."""
        options = _options(job)
        return lambda values: self._declining(self.module.layer, values, options)

    def _declining(self, method: Callable[..., Any], values: Values, options: Values, *more: Any) -> Any:
        """Calls a method of the adapter. Raises NotOfferedError if the method raises NotImplementedError."""
        params = {"router": _below("router", values) | _below("state", values), "experts": _below("experts", values)}
        try:
            return method(values["tokens"], params, options, *more)
        except NotImplementedError as error:
            raise NotOfferedError(str(error) or "NotImplementedError") from error


def _options(job: Job) -> Values:
    """The options that an adapter receives for the layer around a router."""
    route = next(each for each in job.case.stages if each.router)
    fields = ROUTERS[route.router].options(**route.options["options"])
    experts: Any = job.stage.arguments["experts"]
    train = route.options["train"]
    own = {"router": route.router, "train": train, "gelu": experts["options"]["gelu"]}
    return {**asdict(fields), **own, "capacity": fields.capacity(train=train)}


def _is_layer(case: Case) -> bool:
    """Whether a case ends with the layer around a router."""
    return case.expect is None and any(stage.router for stage in case.stages) and case.stages[-1].call == "moe_layer"


def _below(prefix: str, values: Values) -> Values:
    return {name.removeprefix(f"{prefix}/"): value for name, value in values.items() if name.startswith(f"{prefix}/")}
