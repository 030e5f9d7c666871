"""What makes the public functions of backends: types of the specification, and docstrings."""

import importlib
import inspect

import pytest

from moespec import spec
from moespec.backends.binding import array_arguments


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_all_and_dir_are_complete_and_sorted(backend):
    B = pytest.importorskip(f"moespec.backends.{backend}", exc_type=ImportError)
    assert dir(B) == B.__all__ == sorted(B.__all__)
    assert {"name", "ROUTERS", "OptimizerConfig", "token_choice", "k_means", "expert_capacity"} <= set(B.__all__)
    assert all(hasattr(B, name) for name in B.__all__)


def test_arguments_that_groups_share_are_so_by_their_type():
    assert array_arguments(spec.token_choice) == dict.fromkeys(("scores", "combine_scores", "order", "keep"), "group")
    assert array_arguments(spec.soft_routing) == {"tokens": "group", "slots": "shared", "scale": "shared"}
    assert array_arguments(spec.layer_norm) == {"x": "leading", "scale": "shared", "bias": "shared"}
    assert array_arguments(spec.expert_mlp) == {"inputs": "group"}  # params, a mapping, as well
    assert array_arguments(spec.routing_metrics) == {"routing": "group"}


def test_functions_without_groups_are_the_specifications_own():
    B = importlib.import_module("moespec.backends.numpy")
    for name in ("expert_capacity", "CAPACITY_RULES", "hash_table_random", "k_means"):
        assert getattr(B, name) is getattr(spec, name)


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_a_function_has_the_docstring_of_the_specification(backend):
    B = pytest.importorskip(f"moespec.backends.{backend}", exc_type=ImportError)
    for name in ("token_choice", "moe_layer", "balance_bias", "layer_norm"):
        assert inspect.getdoc(getattr(spec, name)) in inspect.getdoc(getattr(B, name)), name
        assert getattr(B, name).__name__ == name
