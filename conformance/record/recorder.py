"""Records the results of gates, with forward hooks on torch modules or with `tap` in code of any framework.

The output of a gate module has no standard form, so dtypes and widths identify each array:

    logits                                     a linear layer
    (logits, weights, indices), in any order   transformers' Mixtral, Qwen2-MoE, OLMoE, DeepSeek-V3
    (weights, indices)
    (one-hot, weights (..., 1), logits)        transformers' Switch
    dense weights (..., E), with zeros, and logits, or alone    transformers' Llama 4 and NLLB

If widths are ambiguous (for example, if a token chooses all experts), recording raises an error unless a function `outputs` is passed.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from moespec.conformance.failure import Failure
from moespec.conformance.record.file import PARTS, Gate, write
from moespec.models.checks import check_output
from moespec.models.errors import RunError
from moespec.spec.errors import ConfigError
from moespec.spec.own import own_function

__all__ = ["Recorder", "arrays_of", "record", "recording", "rows", "tap"]

BIASES = ("e_score_correction_bias", "expert_bias", "correction_bias")
"""Names of the parameter or buffer that a gate adds to the scores for the choice, but not for the weights."""
Adapter = Callable[[Any, Any, Any], Mapping[str, Any]]
MOST = 12
"""The maximum number of modules that the error lists if a pattern matches no module."""


class Recorder:
    """Stores the calls of gates whose names match a pattern, in chronological order."""

    active: "Recorder | None" = None

    def __init__(self, pattern: str = "*", adapter: Adapter | None = None) -> None:
        self.pattern, self.adapter = pattern, adapter
        self.calls: dict[str, list[tuple[dict[str, Any], dict[str, str]]]] = {}
        self.names: list[str] = []
        self.hooks: list[Any] = []

    def attach(self, model: Any) -> None:
        """Hook the matching modules of a torch model."""
        for name, module in self.matching(model).items():
            self.hook(name, module, module)

    def hook(self, name: str, module: Any, owner: Any) -> None:
        """Record a gate under a name. owner: the gate, or the block around it, which may have the selection bias."""
        self.hooks.append(module.register_forward_hook(partial(self._heard, name, owner)))
        self.names.append(name)

    def matching(self, model: Any) -> dict[str, Any]:
        """Return the matching modules of a torch model. If no module matches, raise a ConfigError that lists likely gates."""
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(model, torch.nn.Module):
            raise ConfigError(f"model={model!r:.80}: expected an instance of torch.nn.Module")
        modules = {name: module for name, module in model.named_modules() if name}
        matching = [name for name in modules if fnmatchcase(name, self.pattern)]
        if not matching:
            kinds = {name: f"{name} {type(module).__name__}" for name, module in modules.items()}
            gates = [name for name, kind in kinds.items() if re.search("gate|router", kind, re.IGNORECASE)]
            shown = dict.fromkeys(re.sub(r"(?<![^.])\d+(?![^.])", "*", name) for name in gates or kinds)
            which = "modules with gate or router in the name" if gates else "no module name has gate or router; modules"
            names = ", ".join([*shown][:MOST]) or "none"
            raise ConfigError(f"module={self.pattern!r}: matches no module; {which}: {names}")
        return {name: modules[name] for name in matching}

    def _heard(self, name: str, owner: Any, module: Any, inputs: Any, output: Any) -> None:
        try:
            given = (self.adapter or (lambda _, i, o: recognised(i, o)))(module, inputs, output)
            if not isinstance(given, Mapping):
                raise ValueError(f"outputs returned {given!r:.80}, expected a dict with keys from {', '.join(PARTS)}")
            named = (*owner.named_buffers(), *owner.named_parameters())
            bias = next((array for each, array in named if each.split(".")[-1] in BIASES), None)
            self.note(name, {"bias": bias, **given})
        except ValueError as error:
            raise RunError(f"{name}: {error}; name its results with outputs=FUNCTION") from error

    def note(self, name: str, given: Mapping[str, Any]) -> None:
        """Record one call."""
        if unknown := given.keys() - set(PARTS):
            raise ValueError(f"{sorted(unknown)[0]!r}: expected {', '.join(PARTS)}")
        self.calls.setdefault(name, []).append(rows(given))

    def gates(self) -> list[Gate]:
        """Return all recorded gates. Raises RunError if nothing was recorded or if no gate can compute the recorded values."""
        if not self.calls:
            reason = f"none of {', '.join(self.names[:5])} was called" if self.names else "the model never called tap"
            raise RunError(f"nothing was recorded: {reason}")
        try:
            return [_joined(name, calls) for name, calls in self.calls.items()]
        except ValueError as error:
            raise RunError(f"nothing was written: {error}") from error


def _joined(name: str, calls: list[tuple[dict[str, Any], dict[str, str]]]) -> Gate:
    """Concatenate a gate's calls. If calls have different numbers of choices, -1 fills the missing entries."""
    widths = [
        {part: a.shape[-1] if part in ("logits", "bias") else 0 for part, a in arrays.items()} for arrays, _ in calls
    ]
    kinds = {tuple(sorted(width.items())) for width in widths}
    if len(kinds) > 1:
        raise ValueError(f"{name}: arrays differ between calls: {' and '.join(map(str, sorted(kinds)[:2]))}")
    sizes = tuple(len(next(array for part, array in arrays.items() if part != "bias")) for arrays, _ in calls)
    joined = {}
    for part in calls[0][0]:
        arrays = [arrays[part] for arrays, _ in calls]
        if part == "bias":
            if any((each != arrays[0]).any() for each in arrays):
                raise ValueError(f"{name}: the bias changes between calls; do not train the model while recording")
            joined[part] = arrays[0]
            continue
        most, fill = max(each.shape[1] for each in arrays), -1 if part == "choices" else 0
        wide = [np.pad(each, ((0, 0), (0, most - each.shape[1])), constant_values=fill) for each in arrays]
        joined[part] = np.concatenate(wide)
    return Gate(name, sizes, calls[0][1], **joined)


def tap(name: str, *, layer: Any = None, **given: Any) -> None:
    """Record a gate's results if a recording is active and the name matches the pattern. Otherwise, do nothing.

    layer: a number that is appended to the name. JAX may compute the number at run time, as in a scan over layers.
    given: `logits` (..., experts), `choices` (..., choices), `weights` of the choices or (..., experts), `bias`
    (experts,), as NumPy, torch or JAX arrays. In a function that JAX compiles, `tap` becomes an ordered callback.
    """
    recorder = Recorder.active
    if recorder is None:
        return
    jax = sys.modules.get("jax")
    if jax is not None and any(isinstance(array, jax.core.Tracer) for array in (layer, *given.values())):
        jax.experimental.io_callback(partial(_noted, name), None, layer, given, ordered=True)
    else:
        _noted(name, layer, given)


def _noted(name: str, layer: Any, given: Mapping[str, Any]) -> None:
    whole = name if layer is None else f"{name}.{int(layer)}"
    if Recorder.active is not None and fnmatchcase(whole, Recorder.active.pattern):
        Recorder.active.note(whole, given)


@contextmanager
def recording(
    path: Path | str, model: Any = None, module: str = "*", outputs: Adapter | None = None
) -> Iterator[Recorder]:
    """Record all gates that run in this context and write the recording at the end. After an exception, no file is written.

    model: the torch model whose matching modules are hooked. module: a shell-style pattern for names of modules and taps.
    outputs: a function that converts outputs of unknown form:
    `outputs(module, inputs, output) -> {"logits": ..., "choices": ..., "weights": ..., "bias": ...}`.

    Raises RunError if another recording is in progress, a module's output does not fit a gate, nothing was recorded, or
    the path cannot be written. Raises ConfigError if no module matches.
    """
    check_output("path", Path(path))
    if Recorder.active is not None:
        raise RunError("another recording is in progress")
    jax = sys.modules.get("jax")
    if jax is not None:
        jax.clear_caches()  # functions that were compiled earlier contain no taps
    recorder = Recorder.active = Recorder(module, outputs)
    try:
        if model is not None:
            recorder.attach(model)
        yield recorder
        jax = sys.modules.get("jax")
        if jax is not None:
            jax.effects_barrier()
    finally:
        Recorder.active = None
        for hook in recorder.hooks:
            hook.remove()
    write(Path(path), recorder.gates())


def record(
    target: str,
    module: str | None,
    data: str | None,
    path: Path,
    outputs: str | None,
    attach: Callable[[Recorder, Any], None] = Recorder.attach,
) -> list[Gate]:
    """Run the model `package:model` on data and return the recorded gates; see docs/recording.md. attach: hooks a torch model.

    Raises ConfigError if a name cannot be imported or no gate matches. Raises RunError if the model raises an exception.
    """
    adapter = own_function("outputs", outputs, load=True) if outputs else None
    model: Any = own_function("model", target, load=True)
    with recording(path, None, module or "*", adapter) as recorder:
        if inspect.isclass(model) and _takes_data(model):
            raise ConfigError(f"model={target!r}: this class needs arguments; pass a function that creates the model")
        if inspect.isclass(model) or not (hasattr(model, "named_modules") or _takes_data(model)):
            model = _called(target, "", model)
        torch = sys.modules.get("torch") if hasattr(model, "named_modules") else None
        if torch is not None:
            if missing := [name for name, value in (("module", module), ("data", data)) if value is None]:
                raise ConfigError(f"{missing[0]}=None: a torch model needs --module and --data")
            attach(recorder, model)
            model.eval()
        with torch.no_grad() if torch is not None else nullcontext():
            for i, batch in enumerate(_batches(data, torch) if callable(model) else ()):
                named = batch if isinstance(batch, Mapping) else {}
                placed = () if named is batch else batch if isinstance(batch, tuple) else (batch,)
                _called(target, f" in batch {i}", model, *placed, **named)
    return recorder.gates()


def _takes_data(function: Any) -> bool:
    """Return whether a function has parameters without defaults."""
    try:
        inspect.signature(function).bind()
    except TypeError:
        return True
    return False


def _called(name: str, where: str, function: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
    """Call a user's function and return the result. If the function raises an exception, raise RunError with the traceback."""
    try:
        return function(*arguments, **more)
    except RunError:
        raise
    except Exception as error:
        failure = Failure.of(error)
        raise RunError(f"{name}: raised{where} {failure.text}\n{failure.trace}") from error


def _batches(data: str | None, torch: Any) -> Iterator[Any]:
    """Yield the arguments of each call: a mapping (arguments by name), a tuple (arguments by position) or an array (one argument)."""
    if data is None:
        raise ConfigError("data=None: the model needs data; set --data FILE.npz or package:function")
    if data.endswith(".npz"):
        arrays = {name: torch.from_numpy(a) if torch is not None else a for name, a in _read_npz(data).items()}
        yield tuple(arrays.values()) if all(name.startswith("arr_") for name in arrays) else arrays
        return
    found = _called(data, "", own_function("data", data, load=True))
    found = [found] if isinstance(found, (Mapping, tuple)) or hasattr(found, "shape") else found
    if not isinstance(found, Iterable) or isinstance(found, (str, bytes)):
        raise ConfigError(f"data={data!r}: returned {found!r:.80}, expected a batch or an iterable of batches")
    batches, end = _called(data, "", iter, found), object()
    while (batch := _called(data, "", next, batches, end)) is not end:
        yield batch


def _read_npz(path: str) -> dict[str, Any]:
    """Read the arrays of an npz file. NumPy saves bfloat16 arrays with dtype V2; convert them to float32. Reads no pickles."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = dict(archive)
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise RunError(f"{path}: not a readable .npz file of arrays ({error})") from error
    halves = {name: array.view("<u2").astype("<u4") << 16 for name, array in arrays.items() if array.dtype == "V2"}
    return arrays | {name: array.view("<f4") for name, array in halves.items()}


def numpy_of(array: Any) -> tuple[NDArray[Any], str]:
    """Return a tensor of any framework as a NumPy array, with the original dtype. Unknown floating dtypes become float32."""
    dtype = str(array.dtype).removeprefix("torch.") if hasattr(array, "dtype") else "float32"
    if getattr(array, "is_meta", False):
        raise ValueError("the array is on the meta device; load the model's weights first")
    if hasattr(array, "detach"):
        array = array.detach().to("cpu")
        array = array.float() if array.is_floating_point() and dtype != "float64" else array
    array = np.asarray(array)
    floats = array.dtype.kind not in "biu"
    return np.array(array, np.float64 if dtype == "float64" else np.float32) if floats else np.array(array), dtype


def rows(given: Mapping[str, Any]) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return the arrays of one call in the form of a recording, and the original dtypes of the arrays.

    given: logits (..., experts); choices (..., choices) integers, or (..., experts) booleans; weights of the choices or
    (..., experts); bias (experts,). Without choices, the nonzero weights define the choices. Raises ValueError for invalid arrays.
    """
    found = {part: numpy_of(array) for part, array in given.items() if array is not None}
    dtypes = {part: dtype for part, (_, dtype) in found.items()}
    arrays = {part: a.reshape(-1) if part == "bias" else a.reshape(-1, a.shape[-1]) for part, (a, _) in found.items()}
    choices: NDArray[Any] | None = arrays.get("choices")
    weights: NDArray[Any] | None = arrays.get("weights")
    if len({len(array) for part, array in arrays.items() if part != "bias"}) > 1:
        raise ValueError(f"token counts differ: {', '.join(f'{part} {a.shape}' for part, a in arrays.items())}")
    mask: NDArray[Any] | None = np.not_equal(weights, 0) if choices is None and weights is not None else choices
    if mask is not None and mask.dtype.kind == "b":
        most = max(1, int(mask.sum(axis=1).max()))
        order = np.argsort(~mask, axis=1, kind="stable")[:, :most]
        made = np.take_along_axis(mask, order, axis=1)
        if weights is not None and weights.shape == mask.shape:
            arrays["weights"] = weights = np.where(made, np.take_along_axis(weights, order, axis=1), 0)
        arrays["choices"] = choices = np.where(made, order, -1)
    elif choices is not None and weights is not None and weights.shape[1] > choices.shape[1]:
        arrays["weights"] = weights = np.take_along_axis(weights, np.maximum(choices, 0).astype(np.int64), axis=1)
    if choices is not None:
        if choices.dtype.kind not in "iu":
            raise ValueError(f"choices have dtype {choices.dtype}, expected integers or booleans")
        arrays["choices"] = choices = choices.astype(np.int32)
        if weights is not None and weights.shape == choices.shape:
            arrays["weights"] = np.where(choices >= 0, weights, 0)
    return arrays, dtypes


def recognised(inputs: Any, output: Any) -> dict[str, Any]:
    """Return the arrays of a module's output by name. Raises ValueError if the output is ambiguous."""
    flat = list(arrays_of(output))
    shapes = f"returned {', '.join(f'{numpy_of(a)[1]} {tuple(a.shape)}' for a in flat) or 'no arrays'}"
    found = [(array, numpy_of(array)[0]) for array in flat if len(array.shape) > 1]
    taken = [tuple(array.shape) for array in arrays_of(inputs)]
    if len(found) == 1 and tuple(found[0][0].shape) in taken:
        raise ValueError(f"{shapes}, the shape of its input; record the block's gate instead")
    whole, floats = ([(a, n) for a, n in found if (n.dtype.kind in "biu") == kind] for kind in (True, False))
    result: dict[str, Any] = {}
    width = max((numbers.shape[-1] for _, numbers in floats), default=0)
    sparse = [a for a, n in floats if n.shape[-1] == width > 1 and (n == 0).any(-1).all() and (n >= 0).all()]
    if len(sparse) == 1:
        result["weights"] = sparse[0]
    elif len(whole) == 1:
        array, numbers = whole[0]
        one_hot = numbers.shape[-1] == width and numbers.max() <= 1 and (numbers.sum(axis=-1) <= 1).all()
        result["choices"] = array != 0 if one_hot else array
        own = [a for a, n in floats if n.shape[-1] == (1 if one_hot else numbers.shape[-1])]
        if len(own) > 1:
            raise ValueError(f"{shapes}: cannot tell weights from logits")
        if own:
            result["weights"] = own[0]
    rest = [(a, n) for a, n in floats if n.shape[-1] == width and not any(a is each for each in result.values())]
    if len(rest) > 1:  # the probabilities are dropped, since the logits determine them
        rest = [(a, n) for a, n in rest if (n < 0).any() or (n > 1).any()]
        if len(rest) != 1:
            raise ValueError(f"{shapes}: cannot tell which array contains the logits")
    for array, numbers in rest:
        if width > 1 and (numbers >= 0).all() and np.allclose(numbers.sum(axis=-1), 1, atol=1e-2):
            raise ValueError(f"{shapes}: expected logits, got probabilities")
        result["logits"] = array
    if not result.keys() & {"logits", "choices", "weights"}:
        raise ValueError(f"{shapes}: expected logits or choices")
    return result


def arrays_of(value: Any) -> Iterator[Any]:
    """Yield the arrays that tuples, lists, mappings and the outputs of transformers contain."""
    if hasattr(value, "shape"):
        yield value
    elif isinstance(value, Mapping):
        yield from arrays_of(list(value.values()))
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from arrays_of(each)
