"""The known variants that fall to one case of the suite, and why they fall to no other."""

from collections.abc import Mapping

__all__ = ["ALONE"]

ALONE: Mapping[str, str] = {
    "capacity_cut_to_the_tokens": "only an error case has a capacity above the number of tokens",
    "capped_until_it_settles": "with the default number of iterations alone the affinity does not settle",
    "clusters_before_the_update": "one case stops after an update that moves points",
    "decay_without_rate": "one case has rates of its own for some parameters",
    "empty_cluster_at_the_farthest": "one case has a cluster without points",
    "empty_cluster_at_zero": "one case has a cluster without points",
    "ended_by_small_moves": "one case has a centroid that moves by little before it moves by more",
    "halves_rounded_up": "one case has capacities of a half more than a whole number",
    "multiple_before_rounding": "one case has a quotient whose rounding passes a multiple",
    "negative_zero_last": "one case has zeros of both signs among its priorities",
    "noisy_load_quotient": "only a gradient at a small scale differs",
    "norm_with_frozen": "one case has parameters that are frozen",
    "positive_zero_before_negative": "one case has zeros of both signs",
    "quotient_first": "one case has sizes whose quotient rounding changes",
    "rates_from_the_first_block": "the rate of a branch has one case, of several calls",
    "rules_from_left_to_right": "the rules of public code have one case, of many calls",
    "small_scores_left_out": "one case has scores that are small and not 0",
    "trust_ratio_only_with_decay": "LAMB has one case",
}
