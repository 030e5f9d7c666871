"""What is specified: the algorithms, which are the rows of the conformance matrix, and the ambiguity ledger."""

import importlib
import re
from dataclasses import dataclass

__all__ = ["ALGORITHMS", "LEDGER", "Algorithm", "LedgerEntry"]


@dataclass(frozen=True)
class Algorithm:
    """One row of the conformance matrix.

    name: of the row.
    section: where the specification defines it; cites: where the literature does.
    revision: raised whenever a value that it computes changes on purpose.
    functions: the public names it covers, attributes of `moespec.spec`; none for a model.
    """

    name: str
    section: str
    cites: str
    revision: int
    functions: tuple[str, ...]


_ROUTERS = "Liu et al. 2024 (arXiv 2401.15969)"
_VMOE = "Riquelme et al. 2021 (arXiv 2106.05974)"
_SOFT = "Puigcerver et al. 2023 (arXiv 2308.00951)"
_VIT = "Dosovitskiy et al. 2020 (arXiv 2010.11929)"
_SWITCH = "Fedus et al. 2021 (arXiv 2101.03961)"
_SHAZEER = "Shazeer et al. 2017 (arXiv 1701.06538)"
_S_BASE = "Clark et al. 2022 (arXiv 2202.01169)"
_GSHARD = "Lepikhin et al. 2020 (arXiv 2006.16668)"
_ST_MOE = "Zoph et al. 2022 (arXiv 2202.08906)"
_HASH = "Roller et al. 2021 (arXiv 2106.04426)"
_IDS = ("pair_ids", "patch_codes", "position_ids", "previous_ids")
_TABLES = ("hash_table_balanced", "hash_table_clustered", "hash_table_dispersed", "hash_table_random", "k_means")
_TRANSPORT = (
    "project_simplex",
    "project_sparse_simplex",
    "sparse_transport_affinity",
    "transport_dual",
    "transport_semi_dual",
)
_MIXER = "Tolstikhin et al. 2021 (arXiv 2105.01601)"
_SPARSE_MLP = "Lou et al. 2021 (arXiv 2109.02008)"
_IMPORTANCE = ("importance_score_order", "importance_score_choice", "ROUTERS")
_DSELECT = "Hazimeh et al. 2021 (arXiv 2106.03760)"
_BASE = "Lewis et al. 2021 (arXiv 2103.16716)"
_GATE = (
    "dselect_k_entropy",
    "dselect_k_gate",
    "dselect_k_reachability",
    "dselect_k_routing",
    "dselect_k_selectors",
    "smooth_step",
)
_NETWORK = ("attention", "gelu", "layer_norm", "patch_embed", "sigmoid_cross_entropy", "softmax_cross_entropy")

ALGORITHMS: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm("capacity", "1", f"{_ROUTERS}, section 1.2", 1, ("expert_capacity", "CAPACITY_RULES")),
        Algorithm("softmax_affinity", "2.1", f"{_ROUTERS}, eq. (1)", 1, ("router_logits", "softmax_affinity")),
        Algorithm("gating_noise", "2.2", _VMOE, 1, ("add_gating_noise",)),
        Algorithm("token_choice", "3", f"{_ROUTERS}, Algorithm 1", 1, ("token_choice",)),
        Algorithm("batch_priority", "4", f"{_VMOE}, section 4", 1, ("batch_priority",)),
        Algorithm("expert_choice", "5", f"{_ROUTERS}, Algorithm 2", 1, ("expert_choice",)),
        Algorithm("sinkhorn", "6", f"{_ROUTERS}, eq. (8)", 1, ("sinkhorn_affinity",)),
        Algorithm("sparse_transport", "8", f"{_ROUTERS}, eq. (9)", 1, _TRANSPORT),
        Algorithm("soft_routing", "9", f"{_SOFT}, Algorithms 1 and 2, Table 2", 1, ("soft_routing",)),
        Algorithm("importance_loss", "10.1", f"{_ROUTERS}, appendix A", 1, ("importance_loss",)),
        Algorithm("load_loss", "10.2", f"{_ROUTERS}, eqs. (12)-(15)", 1, ("load_loss",)),
        Algorithm("balance_loss", "10.5", f"{_SWITCH}, eqs. (4)-(6)", 1, ("balance_loss",)),
        Algorithm("z_loss", "10.6", f"{_ST_MOE}, eq. (5)", 1, ("z_loss",)),
        Algorithm("moe_layer", "1", f"{_ROUTERS}, section 1.2", 1, ("moe_layer", "expert_mlp", "routing_metrics")),
        Algorithm("network", "16", _VIT, 1, _NETWORK),
        Algorithm("softmax_token_choice", "2.2", _VMOE, 1, ("ROUTERS",)),
        Algorithm("sinkhorn_token_choice", "7.1", f"{_ROUTERS}, section 2.2", 1, ("ROUTERS",)),
        Algorithm("softmax_expert_choice", "5", f"{_ROUTERS}, section 2.3", 1, ("ROUTERS",)),
        Algorithm("sinkhorn_expert_choice", "7.2", f"{_ROUTERS}, section 2.4", 1, ("ROUTERS",)),
        Algorithm("sparsity_constrained_expert_choice", "8.7", f"{_ROUTERS}, section 2.5", 1, ("ROUTERS",)),
        Algorithm("soft_moe", "9", f"{_SOFT}; {_ROUTERS}, section 2.6", 1, ("ROUTERS",)),
        Algorithm("vit", "16", _VIT, 1, ()),
        Algorithm("importance_score", "15.5", f"{_SPARSE_MLP}, eq. (3)", 1, _IMPORTANCE),
        Algorithm("mixer", "15.1", _MIXER, 1, ()),
        Algorithm("sparse_mlp", "15", f"{_SPARSE_MLP}, eqs. (4)-(9)", 1, ("rescale",)),
        Algorithm("dselect_k_gate", "13.1", f"{_DSELECT}, eqs. (3)-(5)", 1, _GATE),
        Algorithm("dselect_k", "13", _DSELECT, 1, ("ROUTERS",)),
        Algorithm(
            "base_layers", "14", f"{_BASE}, eqs. (1), (2)", 1, ("base_assignment", "base_greedy", "base_routing")
        ),
        Algorithm("base", "14", _BASE, 1, ("ROUTERS",)),
        Algorithm("token_ids", "12", f"{_HASH}, section 3.1", 1, _IDS),
        Algorithm("hash_tables", "12", f"{_HASH}, section 3.1", 1, _TABLES),
        Algorithm("hash_routing", "12", f"{_HASH}, section 3", 1, ("hash_routing",)),
        Algorithm("multi_hash", "12", f"{_HASH}, section 3.2", 1, ("multi_hash_mlp",)),
        Algorithm("hash", "12", f"{_HASH}, section 3", 1, ("ROUTERS",)),
        Algorithm(
            "noisy_top_k_affinity",
            "2.4",
            f"{_SHAZEER}, eqs. (3)-(5)",
            1,
            ("noisy_top_k_affinity", "noisy_top_k_logits"),
        ),
        Algorithm("noisy_top_k_load_loss", "10.3", f"{_SHAZEER}, eqs. (8)-(11)", 1, ("noisy_top_k_load_loss",)),
        Algorithm("noisy_top_k", "2.4", _SHAZEER, 1, ("ROUTERS",)),
        Algorithm("router_jitter", "2.5", _SWITCH, 1, ("router_jitter",)),
        Algorithm("switch", "11", _SWITCH, 1, ("ROUTERS",)),
        Algorithm("normalize_selected", "2.6", f"{_GSHARD}, Algorithm 1", 1, ("normalize_selected",)),
        Algorithm("gshard", "20", f"{_GSHARD}, Algorithm 1", 1, ("ROUTERS", "gshard_keep")),
        Algorithm("s_base", "7.3", _S_BASE, 1, ("ROUTERS", "sigmoid_affinity")),
    )
}
"""The algorithms by name."""


@dataclass(frozen=True)
class LedgerEntry:
    """One place where a paper is silent or contradicts itself, the reading taken here, and those not taken."""

    id: str
    question: str
    reading: str
    alternatives: str


_MODULES = (
    "capacity",
    "softmax",
    "token_choice",
    "batch_priority",
    "expert_choice",
    "sinkhorn",
    "simplex",
    "transport_duals",
    "sparse_transport",
    "soft_moe",
    "losses",
    "layer",
    "network",
    "routers",
    "importance_score",
    "sparse_mlp",
    "dselect_k",
    "base_layers",
    "token_ids",
    "hash_tables",
    "hash_layers",
    "noisy_top_k",
    "switch",
    "s_base",
    "gshard",
)
_ENTRY = re.compile(
    r"^(?P<id>[A-Z]{2}-\d+): (?P<question>.+?)\n +Reading: (?P<reading>.+?)\n +Alternatives: (?P<alternatives>.+?)"
    r"(?=\n[A-Z]{2}-\d+: |\s*\Z)",
    re.MULTILINE | re.DOTALL,
)


def _ledger() -> dict[str, LedgerEntry]:
    """The entries in the docstrings of the modules, which are their only home."""
    entries = {}
    for module in _MODULES:
        for match in _ENTRY.finditer(importlib.import_module(f"moespec.spec.{module}").__doc__ or ""):
            fields = {name: " ".join(text.split()) for name, text in match.groupdict().items()}
            entries[fields["id"]] = LedgerEntry(**fields)
    return entries


LEDGER: dict[str, LedgerEntry] = _ledger()
"""The ambiguity ledger by id."""
