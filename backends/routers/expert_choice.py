"""Routers in which experts choose tokens, and ReLU routing, in which an expert takes the tokens with a gate above 0."""

from moespec.backends.blocks import Array, Blocks
from moespec.backends.routers.composition import Losses, clean_losses, kernel_logits, noisy_logits, noisy_losses, output
from moespec.spec.routers.batch_expert_choice import Options as Batch
from moespec.spec.routers.mixture_of_depths import Options as Depths
from moespec.spec.routers.relu import Options as Relu
from moespec.spec.routers.softmax_expert_choice import Options as Softmax
from moespec.spec.routers.strictly_balanced import Options as Balanced
from moespec.spec.routers.variable_budget import Options as Budget
from moespec.spec.routing import Params, RouterOutput, State

__all__ = [
    *("batch_expert_choice", "batch_expert_choice_update", "mixture_of_depths", "relu", "relu_update"),
    *("softmax_expert_choice", "strictly_balanced", "variable_budget", "variable_budget_update"),
]


def softmax_expert_choice(
    B: Blocks, params: Params, tokens: Array, options: Softmax, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Expert Choice on the noisy softmax or, if `options.cap` is set, on the capped affinity. The combine weights are the noisy softmax."""
    clean, noisy = noisy_logits(B, params, tokens, options, noise)
    scores, capacity, cap = B.softmax_affinity(noisy), options.capacity(train=train), options.cap
    if cap is None:
        routing = B.expert_choice(scores, capacity=capacity)
    else:
        regularization = options.cap_regularization
        capped = B.capped_affinity(B.stop_gradient(scores), capacity=capacity, cap=cap, regularization=regularization)
        routing = B.expert_choice(capped, capacity=capacity, combine_scores=scores)
    return output(B, options, routing, noisy_losses(B, options, clean, noisy, noise))


def batch_expert_choice(
    B: Blocks,
    params: Params,
    tokens: Array,
    options: Batch,
    *,
    state: State,
    noise: Array | None = None,
    train: bool = False,
) -> RouterOutput:
    """Expert Choice on the softmax. At evaluation, an expert takes one token for each (predicted) score above its threshold."""
    scores = B.softmax_affinity(kernel_logits(B, params, tokens, options))
    capacity, by = options.capacity(train=train), scores
    losses: Losses = {}
    if options.predictor:
        predicted = B.capacity_logits(tokens, params["w1"], params["b1"], params["w2"], params["b2"])
        by = B.sigmoid_affinity(predicted)
    reached = B.capacity_thresholds(by, capacity=options.capacity())
    if train:
        routing = B.expert_choice(scores, capacity=capacity)
        if options.predictor:
            chosen = B.batchwise_mask(scores, capacity=capacity)
            losses = {"predictor": lambda: B.capacity_loss(predicted, chosen)}
    else:
        taken = B.scores_above(scores, by, state["thresholds"], largest=options.eval_take == "largest")
        routing = B.expert_choice(taken, capacity=capacity, drop_zero=True)
    return output(B, options, routing, losses)._replace(statistics={"reached": reached})


def batch_expert_choice_update(B: Blocks, options: Batch, state: State, statistics: State) -> State:
    """Returns the thresholds after a training step."""
    decay = options.threshold_decay
    return {"thresholds": B.moved_thresholds(state["thresholds"], statistics["reached"], decay=decay)}


def mixture_of_depths(
    B: Blocks, params: Params, tokens: Array, options: Depths, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Expert Choice on the logits. The combine weights are the logits or the sigmoid of the logits."""
    scores = kernel_logits(B, params, tokens, options)
    weights = B.sigmoid_affinity(scores) if options.weights == "sigmoid" else scores
    routing = B.expert_choice(scores, capacity=options.capacity(train=train), combine_scores=weights)
    return output(B, options, routing)


def strictly_balanced(
    B: Blocks, params: Params, tokens: Array, options: Balanced, *, noise: Array | None = None, train: bool = False
) -> RouterOutput:
    """Expert Choice on the softmax. At evaluation, an expert takes only tokens whose gate exceeds the expert's threshold."""
    clean, thresholds = kernel_logits(B, params, tokens, options), params["thresholds"]
    gates, capacity = B.softmax_affinity(clean), options.capacity(train=train)
    losses: Losses = clean_losses(B, options, clean)
    if train:
        weights = B.masked_gates(gates, B.batchwise_mask(gates, capacity=capacity))
        routing = B.expert_choice(gates, capacity=capacity, combine_scores=weights)
        losses = {"threshold": lambda: B.threshold_loss(gates, thresholds, capacity=capacity), **losses}
    else:
        weights = B.masked_gates(gates, B.threshold_mask(gates, thresholds))
        routing = B.expert_choice(weights, capacity=capacity, drop_zero=True)
    return output(B, options, routing, losses)


def relu(
    B: Blocks,
    params: Params,
    tokens: Array,
    options: Relu,
    *,
    state: State,
    noise: Array | None = None,
    train: bool = False,
) -> RouterOutput:
    """An expert takes the tokens with a gate above 0, up to its capacity. The gate is the combine weight. The penalty scales the loss."""
    gates = B.relu_affinity(kernel_logits(B, params, tokens, options))
    routing = B.expert_choice(gates, capacity=options.capacity(train=train), drop_zero=True)
    loss = B.relu_loss(gates, state["penalty"], choices=options.choices)
    excess = B.excess_gates(gates, choices=options.choices)
    metrics = {**B.routing_metrics(routing), "relu_loss": loss}
    return RouterOutput(routing, {"relu": loss}, metrics, {"excess": excess})


def relu_update(B: Blocks, options: Relu, state: State, statistics: State) -> State:
    """Returns the penalty after a training step."""
    multiplier = options.penalty_multiplier
    return {"penalty": B.renewed_penalty(state["penalty"], statistics["excess"], multiplier=multiplier)}


def variable_budget(
    B: Blocks,
    params: Params,
    tokens: Array,
    options: Budget,
    *,
    state: State,
    noise: Array | None = None,
    train: bool = False,
) -> RouterOutput:
    """An expert takes the tokens in its column of the mask of the budget, up to its capacity."""
    logits = kernel_logits(B, params, tokens, options)
    soft, budget, choices = B.softmax_affinity(logits), options.budget, options.choices
    of_softmax = "softmax" in options.weights
    scores, compared = (soft, soft) if of_softmax else (B.sigmoid_affinity(logits), logits)
    if budget == "top_p":
        mask = B.top_p_mask(soft, state["controller"], p=options.p)
        statistics = {"budget": B.budget_excess(mask, choices=choices)}
    elif budget == "pooled":
        cut = options.eval_cutoff and not train
        mask = B.cutoff_mask(compared, state["cutoffs"]) if cut else B.pooled_mask(compared, choices=choices)
        statistics = {"reached": B.pooled_cutoff(compared, choices=choices)}
    else:
        target, warmup = options.target, options.warmup_steps if train else 0
        mask = B.cutoff_mask(logits, state["cutoffs"], capacity=target, warmup_steps=warmup)
        statistics = {"reached": B.capacity_thresholds(logits, capacity=target)}
    weights = B.masked_gates(scores, mask) if options.weights == "normalized_softmax" else scores
    weights = logits if options.weights == "identity" else weights
    kept, capacity = B.kept_scores(scores, mask), options.capacity(train=train)
    routing = B.expert_choice(kept, capacity=capacity, combine_scores=weights, drop_zero=True)
    losses: Losses = {"entropy": lambda: B.local_entropy_loss(soft)} if options.entropy_weight else {}
    return output(B, options, routing, losses)._replace(statistics=statistics)


def variable_budget_update(B: Blocks, options: Budget, state: State, statistics: State) -> State:
    """Returns the controller or the cutoffs after a training step."""
    if options.budget != "top_p":
        return {"cutoffs": B.renewed_cutoffs(state["cutoffs"], statistics["reached"], decay=options.cutoff_decay)}
    experts, gains = options.experts, {"gain": options.gain, "integral_gain": options.integral_gain}
    return {"controller": B.renewed_controller(state["controller"], statistics["budget"], experts=experts, **gains)}
