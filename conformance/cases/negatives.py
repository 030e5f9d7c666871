"""Negatives: one fault each, with a positive twin that is one edit away.

`static` faults (shapes, dtypes, options) must raise when compiled code is traced, too; `runtime` faults (values) are
required of the specification and optional for compiled targets.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from moespec.conformance.cases.affinities import logits, utilities
from moespec.conformance.cases.allocations import scores
from moespec.conformance.cases.definition import Definition, tensor
from moespec.conformance.cases.dselect_k import codes
from moespec.conformance.cases.layers import experts
from moespec.conformance.draw import grid
from moespec.conformance.format import Expectation, Tensor, Twin

__all__ = ["cases"]

G, T, E, D = 2, 6, 3, 4
ARTICLES = {
    "ConfigError": "out of range or unknown",
    "ShapeError": "of the wrong shape",
    "DtypeError": "of the wrong dtype",
    "ContractError": "not finite",
}


def with_value(value: Tensor, number: float) -> Tensor:
    """The tensor with one entry replaced."""
    array = value.array.copy()
    array.flat[array.size // 2] = number
    return Tensor(array, value.axes)


def flat(value: Tensor) -> Tensor:
    """The tensor without its last axis."""
    return Tensor(np.ascontiguousarray(value.array[..., 0]), value.axes[:-1])


def whole(value: Tensor) -> Tensor:
    """The tensor with integers in place of floats."""
    return Tensor(value.array.astype(np.int32), value.axes)


def cases() -> Iterator[Definition]:
    """All cases of this module."""

    def case(
        algorithm: str,
        stage: str,
        name: str,
        error: str,
        argument: str,
        inputs: Mapping[str, Tensor],
        config: Mapping[str, Any],
        *,
        wrong_inputs: Mapping[str, Tensor] | None = None,
        wrong_config: Mapping[str, Any] | None = None,
        purpose: str = "",
    ) -> Definition:
        wrong_inputs, wrong_config = wrong_inputs or {}, wrong_config or {}
        return Definition(
            algorithm,
            f"negative_{name}",
            "negative",
            purpose or f"The argument {argument} is {ARTICLES[error]}.",
            {**inputs, **wrong_inputs},
            {**config, **wrong_config},
            (stage,),
            ("static_fault" if error != "ContractError" else "runtime_fault",),
            expect=Expectation(
                stage,
                error,
                argument,
                "runtime" if error == "ContractError" else "static",
                Twin({name: config[name] for name in wrong_config}, {name: inputs[name] for name in wrong_inputs}),
            ),
        )

    def array_faults(
        algorithm: str,
        stage: str,
        argument: str,
        inputs: Mapping[str, Tensor],
        config: Mapping[str, Any],
        prefix: str = "",
    ) -> Iterator[Definition]:
        """NaN, infinity, a missing axis and a wrong dtype of one array."""
        value = inputs[argument]
        for name, error, wrong in (
            ("nan", "ContractError", with_value(value, np.nan)),
            ("infinite", "ContractError", with_value(value, np.inf)),
            ("rank", "ShapeError", flat(value)),
            ("dtype", "DtypeError", whole(value)),
        ):
            yield case(
                algorithm, stage, f"{prefix}{name}", error, argument, inputs, config, wrong_inputs={argument: wrong}
            )

    def option(
        algorithm: str,
        stage: str,
        name: str,
        argument: str,
        inputs: Mapping[str, Tensor],
        config: Mapping[str, Any],
        **wrong: Any,
    ) -> Definition:
        return case(algorithm, stage, name, "ConfigError", argument, inputs, config, wrong_config=wrong)

    good = {"tokens": 196, "experts": 32, "factor": 1.0, "choices": 1, "rounding": "ceil", "multiple_of": 1}
    for name, wrong in (
        ("tokens", 0), ("experts", 0), ("factor", 0.0), ("factor_small", 0.01), ("choices", 0), ("rounding", "floor"), ("multiple_of", 0),
    ):  # fmt: skip
        argument = "factor" if name.startswith("factor") else name
        edit = {argument: wrong, **({"rounding": "round"} if name == "factor_small" else {})}
        yield option("capacity", "capacity", name, argument, {}, {"arguments": [good]}, arguments=[{**good, **edit}])

    given = {"logits": logits("negative/logits")}
    yield from array_faults("softmax_affinity", "softmax", "logits", given, {})
    product = {
        "tokens": tensor(grid("negative/tokens", (G, T, D)), "groups tokens width"),
        "kernel": tensor(grid("negative/kernel", (D, E)), "width experts"),
    }
    narrow = {"kernel": tensor(grid("negative/kernel/narrow", (D - 1, E)), "width experts")}
    yield case("softmax_affinity", "logits", "width", "ShapeError", "kernel", product, {}, wrong_inputs=narrow)

    noisy = {**given, "noise": logits("negative/noise")}
    yield from array_faults("gating_noise", "noise", "noise", noisy, {"multiplier": 1.0})
    yield option("gating_noise", "noise", "multiplier", "multiplier", noisy, {"multiplier": 1.0}, multiplier=-1.0)
    fewer = {"noise": logits("negative/noise/few", (G, T - 1, E))}
    yield case("gating_noise", "noise", "shape", "ShapeError", "noise", noisy, {"multiplier": 1.0}, wrong_inputs=fewer)

    chosen = {"scores": scores("negative/scores")}
    config: dict[str, Any] = {"choices": 2, "capacity": 2}
    yield from array_faults("token_choice", "allocation", "scores", chosen, config)
    for name, field, value in (
        ("no_choice", "choices", 0),
        ("many_choices", "choices", E + 1),
        ("no_slot", "capacity", 0),
    ):
        yield option("token_choice", "allocation", name, field, chosen, config, **{field: value})
    paired = {**chosen, "combine_scores": scores("negative/combine")}
    fewer = {"combine_scores": scores("negative/combine/few", (G, T - 1, E))}
    yield case(
        "token_choice",
        "allocation",
        "combine_shape",
        "ShapeError",
        "combine_scores",
        paired,
        config,
        wrong_inputs=fewer,
    )
    order = tensor(np.tile(np.arange(T), (G, 1)), "groups tokens")
    ordered = {**chosen, "order": order}
    yield case("token_choice", "allocation", "order_dtype", "DtypeError", "order", ordered, config,
               wrong_inputs={"order": tensor(order.array.astype(float), "groups tokens")})  # fmt: skip
    yield case("token_choice", "allocation", "order_shape", "ShapeError", "order", ordered, config,
               wrong_inputs={"order": tensor(order.array[:, :-1], "groups tokens")})  # fmt: skip
    twice = tensor(np.where(order.array == 1, 0, order.array), "groups tokens")
    yield case("token_choice", "allocation", "order_twice", "ContractError", "order", ordered, config,
               wrong_inputs={"order": twice}, purpose="The order holds a token twice.")  # fmt: skip

    yield from array_faults("batch_priority", "priority", "scores", chosen, {"by": "max", "choices": 1})
    yield option("batch_priority", "priority", "by", "by", chosen, {"by": "max", "choices": 1}, by="mean")
    yield option(
        "batch_priority", "priority", "many_choices", "choices", chosen, {"by": "sum", "choices": 2}, choices=E + 1
    )

    yield from array_faults("expert_choice", "allocation", "scores", chosen, {"capacity": 2})
    for name, wrong in (("no_slot", 0), ("many_slots", T + 1)):
        yield option("expert_choice", "allocation", name, "capacity", chosen, {"capacity": 2}, capacity=wrong)

    yield from array_faults("sinkhorn", "sinkhorn", "logits", given, {"iterations": 2})
    yield option("sinkhorn", "sinkhorn", "iterations", "iterations", given, {"iterations": 2}, iterations=0)
    yield option(
        "sinkhorn", "sinkhorn", "tolerance", "tolerance", given, {"iterations": 2, "tolerance": 0.5}, tolerance=-0.5
    )

    used, config = {"utility": utilities("negative/utility")}, {"capacity": 2, "steps": 2}
    yield from array_faults("sparse_transport", "transport", "utility", used, config)
    options: tuple[tuple[str, str, Any], ...] = (
        ("no_slot", "capacity", 0), ("many_slots", "capacity", T + 1), ("steps", "steps", 0), ("solver", "solver", "sgd"),
        ("sparsity", "sparsity", "row"), ("regularization", "regularization", 0.0),
    )  # fmt: skip
    for name, field, value in options:
        twin = {**config, "solver": "adam", "sparsity": "expert", "regularization": 1.0}
        yield option("sparse_transport", "transport", name, field, used, twin, **{field: value})
    projected = {"values": tensor(grid("negative/values", (3, 4)), "rows n")}
    yield option("sparse_transport", "simplex", "mass", "mass", projected, {"mass": 1.0}, mass=0.0)
    yield option("sparse_transport", "sparse_simplex", "nonzeros", "nonzeros", projected, {"nonzeros": 2}, nonzeros=7)

    mixed = {
        "tokens": tensor(grid("negative/soft", (G, 6, D)), "groups tokens width"),
        "slots": tensor(grid("negative/soft/slots", (D, 3, 2)), "width experts capacity"),
    }
    yield from array_faults("soft_routing", "routing", "tokens", mixed, {})
    yield from array_faults("soft_routing", "routing", "slots", mixed, {}, "slots_")
    forms = {"norm_form": "paper", "dispatch": "soft", "combine": "soft"}
    yield option("soft_routing", "routing", "norm_form", "norm_form", mixed, forms, norm_form="l1")
    yield option("soft_routing", "routing", "dispatch", "dispatch", mixed, forms, dispatch="hard")
    yield option("soft_routing", "routing", "identity_alone", "dispatch", mixed, forms, dispatch="identity")
    both = {"dispatch": "identity", "combine": "identity"}
    more = {"slots": tensor(grid("negative/soft/more", (D, 3, 3)), "width experts capacity")}
    yield case("soft_routing", "routing", "identity_slots", "ShapeError", "slots", mixed, both, wrong_inputs=more)

    for algorithm in ("importance_loss", "balance_loss"):
        yield from array_faults(algorithm, "loss", "scores", {"scores": utilities("negative/losses")}, {})
    pair, config = {**given, "noisy_logits": logits("negative/noisy")}, {"choices": 1, "noise_std": 0.25}
    yield from array_faults("load_loss", "loss", "logits", pair, config)
    yield option("load_loss", "loss", "many_choices", "choices", pair, config, choices=E + 1)
    yield option("load_loss", "loss", "noise_std", "noise_std", pair, config, noise_std=0.0)
    yield from array_faults("z_loss", "loss", "logits", given, {})

    stepped = {"z": tensor(grid("negative/z", (3, 4), reach=0.5), "rows n")}
    for fault in array_faults("dselect_k_gate", "step", "z", stepped, {"gamma": 1.0}, "step_"):
        if not fault.name.endswith("rank"):  # any shape will do
            yield fault
    yield option("dselect_k_gate", "step", "step_gamma", "gamma", stepped, {"gamma": 1.0}, gamma=0.0)
    coded, config = {"codes": codes("negative/codes", 8)}, {"experts": 8, "gamma": 1.0}
    yield from array_faults("dselect_k_gate", "selectors", "codes", coded, config, "codes_")
    yield option("dselect_k_gate", "selectors", "gamma", "gamma", coded, config, gamma=-1.0)
    yield option("dselect_k_gate", "selectors", "no_expert", "experts", coded, config, experts=0)
    shares = tensor(grid("negative/shares", (G, T, 2, E), reach=0.25, centre=0.5), "groups tokens choices experts")
    wanted = tensor(grid("negative/mixture", (G, T, 2)), "groups tokens choices")
    mixed = {"selectors": shares, "logits": wanted}
    yield from array_faults("dselect_k_gate", "gate", "logits", mixed, {}, "logits_")
    yield from array_faults("dselect_k_gate", "losses", "selectors", {"selectors": shares}, {}, "losses_")
    lost = tensor(np.where(np.arange(2)[:, None] == 0, 0.0, shares.array), "groups tokens choices experts")
    yield case(
        "dselect_k_gate", "losses", "losses_lost", "ContractError", "selectors", {"selectors": shares}, {},
        wrong_inputs={"selectors": lost}, purpose="A selector has no mass on any expert.",
    )  # fmt: skip
    yield from array_faults("dselect_k_gate", "routing", "gate", {"gate": chosen["scores"]}, {}, "routing_")

    uneven = {"scores": scores("negative/uneven", (G, T + 1, E))}
    yield from array_faults("base_layers", "balance", "scores", chosen, {}, "assignment_")
    yield case("base_layers", "balance", "uneven", "ShapeError", "scores", chosen, {}, wrong_inputs=uneven)
    yield from array_faults("base_layers", "greedy", "scores", chosen, {}, "greedy_")
    named = {**chosen, "expert": tensor(np.tile(np.arange(T) % E, (G, 1)), "groups tokens")}
    yield from array_faults("base_layers", "routing", "scores", named, {"capacity": 2}, "routing_")
    yield option("base_layers", "routing", "no_slot", "capacity", named, {"capacity": 2}, capacity=0)
    for name, error, expert in (
        ("expert_dtype", "DtypeError", tensor(named["expert"].array.astype(float), "groups tokens")),
        ("expert_shape", "ShapeError", tensor(named["expert"].array[:, :-1], "groups tokens")),
    ):
        wrong_expert = {"expert": expert}
        yield case("base_layers", "routing", name, error, "expert", named, {"capacity": 2}, wrong_inputs=wrong_expert)
    absent = {"expert": tensor(named["expert"].array + 1, "groups tokens")}
    yield case("base_layers", "routing", "expert_absent", "ContractError", "expert", named, {"capacity": 2},
               wrong_inputs=absent, purpose="There is no such expert.")  # fmt: skip

    layer = {**product, "scores": scores("negative/layer"), **experts("negative/experts")}
    del layer["kernel"]
    config = {"allocation": "token_choice", "options": {"choices": 1, "capacity": 2}}
    yield from array_faults("moe_layer", "layer", "tokens", layer, config)
    fewer = {"tokens": tensor(grid("negative/tokens/few", (G, T - 1, D)), "groups tokens width")}
    yield case("moe_layer", "layer", "tokens_routing", "ShapeError", "tokens", layer, config, wrong_inputs=fewer)
    slots = {
        "inputs": tensor(grid("negative/inputs", (G, E, 2, D)), "groups experts capacity width"),
        **experts("negative/experts"),
    }
    yield option("moe_layer", "experts", "gelu", "gelu", slots, {"gelu": "tanh"}, gelu="relu")
    for router in ("softmax_token_choice", "sinkhorn_token_choice"):
        yield from _router(option, router, ("choices", E + 1), ("batch_priority", "mean"), ("capacity_factor", 0.0))
    for router in ("softmax_expert_choice", "sinkhorn_expert_choice", "sparsity_constrained_expert_choice"):
        yield from _router(option, router, ("capacity_factor", 0.0), ("rounding", "floor"))
    trained = {"tokens": product["tokens"], "router/bias": tensor(grid("negative/bias", (8,), reach=0.25), "columns")}
    fields: dict[str, Any] = {
        "tokens": T,
        "experts": 7,
        "width": D,
        "selector_gate": "static",
        "choices": 2,
        "selector_gamma": 1.0,
    }
    for field, wrong in (("selector_gate", "image"), ("choices", 0), ("selector_gamma", 0.0)):
        argument = "gamma" if field == "selector_gamma" else field
        changed = {"router": {**fields, field: wrong}}
        yield option("dselect_k", "route", field, argument, trained, {"router": fields}, **changed)
    fewer = {"router/bias": tensor(grid("negative/bias/few", (7,), reach=0.25), "columns")}
    yield case("dselect_k", "route", "columns", "ShapeError", "bias", trained, {"router": fields}, wrong_inputs=fewer)
    routed = {"tokens": product["tokens"], "router/kernel": product["kernel"]}
    even: dict[str, Any] = {"router": {"tokens": T, "experts": E, "width": D}, "train": True}
    odd = tensor(grid("negative/tokens/odd", (G, T + 1, D)), "groups tokens width")
    yield case("base", "route", "uneven", "ShapeError", "scores", routed, even, wrong_inputs={"tokens": odd},
               wrong_config={"router": {"tokens": T + 1, "experts": E, "width": D}})  # fmt: skip
    yield case("base", "route", "tokens", "ShapeError", "tokens", routed, even, wrong_inputs={"tokens": odd})
    yield from _router(option, "soft_moe", ("norm_form", "l1"), ("combine", "hard"))


def _router(option: Any, router: str, *faults: tuple[str, Any]) -> Iterator[Definition]:
    """Faults in the configuration of a router."""
    defaults = {
        "choices": 1,
        "batch_priority": "none",
        "capacity_factor": 1.0,
        "rounding": "round",
        "norm_form": "paper",
        "combine": "soft",
    }
    inputs = {
        "tokens": tensor(grid("negative/router", (G, T, D)), "groups tokens width"),
        **experts("negative/experts"),
    }
    if router == "soft_moe":
        inputs |= {
            "router/slots": tensor(grid("negative/slots", (D, E, 2)), "width experts capacity"),
            "router/scale": tensor(np.float32(1), ""),
        }
    else:
        inputs["router/kernel"] = tensor(grid("negative/kernel", (D, E)), "width experts")
    for field, wrong in faults:
        good = {"tokens": T, "experts": E, "width": D, field: defaults[field]}
        argument = "factor" if field == "capacity_factor" else field
        yield option(router, "route", field, argument, inputs, {"router": good}, router={**good, field: wrong})
