"""What a gate's module returns, recognised by dtypes and widths: there is no one form.

    logits                                     a linear layer
    (logits, weights, indices), in any order   transformers' Mixtral, Qwen2-MoE, OLMoE, DeepSeek-V3
    (weights, indices)
    (one-hot, weights (..., 1), logits)        transformers' Switch
    dense weights (..., E), with zeros, and logits, or alone    transformers' Llama 4 and NLLB

Where widths do not tell the arrays apart, as with as many choices as experts, that is an error, and a function of the user's says.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["numpy_of", "recognised", "rows"]


def numpy_of(array: Any) -> tuple[NDArray[Any], str]:
    """A tensor or array of any framework on NumPy, and its dtype by name; floats that NumPy lacks become float32."""
    dtype = str(array.dtype).removeprefix("torch.") if hasattr(array, "dtype") else "float32"
    if hasattr(array, "detach"):
        array = array.detach().to("cpu")
        array = array.float() if array.is_floating_point() and dtype != "float64" else array
    array = np.asarray(array)
    floats = array.dtype.kind not in "biu"
    return np.array(array, np.float64 if dtype == "float64" else np.float32) if floats else np.array(array), dtype


def rows(given: Mapping[str, Any]) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """The arrays of one call as a recording has them, and their dtypes.

    given: logits (..., experts); choices (..., choices) integers, or (..., experts) booleans; weights of the choices, or
    (..., experts), which without choices are those that are not 0; bias (experts,). Raises ValueError.
    """
    found = {part: numpy_of(array) for part, array in given.items() if array is not None}
    dtypes = {part: dtype for part, (_, dtype) in found.items()}
    arrays = {part: a.reshape(-1) if part == "bias" else a.reshape(-1, a.shape[-1]) for part, (a, _) in found.items()}
    choices: NDArray[Any] | None = arrays.get("choices")
    weights: NDArray[Any] | None = arrays.get("weights")
    if len({len(array) for part, array in arrays.items() if part != "bias"}) > 1:
        raise ValueError(f"numbers of tokens differ: {', '.join(f'{part} {a.shape}' for part, a in arrays.items())}")
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
    """The arrays of a module's output, by name. Raises ValueError where it is not clear which is which."""
    flat = list(_arrays(output))
    shapes = f"returned {', '.join(f'{numpy_of(a)[1]} {tuple(a.shape)}' for a in flat) or 'no arrays'}"
    found = [(array, numpy_of(array)[0]) for array in flat if len(array.shape) > 1]
    taken = [tuple(array.shape) for array in _arrays(inputs)]
    if len(found) == 1 and tuple(found[0][0].shape) in taken:
        raise ValueError(f"{shapes}, the shape of its input: a block, and not its gate")
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
            raise ValueError(f"{shapes}: weights cannot be told from logits")
        if own:
            result["weights"] = own[0]
    rest = [(a, n) for a, n in floats if n.shape[-1] == width and not any(a is each for each in result.values())]
    if len(rest) > 1:  # probabilities of the logits, which these can be computed from
        rest = [(a, n) for a, n in rest if (n < 0).any() or (n > 1).any()]
        if len(rest) != 1:
            raise ValueError(f"{shapes}: it is not clear which of them are logits")
    for array, numbers in rest:
        if width > 1 and (numbers >= 0).all() and np.allclose(numbers.sum(axis=-1), 1, atol=1e-2):
            raise ValueError(f"{shapes}: probabilities, and no logits")
        result["logits"] = array
    if not result.keys() & {"logits", "choices", "weights"}:
        raise ValueError(f"{shapes}: neither logits nor choices")
    return result


def _arrays(value: Any) -> Iterator[Any]:
    """The arrays in tuples, lists, mappings and the outputs of transformers."""
    if hasattr(value, "shape"):
        yield value
    elif isinstance(value, Mapping):
        yield from _arrays(list(value.values()))
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _arrays(each)
