"""Names as people write them, by which readers look for a page; the first is its title, and the search finds it by all."""

import json
from collections.abc import Iterator
from pathlib import Path

__all__ = ["NAMES", "not_found"]

NAMES: dict[str, tuple[str, ...]] = {
    "base": ("BASE layers", "BASE"),
    "dselect_k": ("DSelect-k",),
    "gshard": ("GShard top-2", "GShard"),
    "hash": ("Hash layers", "Hash"),
    "hierarchical_top_k": ("Hierarchical noisy top-k", "Hierarchical MoE"),
    "importance_score": ("Importance score", "Efficient routing of Sparse-MLP"),
    "noisy_top_k": ("Noisy top-k", "Sparsely-gated MoE"),
    "s_base": ("S-BASE",),
    "sinkhorn_expert_choice": ("Sinkhorn Expert Choice",),
    "sinkhorn_token_choice": ("Sinkhorn Token Choice",),
    "soft_moe": ("Soft MoE", "SoftMoE"),
    "softmax_expert_choice": ("Expert Choice", "Expert Choice routing"),
    "softmax_token_choice": ("Token Choice", "V-MoE", "Vision MoE", "Top-k routing"),
    "sparsity_constrained_expert_choice": ("Sparsity-constrained Expert Choice",),
    "sparsity_constrained_token_choice": ("Sparsity-constrained Token Choice",),
    "strictly_balanced": ("Strictly balanced gating",),
    "switch": ("Switch", "Switch Transformer", "Switch routing"),
    "balance_loss": ("Load-balancing loss", "Auxiliary loss"),
    "base_layers": ("Balanced assignment",),
    "batch_priority": ("Batch Priority Routing", "BPR"),
    "capacity": ("Capacity", "Capacity factor"),
    "capped_affinity": ("Capped Expert Choice",),
    "contrastive_loss": ("Contrastive loss", "CLIP", "InfoNCE"),
    "convolution": ("Convolution",),
    "dropout": ("Dropout and stochastic depth", "Stochastic depth", "DropPath"),
    "dselect_k_gate": ("DSelect-k gate",),
    "embedding": ("Embedding",),
    "expert_choice": ("Expert Choice allocation",),
    "gating_noise": ("Gating noise",),
    "hash_routing": ("Hash routing",),
    "hash_tables": ("Hash tables",),
    "hierarchical_affinity": ("Hierarchical gates",),
    "hierarchical_load_loss": ("Hierarchical load loss",),
    "importance_loss": ("Importance loss",),
    "limoe": ("Entropy losses of LIMoE", "LIMoE"),
    "load_loss": ("Load loss",),
    "masked_gates": ("Masked gates",),
    "moco": ("MoCo v3", "MoCo"),
    "moe_layer": ("MoE layer", "Dispatch and combine"),
    "gated_experts": ("Gated experts", "SwiGLU", "GEGLU", "Shared experts"),
    "multi_hash": ("MultiHash layer",),
    "network": ("Operations of the transformer", "Vision transformer"),
    "noisy_top_k_affinity": ("Noisy top-k gates",),
    "noisy_top_k_load_loss": ("Load loss of noisy top-k",),
    "normalize_selected": ("Renormalised gates",),
    "router_jitter": ("Router jitter",),
    "routing_statistics": ("Routing statistics",),
    "sigmoid_loss": ("Sigmoid loss", "SigLIP"),
    "sinkhorn": ("Sinkhorn plan", "Sinkhorn"),
    "soft_routing": ("Dispatch and combine of Soft MoE",),
    "softmax_affinity": ("Softmax affinity",),
    "sparse_mlp": ("Layers of Sparse-MLP", "Sparse-MLP"),
    "sparse_transport": ("Sparsity-constrained plan",),
    "threefry": ("Threefry",),
    "threshold_loss": ("Threshold loss",),
    "token_choice": ("Token Choice allocation",),
    "token_ids": ("Token ids",),
    "z_loss": ("Router z-loss", "z-loss"),
}
"""Of each page the name, and others that are in use."""


def not_found(folder: Path) -> Iterator[str]:
    """A sentence for each name that the search of the site in `folder` does not lead to its page, and for each earlier
    revision of which it has words."""
    text = (folder / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    pages = index["docnames"]
    for page, names in NAMES.items():
        for name in names:
            found = [pages[number] for number, _, main in index["indexentries"].get(name.lower(), ()) if main]
            if found != [page]:
                yield f"search: {name!r} leads to {', '.join(found) or 'nothing'}, not to {page}"
    with_words = {
        number for files in index["terms"].values() for number in (files if isinstance(files, list) else [files])
    }
    for number in sorted(with_words):
        if pages[number].rpartition("-")[0] in NAMES:
            yield f"search: has words of {pages[number]}, an earlier revision"
