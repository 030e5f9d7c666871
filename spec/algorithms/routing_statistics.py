"""Statistics of routings and of Soft MoE's slots, for inspecting a trained model. The statistics carry no gradient."""

import numpy as np

from moespec.spec.algorithm import Algorithm
from moespec.spec.algorithms.metrics import tensors
from moespec.spec.numerics import Array, Shared, normalize_l2, stable_order, stop_gradient
from moespec.spec.routing import Routing
from moespec.spec.values import as_array

__all__ = ["collapse_metrics", "cumulative_dispatch", "experts_per_token", "slot_similarity", "summed_dispatch"]

ALGORITHMS = (
    Algorithm(
        "routing_statistics",
        "Puigcerver et al. 2023 (arXiv 2308.00951), appendices E, G, H and I",
        2,
        ("collapse_metrics", "cumulative_dispatch", "experts_per_token", "slot_similarity", "summed_dispatch"),
    ),
)


def collapse_metrics(routing: Routing) -> dict[str, Array]:
    """Measures how close the softmaxes of Soft MoE are to one-hot vectors. The softmaxes can become one-hot as the width grows.

        dispatch_max = mean over slots of max_t dispatch[t, e, c]
        combine_max  = mean over tokens of max_e,c combine[t, e, c]

    Args:
        routing: `dispatch` and `combine`, each (tokens, experts, capacity).

    Returns:
        `dispatch_max` and `combine_max`, scalars, averaged if there are several groups.

    Source: Soft MoE, appendix E, Figures 13 and 14.

    >>> from moespec.spec import soft_routing
    >>> routing = soft_routing([[1.0, 0.0], [0.0, 1.0]], np.eye(2)[:, :, None], scale=2.0)
    >>> {name: round(float(value), 10) for name, value in collapse_metrics(routing).items()}
    {'dispatch_max': 0.880796658, 'combine_max': 0.880796658}
    """
    dispatch, combine = tensors(routing)
    return {"dispatch_max": np.mean(dispatch.real.max(axis=0)), "combine_max": np.mean(combine.real.max(axis=(1, 2)))}


def summed_dispatch(routing: Routing) -> Array:
    """Computes the total weight of each token in all slots: `sum_e,c dispatch[t, e, c]`.

    Args:
        routing: `dispatch` and `combine`, each (tokens, experts, capacity).

    Returns:
        (tokens,).

    Source: Soft MoE, appendix G, Figure 24 (left).

    >>> from moespec.spec import expert_choice
    >>> summed_dispatch(expert_choice([[0.9, 0.8], [0.1, 0.2], [0.5, 0.1]], capacity=2)).tolist()
    [2.0, 1.0, 1.0]
    """
    return tensors(routing)[0].sum(axis=(1, 2))


def cumulative_dispatch(routing: Routing) -> Array:
    """Measures how many tokens dominate a slot. Entry k is the sum of the k + 1 largest token weights of a slot, averaged over slots:

        cumulative[k] = mean over e, c of the sum of the k + 1 largest dispatch[:, e, c]

    Args:
        routing: `dispatch` and `combine`, each (tokens, experts, capacity).

    Returns:
        (tokens,), ascending. The last entry is 1 if the weights of every slot sum to 1.

    Source: Soft MoE, appendix H.1, Figure 26 (the line).

    >>> from moespec.spec import soft_routing
    >>> slots = np.ones((1, 1, 1))
    >>> routing = soft_routing([[0.0], [3.0], [1.0]], slots, normalize=False)
    >>> cumulative_dispatch(routing).round(10).tolist()
    [0.8437947345, 0.9579899339, 1.0]
    """
    dispatch = tensors(routing)[0]
    descending = np.take_along_axis(dispatch, stable_order(dispatch, axis=0), axis=0)
    return np.cumsum(descending, axis=0).mean(axis=(1, 2))


def experts_per_token(routing: Routing) -> dict[str, Array]:
    """Computes statistics of n[t], the number of experts that process token t (with Expert Choice, n[t] varies):

        experts_min, experts_max     min_t n[t], max_t n[t]
        at_least_1, _2, _4           1 / T #{t : n[t] >= 1}, and so on

    Args:
        routing: `dispatch` and `combine`, each (tokens, experts, capacity).

    Returns:
        `experts_min`, `experts_max`, `at_least_1`, `at_least_2` and `at_least_4`, scalars, averaged over groups.

    Source: google-research/vmoe, vmoe/moe.py, _get_top_items_per_expert_einsum_dispatcher.

    >>> from moespec.spec import expert_choice
    >>> found = experts_per_token(expert_choice([[0.9, 0.8], [0.1, 0.1], [0.5, 0.1], [0.0, 0.2]], capacity=2))
    >>> {name: float(value) for name, value in found.items()}
    {'experts_min': 0.0, 'experts_max': 2.0, 'at_least_1': 0.75, 'at_least_2': 0.25, 'at_least_4': 0.0}
    """
    count = (tensors(routing)[0] > 0).any(axis=2).sum(axis=1).astype(np.float64)
    shares = {f"at_least_{n}": np.asarray(np.mean(count >= n)) for n in (1, 2, 4)}
    return {"experts_min": np.asarray(count.real.min()), "experts_max": np.asarray(count.real.max()), **shares}


def slot_similarity(slots: Shared) -> Array:
    """Computes the inner products of the normalised slots of Soft MoE: `<l2n(phi[:, i]), l2n(phi[:, j])>`, for slots `i = e C + c`.

    Args:
        slots: Phi, (width, experts, capacity).

    Returns:
        A symmetric matrix (slots, slots), with slots = experts * capacity. The diagonal is slightly below 1 (see `normalize_l2`).

    Source: Soft MoE, appendix I, Figures 28 to 30.

    >>> slot_similarity([[[1.0, 3.0]], [[0.0, 4.0]]]).round(5).tolist()
    [[1.0, 0.6], [0.6, 1.0]]
    """
    slots = stop_gradient(as_array("slots", slots, "width experts capacity"))
    unit = normalize_l2(slots.reshape(len(slots), -1), 0, form="paper")
    return np.einsum("di,dj->ij", unit, unit)
