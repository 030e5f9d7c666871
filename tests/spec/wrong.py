"""Implementations that break an invariant on purpose, where no variant of the conformance suite does.

Each is what `holds` takes: public names with what they become, functions of the right backend `B` and the arguments.
"""

import numpy as np

__all__ = [
    *("capacity_off_by", "coupled", "favouring", "gradient_negated", "last_forgotten", "load_of_scores"),
    *("norms_apart", "random", "regularization_doubled", "restarted", "rows_not_put_back", "variance_alone"),
]


def _first_changed(name, change):
    """The function `name` of another first argument."""

    def function(B, *arguments, **options):
        if arguments:
            return getattr(B, name)(change(arguments[0]), *arguments[1:], **options)
        first = next(iter(options))
        return getattr(B, name)(**{**options, first: change(options[first])})

    return {name: function}


def favouring(name, axis):
    """What stands later on an axis counts more."""

    def change(values):
        later = np.arange(values.shape[axis]).reshape([-1 if i == axis else 1 for i in range(values.ndim)])
        return values * (1 + later)

    return _first_changed(name, change)


def coupled(name):
    """What a group sees depends on the other groups."""
    return _first_changed(name, lambda values: values - values.mean(axis=0) * np.arange(values.shape[-1]))


def random(name):
    """Every call is another."""
    generator = np.random.default_rng(0)
    return _first_changed(name, lambda values: values + generator.normal(size=values.shape))


def capacity_off_by(name, more):
    """There are `more` slots than requested, or non-zero entries; but never less than one, nor more than tokens."""

    def function(B, *arguments, capacity, **options):
        tokens = next(value for value in [*options.values(), *arguments] if isinstance(value, np.ndarray)).shape[1]
        return getattr(B, name)(*arguments, capacity=min(max(capacity + more, 1), tokens), **options)

    return {name: function}


def _rows_not_put_back(B, scores, *, order=None, **options):
    if order is not None:
        scores = np.take_along_axis(scores, order[..., None], axis=1)
    return B.token_choice(scores, **options)


rows_not_put_back = {"token_choice": _rows_not_put_back}
"""Tokens are routed in the order of service, and the routing stays in that order."""


def _last_forgotten(B, scores, *, order=None, **options):
    routing = B.token_choice(scores, order=order, **options)
    if order is None:
        return routing
    last = routing.token == order[:, -1][:, None, None]
    return routing._replace(
        token=np.where(last, routing.tokens, routing.token), weight=np.where(last, 0, routing.weight)
    )


last_forgotten = {"token_choice": _last_forgotten}
"""The last token of an order is not assigned."""

restarted = {
    "sinkhorn_affinity": lambda B, logits, iterations=20: B.sinkhorn_affinity(logits, iterations=iterations % 4 + 1)
}
"""Every few iterations begin anew."""

regularization_doubled = {
    "transport_semi_dual": lambda B, regularization=1.0, **arguments: B.transport_semi_dual(
        regularization=2 * regularization, **arguments
    )
}
"""The conjugate has the factor gamma, not gamma / 2."""


def _gradient_negated(B, **arguments):
    result = B.transport_semi_dual(**arguments)
    return result._replace(gradient=-result.gradient)


gradient_negated = {"transport_semi_dual": _gradient_negated}
"""The gradient is that of the negated semi-dual, which a solver minimises."""

variance_alone = {"importance_loss": lambda B, scores: np.mean(np.var(scores.sum(axis=1), axis=1))}
"""The variance is not divided by the squared mean."""

load_of_scores = {
    "load_loss": lambda B, logits, noisy_logits, **options: B.load_loss(
        B.softmax_affinity(logits), noisy_logits, **options
    )
}
"""Scores, not logits, are compared with the threshold."""


def _norms_apart(B, tokens, slots, *, norm_form="paper", **options):
    short = 1e-3 if norm_form == "rsqrt" else 1.0
    return B.soft_routing(short * tokens, slots, norm_form=norm_form, **options)


norms_apart = {"soft_routing": _norms_apart}
"""One form of the norm adds an epsilon that is a million times larger."""
