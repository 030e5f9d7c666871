"""Stages of the affinities: logits, noise, softmax, Sinkhorn, sparsity-constrained transport, and of the capacity."""

from typing import Any

import numpy as np

from moespec.conformance.program import Choice, Config, Output, Stage, Values
from moespec.spec.numerics import logsumexp

__all__ = ["SINKHORN", "STABLE_PLAN", "STAGES", "sinkhorn_scale"]


def _capacity(B: Any, config: Config, v: Values) -> Values:
    """Each call is `expert_capacity(**arguments)`, or one of `CAPACITY_RULES` where it names a `rule`."""
    slots = []
    for arguments in config["arguments"]:
        arguments = dict(arguments)
        rule = arguments.pop("rule", None)
        slots.append(B.expert_capacity(**arguments) if rule is None else B.CAPACITY_RULES[rule](**arguments))
    return {"capacity": np.array(slots, np.int32)}


def sinkhorn_scale(config: Config, v: Values) -> Any:
    """`P (1 + |L| + |f| + |g|)`: the plan is the exponential of a sum that cancels."""
    logits = v["noisy"] if "noisy" in v else v["logits"]
    f, column_mass = np.zeros(len(logits)), len(logits) / logits.shape[1]
    iterations = config["router"].get("sinkhorn_iterations", 20) if "router" in config else config.get("iterations", 20)
    for _ in range(iterations):
        g = np.log(column_mass) - logsumexp(logits + f[:, None], axis=0)
        f = -logsumexp(logits + g, axis=1)
    return np.exp(logits + f[:, None] + g) * (1 + np.abs(logits) + np.abs(f)[:, None] + np.abs(g))


SINKHORN = Output(("groups", "tokens", "experts"), written=sinkhorn_scale, constant="sinkhorn")


def _semi_dual(B: Any, config: Config, v: Values) -> Values:
    found = B.transport_semi_dual(v["potential"], v["utility"], **config)
    return {"value": found.value, "gradient": found.gradient, "plan": found.plan}


def _dual(B: Any, config: Config, v: Values) -> Values:
    found = B.transport_dual(v["token_potential"], v["expert_potential"], v["utility"], **config)
    return {
        "value": found.value,
        "token_gradient": found.token_gradient,
        "expert_gradient": found.expert_gradient,
        "plan": found.plan,
    }


_DUAL = {
    "value": Output(("groups",)),
    "gradient": Output(("groups", "tokens")),
    "token_gradient": Output(("groups", "tokens")),
    "expert_gradient": Output(("groups", "experts")),
}

LOGITS = Stage(
    "logits",
    ("router_logits",),
    ("tokens", "kernel"),
    lambda B, config, v: {"logits": B.router_logits(v["tokens"], v["kernel"])},
)


def _support(B: Any, config: Config, v: Values) -> Values:
    """Where a plan is positive: which scores each step of the solver keeps shows there."""
    options = dict(config.get("router", config))
    if "router" in config:
        settings = B.ROUTERS["sparsity_constrained_expert_choice"].configure(**options)
        return {
            "support": B.sparse_transport_affinity(
                v["scores"], capacity=settings.capacity(), steps=settings.transport_steps
            )
            > 0
        }
    return {"support": B.sparse_transport_affinity(v["utility"], **options) > 0}


STABLE_PLAN = Choice(_support, scale="stability", constant="transport")

STAGES: dict[str, tuple[Stage, ...]] = {
    "capacity": (
        Stage(
            "capacity",
            ("expert_capacity", "CAPACITY_RULES"),
            (),
            _capacity,
            {"capacity": Output(("arguments",), "int")},
            traced=False,
        ),
    ),
    "softmax_affinity": (
        LOGITS,
        Stage(
            "softmax",
            ("softmax_affinity",),
            ("logits",),
            lambda B, config, v: {"scores": B.softmax_affinity(v["logits"])},
        ),
    ),
    "gating_noise": (
        Stage(
            "noise",
            ("add_gating_noise",),
            ("logits", "noise"),
            lambda B, config, v: {"noisy": B.add_gating_noise(v["logits"], v.get("noise"), **config)},
            {"noisy": Output(("groups", "tokens", "experts"))},
        ),
    ),
    "sinkhorn": (
        Stage(
            "sinkhorn",
            ("sinkhorn_affinity",),
            ("logits",),
            lambda B, config, v: {"plan": B.sinkhorn_affinity(v["logits"], **config)},
            {"plan": SINKHORN},
        ),
    ),
    "sparse_transport": (
        Stage(
            "simplex",
            ("project_simplex",),
            ("values",),
            lambda B, config, v: {"projection": B.project_simplex(v["values"], **config)},
            {"projection": Output(("rows", "n"))},
        ),
        Stage(
            "sparse_simplex",
            ("project_sparse_simplex",),
            ("values",),
            lambda B, config, v: {"projection": B.project_sparse_simplex(v["values"], **config)},
            {"projection": Output(("rows", "n"))},
        ),
        Stage("semi_dual", ("transport_semi_dual",), ("potential", "utility"), _semi_dual, _DUAL),
        Stage("dual", ("transport_dual",), ("token_potential", "expert_potential", "utility"), _dual, _DUAL),
        Stage(
            "transport",
            ("sparse_transport_affinity",),
            ("utility",),
            lambda B, config, v: {"plan": B.sparse_transport_affinity(v["utility"], **config)},
            {"plan": Output(("groups", "tokens", "experts"), scale="spread", constant="transport")},
            STABLE_PLAN,
        ),
    ),
}
