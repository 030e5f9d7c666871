"""Computes the statistics of Soft MoE's dispatch and combine weights that the paper reports for trained models.

Source: Soft MoE (arXiv 2308.00951), appendices G, H and I. Shapes: G groups of at most one image; T tokens per group;
S = E C slots; slot (e, c) has number e C + c.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moespec.backends.contract import Backend
from moespec.models.families import Config, family
from moespec.spec.errors import ConfigError
from moespec.training.compilation import compile_if, pays

__all__ = ["FRACTION", "SlotStatistics", "largest_first", "needed", "numbers", "relative", "slot_statistics"]

FRACTION = 0.9
"""`needed` counts the largest weights that make up this fraction of the total weight of a slot or token."""
BATCH = 16
QUANTILES = {"smallest": 0, "5%": 5, "median": 50, "95%": 95, "largest": 100}

Floats = NDArray[np.float64]


class SlotStatistics(NamedTuple):
    """The statistics of one MoE layer over some images. `block` is the name of the layer; `experts` and `capacity` are E and C.

    dispatch: `(G, T)`, the weight of a token summed over all slots (Figure 24, left); the mean of `dispatch` is S / T.
    combine: `(G, S)`, the weight of a slot summed over all tokens, divided by the smallest such sum in its group (Figure 24).
    cumulative_dispatch: `(T,)`; entry k is the mean fraction of a slot's weight in its k + 1 largest weights (Figure 26, the line).
    cumulative_combine: `(S,)`; entry k is the mean fraction of a token's combine weight in its k + 1 largest weights.
    tokens_needed `(G, S)`, slots_needed `(G, T)`: the number of largest weights that make up 90 % of the weight of a slot, or of a token.
    similarity: `(S, S)`, inner products of the normalised parameters of the slots (Figures 28 to 30).
    """

    block: str
    experts: int
    capacity: int
    dispatch: Floats
    combine: Floats
    cumulative_dispatch: Floats
    cumulative_combine: Floats
    tokens_needed: NDArray[np.int64]
    slots_needed: NDArray[np.int64]
    similarity: Floats


def slot_statistics(B: Backend, model: Config, params: Any, images: NDArray[np.float32]) -> list[SlotStatistics]:
    """Returns the statistics of each MoE layer, in order. `params` are arrays of `B`; images `(N, H, W, Ch)` are model inputs.

    A group of `model` must contain at most one image. Raises ConfigError, naming the router, unless the router is Soft MoE.
    """
    module = family(model)
    layers = module.moe_layers(model, 1)
    if not layers:
        raise ConfigError("analysis: expected a model with Soft MoE, but it has no MoE block")
    for layer in layers:
        if layer.router != "soft_moe":
            raise ConfigError(f"analysis: expected the router 'soft_moe', got {layer.router!r}")

    def forward(params: Any, images: Any) -> list[Any]:
        routings = module.forward(B, model, params, images).routings
        return [(B.summed_dispatch(r), B.cumulative_dispatch(r), tuple(r.dense())) for r in routings]

    run = compile_if(B, pays(B, calls=-(-len(images) // BATCH)), forward)
    batches = [B.to_numpy(run(params, B.from_numpy(images[n : n + BATCH]))) for n in range(0, len(images), BATCH)]
    statistics = []
    for layer, parts in zip(layers, zip(*batches, strict=True), strict=True):
        columns = zip(*((summed, cumulative, *_of_weights(*dense)) for summed, cumulative, dense in parts), strict=True)
        summed, cumulative, by_slot, of_token, *needed_counts = map(np.concatenate, columns)
        slots = params["blocks"][layer.name]["moe"]["router"]["slots"]
        similarity = np.asarray(B.to_numpy(B.slot_similarity(slots)), np.float64)
        means = np.asarray(cumulative, np.float64).mean(axis=0), of_token.mean(axis=0)
        of_slots = np.asarray(summed, np.float64), by_slot, *means, *needed_counts, similarity
        statistics.append(SlotStatistics(layer.name, *slots.shape[1:], *of_slots))
    return statistics


def _of_weights(dispatch: NDArray[Any], combine: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """Computes `combine`, `cumulative_combine` per group, `tokens_needed` and `slots_needed` from weights `(G, T, E, C)`."""
    groups, tokens = dispatch.shape[:2]
    into, back = (np.asarray(weights, np.float64).reshape(groups, tokens, -1) for weights in (dispatch, combine))
    of_token = largest_first(back)
    tokens_needed = needed(largest_first(into.swapaxes(1, 2)))
    return relative(back.sum(axis=1)), of_token.mean(axis=1), tokens_needed, needed(of_token)


def relative(weights: Floats) -> Floats:
    """Divides weights `(..., n)` by the smallest of the n weights; returns infinity where the smallest weight is 0.

    >>> relative(np.array([0.5, 0.25, 1.0])).tolist()
    [2.0, 1.0, 4.0]
    """
    least = weights.min(axis=-1, keepdims=True)
    multiples: Floats = np.divide(weights, least, out=np.full_like(weights, np.inf), where=least > 0)
    return multiples


def largest_first(weights: Floats) -> Floats:
    """Returns cumulative sums over the last axis `(..., n)`, largest first: entry k is the sum of the k + 1 largest weights.

    >>> largest_first(np.array([0.25, 0.5, 0.25])).tolist()
    [0.5, 0.75, 1.0]
    """
    sums: Floats = np.cumsum(np.sort(weights, axis=-1)[..., ::-1], axis=-1)
    return sums


def needed(sums: Floats, fraction: float = FRACTION) -> NDArray[np.int64]:
    """Returns how many of the largest weights make up `fraction` of the total, up to rounding. sums: the result of `largest_first`.

    >>> needed(np.array([0.5, 0.75, 1.0])), needed(np.array([0.5, 0.75, 1.0]), 0.75)
    (np.int64(3), np.int64(2))
    """
    short = sums < (fraction - 1e-6) * sums[..., -1:]
    counts: NDArray[np.int64] = np.minimum(short.sum(axis=-1) + 1, sums.shape[-1])
    return counts


def numbers(statistics: Sequence[SlotStatistics]) -> dict[str, Any]:
    """Returns the statistics of each layer as numbers, lists and dicts, by layer name."""
    return {each.block: _numbers(each) for each in statistics}


def _numbers(one: SlotStatistics) -> dict[str, Any]:
    expert = np.repeat(np.arange(one.experts), one.capacity)
    same, itself = expert[:, None] == expert, np.eye(len(expert), dtype=bool)
    pairs = {"same_expert": same & ~itself, "other_experts": ~same}
    return {
        "tokens": one.dispatch.shape[1],
        "experts": one.experts,
        "slots_per_expert": one.capacity,
        "summed_dispatch": _spread(one.dispatch),
        "summed_combine_by_least": _spread(one.combine),
        "tokens_needed": _spread(one.tokens_needed),
        "slots_needed": _spread(one.slots_needed),
        "cumulative_dispatch": one.cumulative_dispatch.tolist(),
        "cumulative_combine": one.cumulative_combine.tolist(),
        "slot_similarity": {name: _spread(one.similarity[mask]) for name, mask in pairs.items() if mask.any()},
    }


def _spread(values: NDArray[Any]) -> dict[str, float | None]:
    """Returns the mean and quantiles, with None for infinity and NaN, which JSON lacks."""
    quantiles = np.quantile(values, [q / 100 for q in QUANTILES.values()], method="lower")
    spread = {"mean": float(values.mean()), **dict(zip(QUANTILES, map(float, quantiles), strict=True))}
    return {name: value if np.isfinite(value) else None for name, value in spread.items()}
