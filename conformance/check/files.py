"""Check files of results that any program computed from the published inputs. The suite does not run the program.

    FOLDER/<algorithm>/<case>.safetensors, with tensors named <stage>/<result>, such as `token_choice/slots`

The suite compares every tensor in a file. A case passes if its file has all required tensors and no wrong tensor; see docs/conformance.md.
"""

from collections.abc import Collection, Sequence
from math import inf
from pathlib import Path

from moespec.conformance.check.results import CaseResult
from moespec.conformance.compare import DTYPES, Dtype, Outcome, certified, compared, exact
from moespec.conformance.format import Case, Value
from moespec.conformance.functions import function
from moespec.models.files import read_file
from moespec.models.tensors import StoredTensor, decoded

__all__ = ["MODE", "FileError", "check", "dtype_of", "expected", "read", "read_all"]

MODE = "files"
"""The mode recorded for results from files."""
LIMIT = 1 << 26
"""Maximum file size in bytes, about a hundred times the largest case."""
FLOATS = {"BF16": "bfloat16", "F32": "float32", "F64": "float64"}
"""Floating dtypes by their safetensors names, coarsest first."""


class FileError(Exception):
    """Raised if a file cannot be compared. The message names the file."""


def read(path: Path) -> dict[str, StoredTensor]:
    """Returns the tensors of a safetensors file. Raises FileError, which names the file, if the file is not readable or not valid."""
    try:
        return decoded(read_file(path, LIMIT))
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise FileError(f"{path}: {error}") from error


Files = dict[str, dict[str, StoredTensor] | FileError]


def read_all(folder: Path, ids: Collection[str]) -> Files:
    """Returns the tensors of each file in `folder` by case id. For an unreadable file, returns the error instead.

    ids: the ids of all cases. Raises FileError if the folder does not exist or a file belongs to no case.
    """
    if not folder.is_dir():
        raise FileError(f"{folder}: no such folder")
    files: Files = {}
    for path in sorted(folder.rglob("*.safetensors")):
        id = path.relative_to(folder).with_suffix("").as_posix()
        if id not in ids:
            raise FileError(f"{path}: unknown case {id!r}; `list` prints all cases")
        try:
            files[id] = read(path)
        except FileError as error:
            files[id] = error
    return files


def dtype_of(files: Files) -> Dtype:
    """Returns the floating-point dtype of the files, or float64 if no tensor is floating-point. The coarsest dtype in a file counts.

    Raises FileError if the dtypes of files differ, because a bfloat16 file must not loosen the tolerance of other files.
    """
    first: dict[str, str] = {}  # the first file of each dtype
    for id, tensors in files.items():
        stored = {tensor.dtype for tensor in tensors.values()} if isinstance(tensors, dict) else set()
        coarsest = next((name for dtype, name in FLOATS.items() if dtype in stored), "")
        if coarsest:
            first.setdefault(coarsest, id)
    if len(first) > 1:
        places = " and ".join(f"{id}.safetensors is in {name}" for name, id in first.items())
        raise FileError(f"{places}; set --dtype to the dtype of the computation")
    return DTYPES[next(iter(first), "float64")]


def check(files: Files, cases: Sequence[Case], dtype: Dtype) -> list[CaseResult]:
    """Returns the result of each case."""
    results = []
    for case in cases:
        tensors = files.get(case.id)
        result = CaseResult(case.id, case.algorithm, case.kind, dtype.name, MODE, _outcomes(case, tensors, dtype))
        failing = {outcome.stage.split("/")[0] for outcome in result.outcomes if outcome.state == "fail"}
        for name, tensor in tensors.items() if isinstance(tensors, dict) else ():
            stage, _, key = name.partition("/")
            if stage in failing:
                result.returned.setdefault(stage, {})[key] = tensor.array
        results.append(result)
    return results


def expected(case: Case) -> dict[str, Value]:
    """Returns every tensor that the file of a case may contain, by name, in the order of the case's stages."""
    values = {f"{stage.name}/{name}": value for stage in case.stages for name, value in stage.outputs.items()}
    if case.gradients is not None:
        values |= {f"gradient/{name}": value for name, value in case.gradients.wrt.items()}
    return values


def _end(case: Case) -> list[str]:
    """Returns the names of the required tensors. If one is missing, the case counts as not implemented."""
    if case.gradients is not None:
        return [f"gradient/{name}" for name in case.gradients.wrt]
    if any(stage.router for stage in case.stages):
        return [f"{case.stages[-1].name}/{name}" for name in case.stages[-1].outputs]
    return list(expected(case))


def _outcomes(case: Case, tensors: dict[str, StoredTensor] | FileError | None, dtype: Dtype) -> list[Outcome]:
    if isinstance(tensors, FileError):
        return [Outcome("file", "fail", inf, str(tensors))]
    if tensors is None:
        reason = "no file" if case.expect is None else "files cannot hold errors"
        return [Outcome("file", "not implemented", 0.0, reason)]
    is_model = any(function(stage.call).batched for stage in case.stages)
    if not is_model and not all(exact(tensor.array, dtype) for tensor in case.inputs.values()):
        return [Outcome("file", "inconclusive", 0.0, f"{dtype.name} cannot represent an input")]
    outcomes = [
        Outcome(name, "fail", inf, f"unexpected tensor; expected {', '.join(expected(case)) or 'none'}")
        for name in sorted(tensors.keys() - expected(case).keys())
    ]
    for name, value in expected(case).items():
        if name in tensors:
            outcomes += _compared(case, name, value, tensors[name], dtype)
    if case.expect is not None:
        outcomes.append(Outcome(case.expect.stage, "not implemented", 0.0, "files cannot hold errors"))
    missing = [name for name in _end(case) if name not in tensors]
    return outcomes + [Outcome(name, "not implemented", 0.0, f"{name} is not in the file") for name in missing]


def _compared(case: Case, name: str, value: Value, found: StoredTensor, dtype: Dtype) -> list[Outcome]:
    if found.dtype in FLOATS and list(DTYPES).index(FLOATS[found.dtype]) > list(DTYPES).index(dtype.name):
        return [Outcome(name, "fail", inf, f"dtype {found.dtype} is coarser than {dtype.name}")]
    stage, result = name.split("/", 1)
    of_gradient = case.gradients is not None and stage == "gradient"
    call = "" if of_gradient else case.stage(stage).call
    if found.dtype == "F64" and dtype.name != "float64" and not (call and function(call).on_numpy):
        return [Outcome(name, "fail", inf, f"dtype F64 in a check of {dtype.name}")]
    sure = certified(case.decisions.get(case.expected_gradients.stage if of_gradient else stage), dtype)
    return compared(stage, {result: value}, {result: found.array}, dtype, sure, call)
