"""Every public function of the specification is documented alike."""

import importlib
import inspect

import pytest

from moespec import spec

FUNCTIONS = sorted(name for name in spec.__all__ if inspect.isfunction(getattr(spec, name)))
WITHOUT_SOURCE = {  # ours, or no mathematics
    *("mean", "routing_metrics", "slot_tokens", "stop_gradient")
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstring_has_its_parts(name):
    documentation = inspect.getdoc(getattr(spec, name))
    if name in WITHOUT_SOURCE:
        assert documentation
        return
    for part in ("Args:", "Returns:", "Source:"):
        assert part in documentation, f"{name} has no {part}"
    for part in ("got shape", "not floating", "NaN or infinity"):
        assert part not in documentation, f"{name}: `moespec.spec.algorithms` says it of every array"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstring_names_every_argument(name):
    function = getattr(spec, name)
    for argument in inspect.signature(function).parameters:
        assert argument in inspect.getdoc(function), f"{name}: {argument}"


@pytest.mark.parametrize("package", ["spec", "backends.numpy", "backends.jax", "backends.torch"])
def test_signatures_are_as_they_are_written(package):
    module = importlib.import_module(f"moespec.{package}")
    functions = {name: getattr(module, name, None) for name in FUNCTIONS}  # a backend has its own records of a routing
    signatures = {name: str(inspect.signature(function)) for name, function in functions.items() if function}
    assert len(signatures) > 40
    assert not {name: text for name, text in signatures.items() if "_array_like" in text or "_NestedSequence" in text}
