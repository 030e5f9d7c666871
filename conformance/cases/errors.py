"""Error cases that cannot be derived from signatures: violations of bounds that depend on other arguments, and forbidden array values."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["WRONG", "Size", "Wrong"]

Edit = Callable[[NDArray[Any]], NDArray[Any]]


class Wrong(NamedTuple):
    """An invalid call. `argument`: the name that the error message must contain. `options`, `arrays`: the changes to the valid call."""

    argument: str
    options: Mapping[str, Any] = {}
    arrays: Mapping[str, Edit] = {}
    error: str = "ConfigError"
    purpose: str = ""


def _option(name: str, value: Any, purpose: str = "", **others: Any) -> Wrong:
    return Wrong(name, {name: value, **others}, purpose=purpose)


def _array(name: str, edit: Edit, purpose: str, error: str = "ShapeError", argument: str = "") -> Wrong:
    return Wrong(argument or name, {}, {name: edit}, error, purpose)


def _number(name: str, value: float, purpose: str) -> Wrong:
    """Returns an invalid call in which `value` replaces the middle number of the array `name`."""

    def edit(array: NDArray[Any]) -> NDArray[Any]:
        array = array.copy()
        array.flat[array.size // 2] = value
        return array

    return _array(name, edit, purpose, "ContractError")


class Size(NamedTuple):
    """An invalid option value: `more` plus the size of the axis (or the value of the option) named `of` in the valid call."""

    of: str
    more: int = 1


CHOICES = _option("choices", Size("experts"), "More choices than experts.")
SLOTS = _option("capacity", Size("tokens"), "More slots than tokens.")
OVERFLOW = "The utility over the regularization overflows."
TINY = Wrong("utility", {"regularization": 1e-310}, {}, "ContractError", OVERFLOW)
NEGATIVE = _number("scores", -0.5, "A score is negative, which no softmax is.")
FACTORS = (
    _option("factor", 1e308, "The product of the factor and the tokens overflows."),
    _option("factor", 0.001, "No slot is left.", rounding="round"),
)

SEVEN: dict[str, Edit] = {"tokens": lambda a: a.repeat(2, 1)[:, :7]}
TWICE: dict[str, Edit] = dict.fromkeys(("key", "value"), lambda a: np.concatenate([a, a], 1))
NONE = "An option that it does not have."
CHOOSERS = (
    "noisy_top_k",
    *(f"{name}_token_choice" for name in ("sigmoid", "sinkhorn", "softmax", "sparsity_constrained")),
)

WRONG: dict[str, tuple[Wrong, ...]] = {
    **{f"ROUTERS.{name}.route": (CHOICES,) for name in CHOOSERS},
    **dict.fromkeys(("batch_priority", "expert_load", "load_loss", "noisy_top_k_affinity"), (CHOICES,)),
    **dict.fromkeys(("noisy_top_k_load_loss", "excess_gates", "relu_loss"), (CHOICES,)),
    **dict.fromkeys(("batchwise_mask", "expert_choice", "threshold_loss"), (SLOTS,)),
    **dict.fromkeys(("transport_dual", "transport_semi_dual"), (SLOTS, TINY)),
    **dict.fromkeys(
        ("hierarchical_affinity", "hierarchical_load_loss", "ROUTERS.hierarchical_top_k.route"),
        (_option("branches", 5, "They do not divide the experts."),),
    ),
    "CAPACITY_RULES.tutel": (FACTORS[0], _option("factor", 0.001, "No slot is left.")),
    "ROUTERS.base.route": (Wrong("scores", {"tokens": 7}, SEVEN, "ShapeError", "7 tokens of 3 experts."),),
    "ROUTERS.gshard.route": (_option("choices", 1, NONE), _option("jitter", 0.5, "Two kinds of noise.")),
    "ROUTERS.hash.route": (
        _option("hashes", 2, "The router has one hash."),
        _array("tokens", lambda a: a[:, 1:], "Fewer tokens than the options say."),
    ),
    "ROUTERS.image_choice.route": (CHOICES, _option("images", 5, "They do not divide the tokens.")),
    "ROUTERS.importance_score.route": (CHOICES, _option("drop", 1.0, "No token is left.")),
    "ROUTERS.mixture_of_depths.route": (
        _option("capacity_factor", 9.0, "More slots than tokens."),
        _option("weights", "softmax", "There are two kinds of weights."),
    ),
    "ROUTERS.relu.route": (CHOICES, _option("penalty_multiplier", 0.0, "The penalty would become 0.")),
    "ROUTERS.s_base.route": (_option("choices", 2, NONE),),
    "ROUTERS.soft_moe.route": (_option("eval_capacity_factor", 2.0, NONE),),
    "ROUTERS.softmax_expert_choice.route": (
        _option("cap", 1, "A token in one slot does not fill them.", capacity_factor=1.5, slots_per_expert=None),
        _option("capacity_factor", 3.5, "More slots than tokens.", slots_per_expert=None),
        _option("multiple_of", 8, "A multiple above the number of tokens.", slots_per_expert=None),
        _option("slots_per_expert", Size("tokens"), "More slots than tokens."),
    ),
    "ROUTERS.softmax_token_choice.route": (CHOICES, _option("jitter", 0.5, "Two kinds of noise.")),
    "ROUTERS.strictly_balanced.route": (_option("capacity_factor", 9.0, "More slots than tokens."),),
    "ROUTERS.switch.route": (_option("choices", 2, NONE),),
    "attention": (Wrong("key", {"causal": True}, TWICE, "ShapeError", "More keys than queries, in causal attention."),),
    "batch_norm": (_array("x", lambda a: a[:1], "One image has no variance."),),
    "box_muller": (_number("uniform", 1.0, "The logarithm of 0."),),
    "branch_rate": (
        _option("block", Size("depth", 0), "There is no such block."),
        _option("rate", 1.0, "No branch is left."),
    ),
    "capped_affinity": (SLOTS, Wrong("cap", {"capacity": Size("capacity")}, purpose="The slots are not filled.")),
    "convolution": (_array("kernel", lambda a: a[:2, :2], "A kernel of an even size."),),
    "dropout": (_number("draws", 1.0, "A draw of 1."), _option("rate", 1.0, "No entry is left.")),
    "expert_capacity": FACTORS,
    **dict.fromkeys(("global_entropy_loss", "local_entropy_loss"), (NEGATIVE,)),
    "gshard_sample": (_number("noise", 1.0, "A draw of 1."), _number("noise", 0.0, "A draw of 0.")),
    "gshard_keep": (_array("gates", lambda a: a[..., :1], "There is no second expert.", "ConfigError", "choices"),),
    "group_limited_scores": (
        _option("groups", 3, "They do not divide the experts."),
        _option("limit", Size("groups"), "More groups than there are."),
        _option("best", Size("experts"), "More experts than a group has."),
    ),
    "hash_table_balanced": (_number("frequencies", -1.0, "A frequency below 0."),),
    "hash_table_of": (
        _option("hash", Size("hashes", 0), "There is no such table."),
        _number("tables", -1.0, "An expert below 0."),
        _number("tables", 1.5, "An expert that is no whole number."),
    ),
    "hash_table_random": (_number("draws", 1.0, "A draw of 1."), _number("draws", -0.25, "A draw below 0.")),
    "importance_loss": (
        NEGATIVE,
        _array("scores", np.zeros_like, "Scores of 0 have no coefficient of variation.", "ContractError"),
    ),
    "cosine_logits": (
        Wrong("temperature", {"form": "divide"}, {"temperature": lambda a: a - a}, "ContractError", "It divides."),
    ),
    "importance_score_choice": (CHOICES, _option("drop", 1.0, "No token is left.")),
    "importance_score_order": (_option("drop", 1.5, "More than all tokens."),),
    "momentum_update": (
        _number("decay", 1.5, "The average would move away."),
        _number("decay", -0.5, "It would move too far."),
    ),
    "multi_hash_mlp": (
        _array("tables", lambda a: a[[0, 0, 0]], "Three hashes do not divide four hidden units.", "ConfigError"),
    ),
    "normalize_selected": (
        CHOICES,
        _array("combine_scores", np.zeros_like, "The chosen have the sum 0.", "ContractError"),
    ),
    "patch_embed": (_array("images", lambda a: a[:, 1:], "Patches that do not fill the image."),),
    "pool_images": (_option("images", 5, "They do not divide the tokens."),),
    "project_sparse_simplex": (_option("nonzeros", Size("n"), "More than there are values."),),
    "replay_choices": (
        _number("choices", 9, "An expert that does not exist."),
        _number("choices", -2, "Neither an expert nor -1."),
        _array("choices", lambda a: a * 0 + 1, "A token has an expert twice.", "ContractError"),
        _array("choices", lambda a: a.repeat(3, 2)[..., :5], "More choices than experts."),
    ),
    "soft_routing": (
        Wrong(
            "slots",
            dict.fromkeys(("dispatch", "combine"), "identity"),
            {},
            "ShapeError",
            "Not as many slots as tokens.",
        ),
        _option("dispatch", "identity", "The identity in one direction alone.", combine="soft"),
    ),
    "sparse_transport_affinity": (
        _option("capacity", Size("tokens"), "More slots than tokens.", sparsity="expert"),
        _option("capacity", Size("experts"), "More choices than experts.", sparsity="token"),
    ),
    "spread_images": (_option("tokens", 5, "They are not as many for each image."),),
    "token_choice": (
        CHOICES,
        _option("tries", Size("choices", -1), "Fewer tries than choices."),
        _option("tries", Size("experts"), "More tries than experts."),
        _array("order", lambda a: np.where(a == 1, 0, a), "The order holds a token twice.", "ContractError"),
        _option("slot_order", "token", "By token none tries others in turn.", choices=1, tries=2),
    ),
}
"""Maps the path of each function to its invalid calls, which are changes to the valid call from `golden/derived.py`."""
