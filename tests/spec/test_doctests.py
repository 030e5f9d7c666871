"""Every example in a docstring of the specification holds, and every public function is documented alike."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

from moespec import spec

MODULES = sorted(module.name for module in pkgutil.walk_packages(spec.__path__, "moespec.spec."))
FUNCTIONS = sorted(name for name in spec.__all__ if inspect.isfunction(getattr(spec, name)))
WITHOUT_SOURCE = {  # ours, or no mathematics
    *("mean", "routing_metrics", "slot_tokens", "stop_gradient"),
}


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_the_examples_are_found():
    attempted = sum(doctest.testmod(importlib.import_module(name)).attempted for name in MODULES)
    assert attempted >= 90


def test_a_wrong_example_is_found():
    example = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    assert doctest.DocTestRunner(verbose=False).run(example, out=lambda _: None).failed == 1


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstring_has_its_parts(name):
    documentation = inspect.getdoc(getattr(spec, name))
    if name in WITHOUT_SOURCE:
        assert documentation
        return
    for part in ("Args:", "Returns:", "Raises:", "Source:"):
        assert part in documentation, f"{name} has no {part}"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstring_names_every_argument(name):
    function = getattr(spec, name)
    for argument in inspect.signature(function).parameters:
        assert argument in inspect.getdoc(function), f"{name}: {argument}"
