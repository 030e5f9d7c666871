"""The known variants that fall to one case of the suite, and why they fall to no other."""

from collections.abc import Mapping

__all__ = ["SINGLE_DETECTIONS"]

SINGLE_DETECTIONS: Mapping[str, str] = {
    "all_bits": "the words of one case are made into uniform numbers",
    "cap_kept_exactly": "the default regularisation keeps the cap; one case has another, with which it is exceeded",
    "capacity_cut_to_the_tokens": "only an error case has a capacity above the number of tokens",
    "capped_as_in_the_paper": "one case leaves the regularisation to the default; all others with a cap set it",
    "capped_until_it_settles": "with the default number of iterations alone the affinity does not settle",
    "centroids_to_the_higher": "one case has a point as far from two centroids",
    "codes_to_the_higher": "one case has a patch as near to two codewords",
    "codes_without_epsilon": "one case has a patch so faint that epsilon counts",
    "decay_without_rate": "one case has rates of its own for some parameters",
    "empty_cluster_at_the_farthest": "one case has a cluster without points",
    "empty_cluster_at_zero": "one case has a cluster without points",
    "ended_by_small_moves": "only among points that are close together do clusters change while centroids hardly move",
    "exact_gelu_by_default": "one case leaves the form of GELU to the default",
    "halves_rounded_up": "one case has capacities of a half more than a whole number",
    "maximum_not_subtracted": "one case has logits whose exponential overflows float64",
    "mean_error_of_the_columns": "one case stops between the tolerance of the mean error and that of the largest",
    "multiple_before_rounding": "one case has a quotient whose rounding passes a multiple",
    "negative_zero_last": "one case has zeros of both signs among its priorities",
    "noisy_by_default": "one case has noise that the options do not ask for",
    "noisy_load_of_some_alone": "one case chooses all experts",
    "noisy_load_quotient": "only a gradient at a small scale differs",
    "norm_of_the_columns": "one case stops between the tolerance of the norm and that of the largest error",
    "norm_with_frozen": "one case has parameters that are frozen",
    "positive_zero_before_negative": "one case has zeros of both signs",
    "positive_zero_kept_before_negative": "one case has zeros of both signs among values that are kept or not",
    "quotient_first": "one case has sizes whose quotient rounding changes",
    "rates_from_the_first_block": "the rate of a branch has one case, of several calls",
    "rescaled_around_a_residual": "a residual fits only where the sizes stay as they are, as in one case",
    "rules_from_left_to_right": "the rules of public code have one case, of many calls",
    "selected_sum_clamped": "one case has sums below the epsilon of float32",
    "sinkhorn_in_the_kernel_domain": "one case has logits whose exponential overflows",
    "small_scores_left_out": "one case has scores that are small and not 0",
    "ties_to_the_higher_index": "one case has equal values at the edge of the sparse projection",
    "trust_ratio_only_with_decay": "LAMB has one case",
    "zero_choices_not_made": "a plan has an entry for nearly every choice; one case is drawn until it has not",
    "zero_choices_without_weight": "a plan has an entry for nearly every choice; one case is drawn until it has not",
}
