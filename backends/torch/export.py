"""A module as a program of its own: one that torch loads, or of ONNX, with a batch of any size.

Neither needs this package where it runs: operators of ours are decomposed into operations of ATen. In ONNX a stable sort is
TopK of all entries, whose standard has our rule for equal ones: the lower index comes first.
"""

import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from moespec.backends.torch.decompositions import decompositions, overload

__all__ = ["onnx_bytes", "pt2_bytes"]

OPSET = 18
IMAGES = 3
"""Batches of the example that is traced. A tracer takes a size of 0 or 1 for a constant."""


def pt2_bytes(module: nn.Module, image: tuple[int, ...], metadata: Mapping[str, str], *, multiple: int = 1) -> bytes:
    """A file of `torch.export.save`: a program from images (N, *image) float32 to the output of `module`.

    N is any multiple of `multiple`. `metadata` are further files in it (`torch.export.load(..., extra_files={name: ""})`).
    """
    file = io.BytesIO()
    with _quiet():
        program = _exported(module, image, multiple).run_decompositions(decompositions())
        torch.export.save(program, file, extra_files=dict(metadata))
    return file.getvalue()


def onnx_bytes(module: nn.Module, image: tuple[int, ...], metadata: Mapping[str, str], *, multiple: int = 1) -> bytes:
    """A model of ONNX, opset 18: `images` (N, *image) float32 -> `logits`, for N a multiple of `multiple`.

    metadata: becomes its `metadata_props`.
    """
    selection = overload("top_indices")
    translations: dict[Any, Any] = {torch.ops.aten.sort.stable: _sort, selection: _top_indices}
    translations[torch.ops.aten.searchsorted.Tensor] = _searchsorted
    with _quiet():
        table = {name: function for name, function in decompositions().items() if name != selection}
        converted: Any = torch.onnx.export(
            _exported(module, image, multiple).run_decompositions(table),
            dynamo=True,
            opset_version=OPSET,
            custom_translation_table=translations,
            input_names=["images"],
            output_names=["logits"],
            verbose=False,
        )
        converted.model.metadata_props.update(metadata)
        file = io.BytesIO()
        converted.save(file)
    return file.getvalue()


def _exported(module: nn.Module, image: tuple[int, ...], multiple: int) -> Any:
    example = torch.zeros(IMAGES * multiple, *image)
    batch = torch.export.Dim("batch") if multiple == 1 else multiple * torch.export.Dim("groups")
    program = torch.export.export(module.eval(), (example,), dynamic_shapes=({0: batch},))
    program.graph_module.graph.eliminate_dead_code()  # losses and metrics
    return program


@contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings of the exporter about its own insides, and of losses that a module keeps for its user."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


# Operations of ONNX. The exporter calls them to write a part of the graph.


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
    """How many entries of the row (..., n) are below each value (..., m)."""
    op = _ops()
    last, before = op.Constant(value_ints=[-1]), op.Constant(value_ints=[-2])
    below = op.Less(op.Unsqueeze(sorted_sequence, before), op.Unsqueeze(self, last))
    return op.ReduceSum(op.Cast(below, to=7), last, keepdims=0)  # int64
