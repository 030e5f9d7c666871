"""Exports a module as a standalone torch or ONNX program that accepts any batch size.

Neither program requires this package at run time: moespec's operators are decomposed into ATen operations. In ONNX, a stable sort becomes
TopK over all entries, which breaks ties as moespec does: the lower index comes first.
"""

import importlib.util
import io
import logging
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from moespec.backends.torch.decompositions import decompositions, overload
from moespec.spec.errors import ConfigError

__all__ = ["export_onnx", "export_pt2"]

OPSET = 18
IMAGES = 3
"""The traced example has this many groups of `multiple` images. torch would treat a batch size of 0 or 1 as a constant."""
LARGEST = 2**31 - 2**20
"""The maximum total size of an ONNX file's parameters, in bytes. The file is a protobuf message, which must stay below 2^31 bytes."""
HALVES = (torch.bfloat16, torch.float16)

Example = Tensor | tuple[Tensor, ...]


def export_pt2(
    module: nn.Module, example: Example, *, metadata: Mapping[str, str] | None = None, multiple: int | None = None
) -> bytes:
    """Returns the content of a file that `torch.export.save` writes: the module as a program, with its parameters.

    `torch.export.load(path).module()(images)` equals `module(images)` at evaluation, up to rounding. The program does not
    require this package. The number of images must be a multiple of `multiple` (and at least `2 * multiple` if `multiple` is above 1).

    module: any `torch.nn.Module` in evaluation mode, with or without moespec layers (`MoE`, `Model`). The module is not changed.
    example: the positional arguments of `module`: a tensor (images, ...) or a tuple of such tensors. The first axis is the batch
        axis, whose size stays dynamic in the program, so one image is enough. The sizes of the other axes and the dtype are fixed.
    metadata: additional text files to include, by name (`torch.export.load(path, extra_files={name: ""})`).
    multiple: the number of images that are routed together; default: the `group_images` of the `MoE` layers in the module, else 1.

    Raises ConfigError, before tracing, for an argument that is not a module, a module in training mode (which draws noise and
    dropout) or an example that the module does not accept. If `torch.export` cannot trace the module, torch's own error is raised.

    Source: docs.pytorch.org/docs/stable/export.html.
    """
    file = io.BytesIO()
    with _quiet():
        program = _exported(module, example, multiple).run_decompositions(decompositions())
        torch.export.save(program, file, extra_files=dict(metadata or {}))
    return file.getvalue()


def export_onnx(
    module: nn.Module, example: Example, *, metadata: Mapping[str, str] | None = None, multiple: int | None = None
) -> bytes:
    """Returns the content of an ONNX file (opset 18) that maps `images` (images, ...) to `logits`, the first output of `module`.

    `onnxruntime.InferenceSession(content).run(None, {"images": images})` returns the same result as `module(images)` at evaluation, up to
    rounding, and breaks ties like the routers. Further inputs are named after the arguments of `forward`.

    module, example, multiple: as for `export_pt2`, but the module must be in float32 or float64.
    metadata: the `metadata_props` of the ONNX file.

    Raises ConfigError in the same cases as `export_pt2`, for parameters in bfloat16 or float16 (CPU runtimes lack their
    operators), for parameters of more than 2 GB (the limit of the format), and if onnx or onnxscript is not installed.

    Source: the ONNX operators (onnx.ai/onnx/operators) TopK, which breaks ties like the routers, and Gather.
    """
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(f"export_onnx: {package} is not installed: pip install 'moespec[export,torch]'")
    _check_module(module)
    tensors = [*module.parameters(), *module.buffers()]
    if halves := [tensor.dtype for tensor in tensors if tensor.dtype in HALVES]:
        raise ConfigError(
            f"module: has {str(halves[0])[6:]} parameters, which ONNX runtimes do not support on a CPU; convert them with module.float()"
        )
    if (size := sum(tensor.nbytes for tensor in tensors)) > LARGEST:
        raise ConfigError(f"module: {size:,} bytes of parameters exceed the 2 GB limit of ONNX files; use export_pt2")
    selection = overload("top_indices")
    translations: dict[Any, Any] = {torch.ops.aten.sort.stable: _sort, selection: _top_indices}
    translations[torch.ops.aten.searchsorted.Tensor] = _searchsorted
    with _quiet():
        table = {name: function for name, function in decompositions().items() if name != selection}
        converted: Any = torch.onnx.export(
            _exported(module, example, multiple).run_decompositions(table),
            dynamo=True,
            opset_version=OPSET,
            custom_translation_table=translations,
            input_names=["images"],
            output_names=["logits"],
            verbose=False,
        )
        converted.model.metadata_props.update(metadata or {})
        file = io.BytesIO()
        converted.save(file)
    return file.getvalue()


def _check_module(module: Any) -> None:
    if not isinstance(module, nn.Module):
        raise ConfigError(f"module: expected a torch.nn.Module, got {module!r}")
    if training := [name for name, child in module.named_modules() if child.training]:
        where = f" ({training[0]})" if training[0] else ""
        raise ConfigError(f"module: is in training mode{where}; call module.eval() to turn off noise and dropout")


def _exported(module: nn.Module, example: Any, multiple: int | None) -> Any:
    from moespec.backends.torch.nn.reporting import Reporting  # a top-level import would be circular

    _check_module(module)
    examples = example if isinstance(example, tuple) else (example,)
    kinds = [tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__ for tensor in examples]
    if not kinds or any(not isinstance(kind, tuple) or not kind or kind[0] < 1 for kind in kinds):
        raise ConfigError(f"example: expected a tensor (images, ...) or a tuple of such tensors, got {kinds}")
    layers = [child for child in module.modules() if isinstance(child, Reporting)]
    if multiple is None:
        multiple = math.lcm(*(getattr(layer, "group_images", 1) for layer in layers))
    if type(multiple) is not int or multiple < 1:
        raise ConfigError(f"multiple={multiple!r}: expected an integer >= 1")
    rows = [torch.arange(IMAGES * multiple, device=tensor.device) % len(tensor) for tensor in examples]
    inputs = tuple(tensor.detach()[index] for tensor, index in zip(examples, rows, strict=True))
    try:
        with torch.no_grad():
            module(*inputs)
    except Exception as error:
        taken = ", ".join(f"{tuple(tensor.shape)} {str(tensor.dtype)[6:]}" for tensor in inputs)
        raise ConfigError(f"example: {type(module).__name__} cannot be run on {taken}: {error}") from error
    batch = torch.export.Dim("batch") if multiple == 1 else multiple * torch.export.Dim("groups")
    try:
        program = torch.export.export(module, inputs, dynamic_shapes=tuple({0: batch} for _ in inputs))
    finally:
        for layer in layers:
            layer.forget()  # Losses that were stored during tracing have no values.
    program.graph_module.graph.eliminate_dead_code()  # Removes the computation of losses and metrics.
    return program


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses the exporter's warnings about its internals, and about the losses that a module stores."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


# Translations of torch operators to ONNX. The exporter calls these functions when it builds the graph.


def _ops() -> Any:
    import onnxscript

    return onnxscript.opset18


def _sort(self: Any, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    op = _ops()
    size = op.Gather(op.Shape(self), op.Constant(value_ints=[dim]), axis=0)
    return op.TopK(self, size, axis=dim, largest=int(descending), sorted=1)


def _top_indices(scores: Any, count: int) -> Any:
    op = _ops()
    _, index = op.TopK(scores, op.Constant(value_ints=[count]), axis=-1, largest=1, sorted=1)
    return op.Cast(index, to=6)  # int32


def _searchsorted(sorted_sequence: Any, self: Any, **options: Any) -> Any:
    """For each value (..., m), counts the smaller entries of the sorted row (..., n)."""
    op = _ops()
    last, before = op.Constant(value_ints=[-1]), op.Constant(value_ints=[-2])
    below = op.Less(op.Unsqueeze(sorted_sequence, before), op.Unsqueeze(self, last))
    return op.ReduceSum(op.Cast(below, to=7), last, keepdims=0)  # int64
