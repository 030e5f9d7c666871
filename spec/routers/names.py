"""The type of router names. Editors complete the names, and type checkers reject unknown names."""

from typing import Literal

RouterName = Literal[
    "base",
    "batch_expert_choice",
    "cosine_token_choice",
    "dselect_k",
    "gshard",
    "hash",
    "hierarchical_top_k",
    "image_choice",
    "importance_score",
    "mixture_of_depths",
    "noisy_top_k",
    "relu",
    "s_base",
    "sigmoid_token_choice",
    "sinkhorn_expert_choice",
    "sinkhorn_token_choice",
    "soft_moe",
    "softmax_expert_choice",
    "softmax_token_choice",
    "sparsity_constrained_expert_choice",
    "sparsity_constrained_token_choice",
    "strictly_balanced",
    "switch",
    "variable_budget",
]
"""A key of `ROUTERS`."""
