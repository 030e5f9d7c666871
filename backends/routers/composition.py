"""The steps that the composed routers share: logits, Token Choice with an order and weights, losses, and the output."""

from collections.abc import Callable, Mapping
from typing import Any

from moespec.backends.blocks import Array, Blocks
from moespec.spec.checks import check_size
from moespec.spec.routing import Params, RouterOutput

__all__ = [
    "Losses",
    "balance",
    "clean_losses",
    "kernel_logits",
    "logits",
    "noisy_logits",
    "noisy_losses",
    "output",
    "replay",
    "several_choices",
    "token_choice",
]

Losses = Mapping[str, Callable[[], Array]]
"""The losses by name, in the order in which they are summed. The option `<name>_weight` is the weight of a loss."""


def kernel_logits(B: Blocks, params: Params, tokens: Array, options: Any, bias: Array | None = None) -> Array:
    """Computes the logits from the kernel. Raises ShapeError unless the numbers of tokens and experts match the options."""
    clean = B.router_logits(tokens, params["kernel"], **({} if bias is None else {"bias": bias}))
    check_size("tokens", clean, -2, options.tokens, "options.tokens")
    check_size("kernel", clean, -1, options.experts, "options.experts")
    return clean


def logits(B: Blocks, params: Params, tokens: Array, options: Any, noise: Array | None) -> Array:
    """Returns the logits, with the bias, cap and token jitter that the options set. `noise` is the random draw for the jitter."""
    tokens = B.router_jitter(tokens, noise, epsilon=options.jitter) if options.jitter else tokens
    clean = kernel_logits(B, params, tokens, options, params["bias"] if options.bias else None)
    return B.cap_logits(clean, cap=options.logit_cap) if options.logit_cap else clean


def noisy_logits(B: Blocks, params: Params, tokens: Array, options: Any, noise: Array | None) -> tuple[Array, Array]:
    """Returns the logits without and with gating noise. With jitter there is no gating noise, and both results include the jitter."""
    clean = logits(B, params, tokens, options, noise)
    return clean, B.add_gating_noise(clean, None if options.jitter else noise, multiplier=options.noise_multiplier)


def replay(
    B: Blocks, options: Any, choices: Array | None, scores: Array, combine_scores: Array | None = None
) -> tuple[Array, Array | None, Array | None]:
    """Returns the scores, combine scores and `keep` for Token Choice with recorded `choices`, or the given scores without `choices`."""
    if choices is None:
        return scores, combine_scores, None
    check_size("choices", choices, -1, options.choices, "options.choices")
    return B.replay_choices(scores, choices, combine_scores)


def token_choice(
    B: Blocks,
    options: Any,
    scores: Array,
    combine_scores: Array | None = None,
    *,
    train: bool,
    priority: Array | None = None,
    epsilon: float = 0.0,
    scale: float = 1.0,
    norm: str = "sum",
    after: bool = False,
    **extensions: Any,
) -> Any:
    """Routes by Token Choice on `scores`, with the order and capacity that the options set. The backend gets all `extensions` except None.

    priority: the scores that rank the tokens (default: `scores`). norm, epsilon: if `options.normalize_selected`, a token's weights are
        divided by their norm plus `epsilon`. scale: a factor of all weights. after: if true, the norm excludes dropped choices.
    """
    given = {name: value for name, value in extensions.items() if value is not None}
    if options.batch_priority != "none":
        by = scores if priority is None else priority
        given["order"] = B.batch_priority(by, by=options.batch_priority, choices=options.choices)
    if options.normalize_selected and after:
        given["normalize"] = norm
    elif options.normalize_selected:
        how: dict[str, Any] = {**({"norm": norm} if norm != "sum" else {}), **({"epsilon": epsilon} if epsilon else {})}
        combine_scores = B.normalize_selected(scores, combine_scores, choices=options.choices, **how)
    if scale != 1:
        combine_scores = B.scaled_gates(scores if combine_scores is None else combine_scores, scale=scale)
    capacity = options.capacity(train=train)
    return B.token_choice(scores, choices=options.choices, capacity=capacity, combine_scores=combine_scores, **given)


def several_choices(options: Any) -> dict[str, Any]:
    """The arguments of `token_choice` that matter only if a token may choose two or more experts."""
    slot_order = None if options.slot_order == "choice" else options.slot_order
    return {"norm": options.normalize_norm, "after": options.normalize_when == "after", "slot_order": slot_order}


def balance(B: Blocks, scores: Array, scope: str, choices: int | None = None) -> Array:
    """The balance loss of `scores`. The load counts the first `choices` experts (default: 1) of each token in `scope`."""
    counted = {} if choices is None else {"choices": choices}
    if scope == "group":
        return B.balance_loss(scores, **counted)
    return B.balance_loss(scores, load=B.expert_load(scores, choices=choices or 1, scope=scope), **counted)


def clean_losses(B: Blocks, options: Any, logits: Array) -> Losses:
    """The losses of a router without gating noise."""
    return {
        "importance": lambda: B.importance_loss(B.softmax_affinity(logits)),
        "balance": lambda: balance(B, B.softmax_affinity(logits), options.balance_scope),
        "z": lambda: B.z_loss(logits),
    }


def noisy_losses(
    B: Blocks,
    options: Any,
    clean: Array,
    noisy: Array,
    noise: Array | None,
    *,
    choices: int = 1,
    counted: int | None = None,
) -> Losses:
    """The losses of a router with gating noise. The load loss counts `choices` experts per token. It requires noise and
    is therefore omitted at evaluation. The load of the balance loss counts the first `counted` experts of each token."""
    std = options.noise_multiplier / options.experts
    load = {"load": lambda: B.load_loss(clean, noisy, choices=choices, noise_std=std)}
    balanced = noisy if options.balance_logits == "noisy" else clean
    return {
        "importance": lambda: B.importance_loss(B.softmax_affinity(clean)),
        **(load if noise is not None and std else {}),
        "balance": lambda: balance(B, B.softmax_affinity(balanced), options.balance_scope, counted),
        "z": lambda: B.z_loss(noisy if options.z_logits == "noisy" else clean),
    }


def output(B: Blocks, options: Any, routing: Any, losses: Losses | None = None) -> RouterOutput:
    """Returns the routing, the weighted losses whose weight is not 0, and the metrics, which include these losses unweighted."""
    weights = {name: getattr(options, f"{name}_weight") for name in losses or {}}
    values = {name: loss() for name, loss in (losses or {}).items() if weights[name]}
    weighted = {name: weights[name] * value for name, value in values.items()}
    reported = {f"{name}_loss": value for name, value in values.items()}
    return RouterOutput(routing, weighted, {**B.routing_metrics(routing), **reported})
