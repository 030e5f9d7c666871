"""What a backend shows is derived from its modules, and from the types of the specification."""

import importlib
import sys
import types

import pytest

from moespec import spec
from moespec.backends.face import array_arguments, install, takes_groups


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
        assert not takes_groups(getattr(spec, name))
        assert getattr(B, name) is getattr(spec, name)


def test_a_name_that_two_modules_have_is_an_error(tmp_path, monkeypatch):
    folder = tmp_path / "twice"
    folder.mkdir()
    for module in ("first", "second"):
        (folder / f"{module}.py").write_text('__all__ = ["double"]\ndouble = 2\n')
    (folder / "arrays.py").write_text('__all__ = ["from_numpy"]\nfrom_numpy = "copies"\n')
    package = types.ModuleType("twice")
    package.__path__ = [str(folder)]
    for name in ("twice", "twice.arrays", "twice.first", "twice.second"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "twice", package)
    with pytest.raises(ImportError, match="double is public in second"):
        install(package)
    assert {"double", "put", "whole"} <= {*install(package, apart=("second",))}
    assert package.put == "copies"
