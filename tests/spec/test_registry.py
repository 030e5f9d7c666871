"""The registry: what is listed exists, and what exists is listed."""

import importlib
import inspect
import pkgutil

import pytest

from moespec import spec
from moespec.spec import ALGORITHMS, LEDGER, ROUTERS

ROWS = [
    *("capacity", "softmax_affinity", "gating_noise", "token_choice", "batch_priority", "expert_choice", "sinkhorn"),
    *("sparse_transport", "soft_routing", "importance_loss", "load_loss", "balance_loss", "z_loss", "moe_layer"),
    *("network", "softmax_token_choice", "sinkhorn_token_choice", "softmax_expert_choice", "sinkhorn_expert_choice"),
    *("sparsity_constrained_expert_choice", "soft_moe", "vit", "importance_score", "mixer", "sparse_mlp"),
    *("dselect_k_gate", "dselect_k", "base_layers", "base"),
    *("token_ids", "hash_tables", "hash_routing", "multi_hash", "hash"),
    *("noisy_top_k_affinity", "noisy_top_k_load_loss", "noisy_top_k", "router_jitter", "switch"),
    *("normalize_selected", "gshard", "s_base"),
]
SUPPORT = {"slot_tokens", "stop_gradient"}


def test_rows():
    assert list(ALGORITHMS) == ROWS
    assert set(ROUTERS) < set(ALGORITHMS)


@pytest.mark.parametrize("name", ROWS)
def test_row(name):
    algorithm = ALGORITHMS[name]
    assert algorithm.name == name
    assert algorithm.section
    assert "arXiv" in algorithm.cites
    assert algorithm.revision >= 1
    assert all(hasattr(spec, function) for function in algorithm.functions)


def test_every_public_function_is_in_a_row():
    functions = {name for name in spec.__all__ if inspect.isfunction(getattr(spec, name))}
    assert functions - SUPPORT == {f for a in ALGORITHMS.values() for f in a.functions if f.islower()}


def test_everything_public_is_exported():
    for module in pkgutil.iter_modules(spec.__path__):
        for name in importlib.import_module(f"moespec.spec.{module.name}").__all__:
            assert name.isidentifier()
    assert len(set(spec.__all__)) == len(spec.__all__)
    assert all(hasattr(spec, name) for name in spec.__all__)


def test_ledger_entries_are_whole():
    assert len(LEDGER) >= 45
    for name, entry in LEDGER.items():
        assert entry.id == name
        assert entry.question.endswith("?"), name
        for text in (entry.reading, entry.alternatives):
            assert text.endswith("."), name
            assert "Reading:" not in text, name
            assert "Alternatives:" not in text, name


def test_ledger_has_every_entry_of_the_docstrings():
    written = 0
    for module in pkgutil.iter_modules(spec.__path__):
        documentation = importlib.import_module(f"moespec.spec.{module.name}").__doc__
        lines = [line for line in documentation.splitlines() if line.startswith("    Reading: ")]
        written += len(lines)
    assert written == len(LEDGER)


def test_ids_of_a_module_share_a_prefix_and_count_up():
    prefixes = {}
    for name in LEDGER:
        prefix, number = name.split("-")
        prefixes.setdefault(prefix, []).append(int(number))
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in prefixes.values())
