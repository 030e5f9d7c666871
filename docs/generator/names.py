"""Names as people write them, by which readers look for a page; the first is its title, and the search finds it by all."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

__all__ = ["NAMES", "not_found"]

NAMES: dict[str, tuple[str, ...]] = {
    "base": ("BASE layers", "BASE"),
    "batch_expert_choice": ("Batch-level Expert Choice",),
    "cosine_token_choice": ("Cosine Token Choice", "Cosine router"),
    "dselect_k": ("DSelect-k",),
    "gshard": ("GShard top-2", "GShard"),
    "hash": ("Hash layers", "Hash"),
    "hierarchical_top_k": ("Hierarchical noisy top-k", "Hierarchical MoE"),
    "image_choice": ("Image choice", "Per-image routing"),
    "importance_score": ("Importance score", "Efficient routing of Sparse-MLP"),
    "mixture_of_depths": ("Mixture-of-Depths", "MoD"),
    "noisy_top_k": ("Noisy top-k", "Sparsely-gated MoE"),
    "relu": ("ReLU routing",),
    "s_base": ("S-BASE",),
    "sigmoid_token_choice": ("Sigmoid Token Choice", "Loss-free balancing router"),
    "sinkhorn_expert_choice": ("Sinkhorn Expert Choice",),
    "sinkhorn_token_choice": ("Sinkhorn Token Choice",),
    "soft_moe": ("Soft MoE", "SoftMoE"),
    "softmax_expert_choice": ("Expert Choice", "Expert Choice routing"),
    "softmax_token_choice": ("Token Choice", "Vision MoE", "Top-k routing"),
    "sparsity_constrained_expert_choice": ("Sparsity-constrained Expert Choice",),
    "sparsity_constrained_token_choice": ("Sparsity-constrained Token Choice",),
    "strictly_balanced": ("Strictly balanced gating",),
    "switch": ("Switch", "Switch routing"),
    "balance_bias": ("Loss-free balancing", "Auxiliary-loss-free load balancing"),
    "balance_loss": ("Load-balancing loss", "Auxiliary loss"),
    "base_layers": ("Balanced assignment",),
    "batch_priority": ("Batch Priority Routing", "BPR"),
    "biased_scores": ("Selection bias",),
    "capacity": ("Capacity", "Capacity factor"),
    "capped_affinity": ("Capped Expert Choice",),
    "contrastive_loss": ("Contrastive loss", "CLIP", "InfoNCE"),
    "dropout": ("Dropout and stochastic depth", "Stochastic depth", "DropPath"),
    "dselect_k_gate": ("DSelect-k gate",),
    "expert_choice": ("Expert Choice allocation",),
    "group_limited_scores": ("Group-limited choice", "Node-limited routing"),
    "hierarchical_affinity": ("Hierarchical gates",),
    "image_pooling": ("Pooling of images",),
    "limoe": ("Entropy losses of LIMoE", "LIMoE"),
    "logit_cap": ("Logit cap", "Soft cap of logits"),
    "moco": ("MoCo v3", "MoCo"),
    "moe_layer": ("MoE layer", "Dispatch and combine"),
    "gated_experts": ("Gated experts", "SwiGLU", "GEGLU", "Shared experts"),
    "multi_hash": ("MultiHash layer",),
    "network": ("Operations of the transformer", "Vision transformer"),
    "noisy_top_k_affinity": ("Noisy top-k gates",),
    "noisy_top_k_load_loss": ("Load loss of noisy top-k",),
    "normalize_selected": ("Renormalised gates",),
    "quantile_balancing": ("Quantile balancing", "QB"),
    "relu_routing": ("ReLU gates and their penalty",),
    "sigmoid_loss": ("Sigmoid loss", "SigLIP"),
    "sinkhorn": ("Sinkhorn plan", "Sinkhorn"),
    "soft_routing": ("Dispatch and combine of Soft MoE",),
    "sparse_mlp": ("Layers of Sparse-MLP", "Sparse-MLP"),
    "sparse_transport": ("Sparsity-constrained plan",),
    "token_choice": ("Token Choice allocation",),
    "z_loss": ("Router z-loss", "z-loss"),
}
"""Of a page the name, and others that are in use besides `Router.models`; another page has the name of its algorithm alone."""


def not_found(folder: Path, named: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """A sentence for each name that the search of the site in `folder` does not lead to its page, and for each earlier
    revision of which it has words. named: the names of each page."""
    text = (folder / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    pages = index["docnames"]
    for page, names in named.items():
        for name in names:
            found = [pages[number] for number, _, main in index["indexentries"].get(name.lower(), ()) if main]
            if found != [page]:
                yield f"search: {name!r} leads to {', '.join(found) or 'nothing'}, not to {page}"
    files = [each if isinstance(each, list) else [each] for each in index["terms"].values()]
    for number in sorted({number for each in files for number in each}):
        if pages[number].rpartition("-")[0] in named:
            yield f"search: has words of {pages[number]}, an earlier revision"
