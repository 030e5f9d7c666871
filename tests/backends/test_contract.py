"""Every backend has what the contract says, and every public function of the specification, with the same arguments."""

import importlib
import inspect
from inspect import Parameter

import numpy as np
import pytest

from moespec import spec
from moespec.backends.contract import Backend

BACKENDS = ["numpy", "jax", "torch"]
MEMBERS = {name: member for part in reversed(Backend.__mro__) for name, member in vars(part).items() if name[0] != "_"}
SPECIFIED = {name: getattr(spec, name) for name in spec.__all__ if inspect.isfunction(getattr(spec, name))}
del SPECIFIED["slot_tokens"]  # what the record by slot of a backend has as `token`


def load(name):
    if name != "numpy":
        pytest.importorskip(name)
    return importlib.import_module(f"moespec.backends.{name}")


def differences(contract, other):
    """Where a call that fits the signature `contract` does not fit `other`, or means something else there."""
    asked, had = ([p for p in signature.parameters.values() if p.name != "self"] for signature in (contract, other))
    matches, faults = [], []
    by_position = [p for p in had if p.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
    for index, parameter in enumerate(asked):
        if parameter.kind is Parameter.KEYWORD_ONLY:
            match = other.parameters.get(parameter.name)
            same = match is not None and match.kind is Parameter.KEYWORD_ONLY
        elif parameter.kind is Parameter.VAR_POSITIONAL:
            match = next((p for p in had if p.kind is Parameter.VAR_POSITIONAL), None)
            same = match is not None
        else:
            match = by_position[index] if index < len(by_position) else None
            by_name = parameter.kind is Parameter.POSITIONAL_OR_KEYWORD
            same = match is not None and (not by_name or (match.name, match.kind) == (parameter.name, parameter.kind))
        matches.append(match)
        if not same or parameter.default not in (Parameter.empty, match.default):
            faults.append(str(parameter))
    more = [p for p in had if p not in matches and p.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)]
    return faults + [f"also {p.name}" for p in more if p.default is Parameter.empty]


@pytest.mark.parametrize("backend", BACKENDS)
def test_has_every_member(backend):
    B = load(backend)
    assert B.name == backend
    assert set(B.ROUTERS) == set(spec.ROUTERS)
    missing = {*MEMBERS, *inspect.get_annotations(Backend)} - {*B.__all__}
    assert not missing
    wrong = {
        name: faults
        for name, member in MEMBERS.items()
        if inspect.isfunction(member)
        and (faults := differences(inspect.signature(member), inspect.signature(getattr(B, name))))
    }
    assert not wrong


@pytest.mark.parametrize("backend", BACKENDS)
def test_has_every_function_of_the_specification(backend):
    B = load(backend)
    assert not set(SPECIFIED) - {*B.__all__}
    wrong = {
        name: faults
        for name, function in SPECIFIED.items()
        if (faults := differences(inspect.signature(function), inspect.signature(getattr(B, name))))
    }
    assert not wrong


@pytest.mark.parametrize("backend", BACKENDS)
def test_rounding_to_bfloat16(backend):
    """8 binary digits: 256 is exact, 257 lies half way and goes to the even 256, 259 to 260. But for NumPy's, gradients too."""
    B, dtype = load(backend), "float64" if backend == "numpy" else "float32"
    x = B.from_numpy(np.array([256.0, 257.0, 257.5, 259.0, -1.00390625, 0.0]), dtype)
    rounded = B.to_numpy(B.round_to_bfloat16(x))
    expected = np.array([256.0, 256.0, 258.0, 260.0, -1.0, 0.0])
    np.testing.assert_array_equal(rounded, expected)
    assert rounded.dtype == B.to_numpy(x).dtype
    factor = B.from_numpy(np.full(6, 257.0), dtype)
    _, gradient = B.value_and_grad(lambda p: (B.sum(B.round_to_bfloat16(p["x"]) * factor), ()))({"x": x})
    np.testing.assert_array_equal(B.to_numpy(gradient["x"]), np.full(6, 257.0 if backend == "numpy" else 256.0))


def near(experts, mean, spread, step=1):
    """Loads near their mean, multiples of `step`."""
    return mean + step * np.random.default_rng(experts).integers(-spread, spread + 1, experts)


@pytest.mark.parametrize("backend", BACKENDS)
def test_counts_beyond_those_of_float32_move_states_as_in_the_specification(backend):
    B = load(backend)
    some = np.repeat([2**24 + 2, 2**24 - 1, 2**24 - 2, 2**24 + 4, 2**24], [64, 65, 64, 1, 62])
    outlier, fractions = np.append(near(62, 3 * 2**20 + 1, 1000), [2**25, 0]), np.array([0.5, 1.25, 1.0, 1.25])
    for loads in (near(256, 131072, 3), near(4096, 2**22, 100), near(256, 2**27, 30, 16), some, outlier, fractions):
        moved = B.balance_bias(*B.from_numpy((np.zeros(len(loads), np.float32), loads.astype(np.float32))), rate=1.0)
        np.testing.assert_array_equal(B.to_numpy(moved), spec.balance_bias(0.0 * loads, 1.0 * loads, rate=1.0))
    gates = np.ones((1, 2**20 + 1, 16), np.float32)
    gates[0, 5, 3] = 0
    assert float(B.excess_gates(B.from_numpy(gates), choices=16)) == -1
