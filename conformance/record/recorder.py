"""What fills a recording: forward hooks on torch's modules, and `tap` in code of any framework."""

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

from moespec.conformance.failure import Failure
from moespec.conformance.record import outputs
from moespec.conformance.record.file import PARTS, Gate, write
from moespec.models.checks import check_output, imported
from moespec.models.errors import RunError
from moespec.spec.errors import ConfigError

__all__ = ["Recorder", "record", "recording", "tap"]

BIASES = ("e_score_correction_bias", "expert_bias", "correction_bias")
"""How a gate's parameter or buffer is called that is added to scores for the choice alone."""
Adapter = Callable[[Any, Any, Any], Mapping[str, Any]]


class Recorder:
    """The calls of gates whose names match a pattern, in the order of time."""

    active: "Recorder | None" = None

    def __init__(self, pattern: str = "*", adapter: Adapter | None = None) -> None:
        self.pattern, self.adapter = pattern, adapter
        self.calls: dict[str, list[tuple[dict[str, Any], dict[str, str]]]] = {}
        self.names: list[str] = []
        self.hooks: list[Any] = []

    def attach(self, model: Any) -> None:
        """Hook the modules of a torch model that match. Raises ConfigError, which names gates, if there are none."""
        modules = {name: module for name, module in model.named_modules() if name}
        matching = [name for name in modules if fnmatchcase(name, self.pattern)]
        if not matching:
            kinds = {name.rpartition(".")[2]: name for name in reversed(modules)}  # the first of each kind
            gates = [name for kind, name in sorted(kinds.items()) if re.search("gate|router", kind, re.IGNORECASE)]
            shown = ", ".join((gates or [*kinds.values()])[:8]) or "none"
            raise ConfigError(f"module={self.pattern!r}: matches no module; there are, one of a kind, {shown}")
        self.hooks += [modules[name].register_forward_hook(partial(self._heard, name)) for name in matching]
        self.names += matching

    def _heard(self, name: str, module: Any, inputs: Any, output: Any) -> None:
        try:
            given = dict((self.adapter or (lambda _, i, o: outputs.recognised(i, o)))(module, inputs, output))
            named = (*module.named_buffers(), *module.named_parameters())
            bias = next((array for each, array in named if each.split(".")[-1] in BIASES), None)
            self.note(name, {"bias": bias, **given})
        except ValueError as error:
            raise RunError(f"{name}: {error}; say by outputs=FUNCTION what it returns") from error

    def note(self, name: str, given: Mapping[str, Any]) -> None:
        """Keep one call."""
        if unknown := given.keys() - set(PARTS):
            raise ValueError(f"{sorted(unknown)[0]!r}: expected {', '.join(PARTS)}")
        self.calls.setdefault(name, []).append(outputs.rows(given))

    def gates(self) -> list[Gate]:
        """All that was recorded. Raises RunError if that is nothing, or what no gate computes."""
        if not self.calls:
            reason = f"none of {', '.join(self.names[:5])} was called" if self.names else "no tap was reached"
            raise RunError(f"nothing was recorded: {reason}")
        try:
            return [_joined(name, calls) for name, calls in self.calls.items()]
        except ValueError as error:
            raise RunError(f"nothing is written: {error}") from error


def _joined(name: str, calls: list[tuple[dict[str, Any], dict[str, str]]]) -> Gate:
    """The calls of a gate one after the other; choices of different numbers are filled up with -1."""
    widths = [
        {part: a.shape[-1] if part in ("logits", "bias") else 0 for part, a in arrays.items()} for arrays, _ in calls
    ]
    kinds = {tuple(sorted(width.items())) for width in widths}
    if len(kinds) > 1:
        raise ValueError(f"{name}: arrays differ from call to call: {' and '.join(map(str, sorted(kinds)[:2]))}")
    sizes = tuple(len(next(array for part, array in arrays.items() if part != "bias")) for arrays, _ in calls)
    joined = {}
    for part in calls[0][0]:
        arrays = [arrays[part] for arrays, _ in calls]
        if part == "bias":
            if any((each != arrays[0]).any() for each in arrays):
                raise ValueError(f"{name}: the bias changes from call to call; record a model that is not trained")
            joined[part] = arrays[0]
            continue
        most, fill = max(each.shape[1] for each in arrays), -1 if part == "choices" else 0
        wide = [np.pad(each, ((0, 0), (0, most - each.shape[1])), constant_values=fill) for each in arrays]
        joined[part] = np.concatenate(wide)
    return Gate(name, sizes, calls[0][1], **joined)


def tap(name: str, *, layer: Any = None, **given: Any) -> None:
    """Keep what a gate computed, if a recording is being made and its pattern matches; else nothing happens.

    name: of the gate. layer: appended to the name, a number that may be known at run time only, as in a scan over layers.
    given: `logits` (..., experts), `choices` (..., choices), `weights` of the choices or (..., experts), `bias` (experts,);
    NumPy's, torch's or JAX's. In a function that JAX compiles it is an ordered callback.
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
    """Record what runs in this context, and write it at the end; nothing is written if that raises.

    path: of the file. model: of torch, whose modules that match are hooked. module: pattern of names, as of the shell, for
    modules and taps. outputs: what a module returned by name, `outputs(module, inputs, output) -> {"logits": ..., "choices":
    ..., "weights": ..., "bias": ...}`, where that is not recognised.

    Raises RunError for a path that cannot be written, for what is no output of a gate, and if nothing was recorded;
    ConfigError if no module matches.
    """
    check_output("path", Path(path))
    if Recorder.active is not None:
        raise RunError("a recording is being made already")
    jax = sys.modules.get("jax")
    if jax is not None:
        jax.clear_caches()  # functions that were compiled before have no taps
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


def record(target: str, module: str | None, data: str | None, path: Path, outputs: str | None) -> list[Gate]:
    """Run the model `package:model` on data, record it and return what was written; see the page on recordings.

    Raises ConfigError for a name that cannot be imported or matches nothing, RunError for a model that raises.
    """
    adapter = imported("outputs", outputs) if outputs else None
    model: Any = imported("model", target)
    with recording(path, None, module or "*", adapter) as recorder:
        if inspect.isclass(model) or not (hasattr(model, "named_modules") or _takes_data(model)):
            model = _called(target, "", model)
        torch = sys.modules.get("torch") if hasattr(model, "named_modules") else None
        if torch is not None:
            if missing := [name for name, value in (("module", module), ("data", data)) if value is None]:
                raise ConfigError(f"{missing[0]}=None: a torch model needs both, --module and --data")
            recorder.attach(model.eval())
        with torch.no_grad() if torch is not None else nullcontext():
            for i, batch in enumerate(_batches(data, torch) if callable(model) else ()):
                named = batch if isinstance(batch, Mapping) else {}
                placed = () if named is batch else batch if isinstance(batch, tuple) else (batch,)
                _called(target, f" in batch {i}", model, *placed, **named)
    return recorder.gates()


def _takes_data(function: Any) -> bool:
    """Whether a function has parameters without defaults."""
    try:
        inspect.signature(function).bind()
    except TypeError:
        return True
    return False


def _called(name: str, where: str, function: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
    """What a function of the user's returns; RunError with its lines for what it raises."""
    try:
        return function(*arguments, **more)
    except RunError:
        raise
    except Exception as error:
        failure = Failure.of(error)
        raise RunError(f"{name}: raised{where} {failure.text}\n{failure.trace}") from error


def _batches(data: str | None, torch: Any) -> Iterable[Any]:
    """The arguments of each call: a mapping by name, a tuple by place, or one array."""
    if data is None:
        raise ConfigError("data=None: the model takes data, --data FILE.npz or package:function")
    if data.endswith(".npz"):
        arrays = {name: torch.from_numpy(a) if torch is not None else a for name, a in _read_npz(data).items()}
        return [tuple(arrays.values()) if all(name.startswith("arr_") for name in arrays) else arrays]
    found = _called(data, "", imported("data", data))
    return [found] if isinstance(found, (Mapping, tuple)) or hasattr(found, "shape") else found


def _read_npz(path: str) -> dict[str, Any]:
    """The arrays of an npz file; those of the dtype V2, which is how NumPy saves bfloat16, as float32. No pickle is read."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = dict(archive)
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise RunError(f"{path}: cannot be read as an npz file of arrays ({error})") from error
    halves = {name: array.view("<u2").astype("<u4") << 16 for name, array in arrays.items() if array.dtype == "V2"}
    return arrays | {name: array.view("<f4") for name, array in halves.items()}
