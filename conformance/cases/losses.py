"""Cases of the auxiliary losses."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from moespec.backends.blocks import Array
from moespec.conformance.author.definition import Definition, call, of_array, single, tensor
from moespec.conformance.author.inputs import both, distinct, groups_tokens, logits, rows, utilities
from moespec.conformance.author.near_ties import near_ties
from moespec.conformance.author.variant import Spec, Variant, chosen_mask, fixed, one_group, scaled, variant
from moespec.conformance.format import Tensor
from moespec.spec.numerics import logsumexp, normal_cdf, softmax, stable_order, variance

G, T, E = 2, 6, 3
SIZE, SCOPE = "degenerate_size", "fractions_of_the_scope"


def cases() -> Iterator[Definition]:
    yield from _of_scores("importance_loss", "population_variance")
    yield from _of_scores("balance_loss", "first_maximum")
    yield from near_ties("balance_loss", call("balance_loss", {"scores": "router_logits"}))
    counted = of_array("balance_loss", "scores", choices=2)
    purpose = "Both choices of a token count; of equal scores the lower expert."
    yield counted("two_choices", "value", purpose, utilities("balance_loss/e", (G, 8, 4)))
    level = groups_tokens(np.full((G, 8, 4), 0.25))
    yield counted("two_choices_uniform", "tie", purpose, level, "first_maximum")
    purpose = "By the scores, where both choices count."
    yield counted("gradient_two_choices", "gradient", purpose, distinct("balance_loss/f", (G, 8, 4)), "stop_gradient")
    purpose = "The fractions of a load, of two choices, that the tokens of both groups and others make."
    given: dict[str, Any] = {"choices": 2, "load": tensor(np.array([9.0, 3.0, 0.0, 20.0], np.float32), "experts")}
    yield counted("load", "value", purpose, utilities("balance_loss/g", (G, 8, 4)), SCOPE, **given)
    yield from _load()
    yield from _z()


def _of_scores(name: str, flag: str) -> Iterator[Definition]:
    case = of_array(name, "scores")
    purpose = "Softmax scores, two groups: the mean of their losses."
    yield case("values", "value", purpose, utilities(f"{name}/a"), flag)
    purpose = "Uniform scores; equal maxima count for the first expert."
    yield case("uniform", "tie", purpose, groups_tokens(np.full((G, 8, 4), 0.25)), flag)
    tied = rows("0.375 0.375 0.25; 0.25 0.375 0.375; 0.5 0.0 0.5; 0.25 0.5 0.25; 0.125 0.75 0.125; 0.25 0.375 0.375")
    yield case("tied", "tie", "Two maxima in a row.", both(tied), flag)
    yield case("one_expert", "degenerate", "One expert.", groups_tokens(np.ones((G, T, 1))), SIZE)
    yield case("one_token", "degenerate", "One token.", utilities(f"{name}/c", (1, 1, E)), SIZE)
    yield case("gradient", "gradient", "By the scores.", utilities(f"{name}/d"), "stop_gradient")


def _load() -> Iterator[Definition]:
    def case(name: str, kind: str, purpose: str, clean: Tensor, noisy: Any, *flags: str, choices: int = 1,
             noise_std: float = 0.25) -> Definition:  # fmt: skip
        arguments: dict[str, Any] = {"logits": clean, "noisy_logits": groups_tokens(noisy)}
        arguments |= {"choices": choices, "noise_std": noise_std}
        return single("load_loss", "load_loss", name, kind, purpose, *flags, **arguments)

    def noisy(name: str, kind: str, purpose: str, *flags: str, shape: tuple[int, int, int] = (G, T, E),
              **options: Any) -> Definition:  # fmt: skip
        clean = logits(f"load/{name}", shape, reach=1.0)
        noise = logits(f"load/{name}/noise", shape, 0.5, 0.0625).array + np.arange(shape[2]) / 64  # prevents ties
        return case(name, kind, purpose, clean, clean.array + noise, *flags, **options)

    own = "threshold_includes_self"
    yield noisy("one_choice", "value", "The threshold is the largest noisy logit.", own)
    yield noisy("all_choices", "degenerate", "All experts are chosen.", own, choices=3)
    level = groups_tokens(np.zeros((G, 8, 4)))
    yield case("equal", "tie", "Equal logits: every expert passes with probability one half.", level, level.array)
    yield noisy("one_token", "degenerate", "One token.", own, shape=(1, 1, E))
    purpose = "By the clean logits and, through the threshold, by the noisy ones."
    yield noisy("gradient", "gradient", purpose, choices=2)


def _z() -> Iterator[Definition]:
    case = partial(single, "z_loss", "z_loss")
    yield case("values", "value", "Moderate logits.", logits=logits("z/a"))
    purpose = "Logits whose exponential overflows float32."
    yield case("large", "value", purpose, "large_logits", logits=logits("z/b", reach=200.0, step=4.0))
    purpose = "Equal logits: the square of log E."
    yield case("equal", "tie", purpose, logits=groups_tokens(np.zeros((G, T, E))))
    purpose = "One expert: the mean square of the logits."
    yield case("one_expert", "degenerate", purpose, SIZE, logits=logits("z/c", (G, T, 1)))
    yield case("gradient", "gradient", "By the logits.", logits=logits("z/d"))


def _unbiased(experts: int) -> float:
    """Returns the ratio of the unbiased variance to the population variance. The ratio is undefined for one expert."""
    return experts / (experts - 1) if experts > 1 else np.nan


def threshold_of_the_others(B: Spec, logits: Array, noisy_logits: Array, *, choices: int, noise_std: float) -> Array:
    """The load threshold of an expert is the K-th largest noisy logit of the other experts, as in Shazeer et al."""
    losses = []
    for clean, noisy in zip(logits, noisy_logits, strict=True):
        load = np.zeros(clean.shape[1])
        for expert in range(clean.shape[1]):
            others = np.delete(noisy, expert, axis=1)
            ranked = np.take_along_axis(others, stable_order(others), 1)
            threshold = ranked[:, choices - 1] if choices <= ranked.shape[1] else -np.inf
            load[expert] = np.sum(1 - normal_cdf((threshold - clean[:, expert]) / noise_std))
        losses.append(variance(load) / np.mean(load) ** 2)
    return np.mean(losses)


def square_of_the_mean(B: Spec, logits: Array) -> Array:
    """The z-loss is the square of the mean, not the mean of the squares."""
    return np.mean(np.mean(logsumexp(logits, axis=2), axis=1) ** 2)


def balance_counts_two(B: Spec, scores: Array, *, choices: int = 2, **more: Any) -> Array:
    """The balance loss counts the two best experts of each token, not only the best expert."""
    return B.balance_loss(scores, choices=min(choices, scores.shape[2]), **more)


def balance_of_what_is_kept(B: Spec, scores: Array, **more: Any) -> Array:
    """The balance loss counts only tokens with a slot, where each expert has 1.25 T / E slots, but at least 4."""
    _, tokens, experts = scores.shape
    capacity = max(4, min(tokens, int(1.25 * tokens / experts)))
    preferred = stable_order(scores)[..., 0]
    counts = [np.minimum(np.bincount(row, minlength=experts), capacity) for row in preferred]
    return experts * np.mean(np.sum(np.stack(counts) / tokens * np.mean(scores, axis=1), axis=1))


def balance_of_chosen_scores(B: Spec, scores: Array, **more: Any) -> Array:
    """Before the balance loss averages the scores, all but each token's two best scores are set to 0."""
    shares = chosen_mask(scores, 1).mean(axis=1)
    means = np.mean(scores * chosen_mask(scores, min(2, scores.shape[2])), axis=1)
    return scores.shape[2] * np.mean(np.sum(shares * means, axis=1))


def balance_of_padded_experts(B: Spec, scores: Array, **more: Any) -> Array:
    """The balance loss counts an expert's empty slots as tokens, so all experts have equal counts."""
    return np.mean(np.sum(np.mean(scores, axis=1), axis=1))


def _padded(array: Array, value: float) -> Any:
    """Pads an array (groups, tokens, experts) to a multiple of 8 tokens. Every score of an added token is `value`."""
    return np.pad(array, ((0, 0), (0, -array.shape[1] % 8), (0, 0)), constant_values=value)


def padding_in_the_balance_loss(B: Spec, scores: Array, **more: Any) -> Array:
    """The balance loss counts the padding tokens (logits 0) that extend a group to a multiple of 8 tokens."""
    return B.balance_loss(_padded(scores, 1 / scores.shape[2]), **more)


def shares_in_float32(B: Spec, scores: Array, load: Array | None = None, *, choices: int = 1) -> Array:
    """The shares of the balance loss are rounded to float32."""
    _, tokens, experts = scores.shape
    chosen = stable_order(scores)[..., :choices].reshape(len(scores), -1)
    shares = np.stack([np.bincount(row, minlength=experts) / tokens for row in chosen]).astype(np.float32)
    shares = shares if load is None else (choices * load / np.sum(load)).astype(np.float32)
    return experts * np.mean(np.sum(shares.astype(np.float64) * np.mean(scores, axis=1), axis=1))


def variants() -> Iterator[Variant]:
    importance: dict[str, Any] = {"importance_loss": lambda scores: _unbiased(scores.shape[2])}
    load: dict[str, Any] = {"load_loss": lambda logits, **_: _unbiased(logits.shape[2])}
    computes = "The variance of the importance is the unbiased one, divided by E - 1."
    yield scaled("unbiased_importance", computes, "AL-1b", **importance)
    computes = "The variance of the load is the unbiased one, divided by E - 1."
    yield scaled("unbiased_load", computes, "AL-1b", **load)
    computes = "The variances of importance and load are the unbiased ones, divided by E - 1."
    yield scaled("unbiased_importance_and_load", computes, "AL-1b", "microsoft/Tutel", **importance, **load)
    yield variant(threshold_of_the_others, "load_loss", ledger="AL-2b")
    computes = "The load loss compares the softmax of the logits with the threshold, which is a logit."
    yield fixed("load_of_probabilities", computes, "load_loss", "AL-2c", "microsoft/Tutel", logits=softmax)
    computes = "The balance loss is the sum divided by E, not multiplied by it."
    yield scaled("balance_over_experts", computes, "AL-3b", balance_loss=lambda scores, **_: scores.shape[2] ** (-2.0))
    computes = "Fractions and mean scores of the balance loss are computed over all groups together."
    who = "NVIDIA/Megatron-LM"
    yield fixed("balance_of_all_groups", computes, "balance_loss", "AL-9b", who, scores=one_group)
    computes = "The balance loss counts only the choices of its group even if other groups should count."
    yield fixed("balance_of_each_group", computes, "balance_loss", "AL-9", load=None)
    yield variant(square_of_the_mean, "z_loss")
    yield scaled("z_summed", "The z-loss is summed over tokens, not averaged.", z_loss=lambda logits: logits.shape[1])
    yield variant(balance_of_what_is_kept, "balance_loss", ledger="AL-5c", who="st-moe-pytorch")
    yield variant(shares_in_float32, "balance_loss", who="huggingface/transformers")
    computes = "The scores of the balance loss go through the softmax a second time."
    who = "huggingface/transformers (Mixtral; issue 45120)"
    yield fixed("balance_of_a_second_softmax", computes, "balance_loss", who=who, scores=softmax)
    yield variant(balance_counts_two, "balance_loss", ledger="AL-8b", who="huggingface/transformers (Mixtral)")
    computes = "The balance loss counts only a token's first choice if it should count all choices."
    yield fixed("balance_counts_the_first", computes, "balance_loss", "AL-8", choices=1)
    yield variant(balance_of_chosen_scores, "balance_loss", who="paiml/aprender (pull request 2162)")
    yield variant(balance_of_padded_experts, "balance_loss", who="NVIDIA/Megatron-LM (issue 1617)")
    yield variant(padding_in_the_balance_loss, "balance_loss", who="huggingface/transformers (Mixtral; issue 28505)")
    computes = "The z-loss counts the tokens of logits 0 that pad a group to a multiple of 8."
    who = "NVIDIA/Megatron-LM (issue 1984)"
    yield fixed("padding_in_the_z_loss", computes, "z_loss", who=who, logits=partial(_padded, value=0.0))
    computes = "A loss is the sum over the groups, not their mean."
    names = ("balance_loss", "z_loss", "importance_loss", "load_loss")
    sums: dict[str, Any] = {name: lambda **arrays: len(next(iter(arrays.values()))) for name in names}
    who = "NVIDIA-NeMo/Automodel (pull request 3359)"
    yield scaled("losses_summed_over_groups", computes, who=who, **sums)
    computes = "The z-loss is computed from the probabilities, not the logits."
    who = "huggingface/transformers (Switch; issue 48293)"
    yield fixed("z_of_probabilities", computes, "z_loss", who=who, logits=softmax)
