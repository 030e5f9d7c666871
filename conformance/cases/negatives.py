"""Negatives: one fault each, with a positive twin that is one edit away.

`static` faults (shapes, dtypes, options) must raise when compiled code is traced, too; `runtime` faults (values) are
required of the specification and optional for compiled targets.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from moespec.conformance.cases import hashing
from moespec.conformance.cases.affinities import logits, utilities
from moespec.conformance.cases.allocations import scores
from moespec.conformance.cases.definition import Definition, groups_tokens, tensor
from moespec.conformance.cases.dselect_k import codes
from moespec.conformance.cases.layers import experts
from moespec.conformance.cases.mlps import rescale_inputs
from moespec.conformance.draw import grid
from moespec.conformance.format import Expectation, Tensor, Twin

__all__ = ["array_faults", "cases", "fault", "sizes"]

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
    """The tensor without its last axis; a number becomes a row of two."""
    if not value.axes:
        return Tensor(np.stack([value.array] * 2), ("entries",))
    return Tensor(value.array[..., 0].copy(), value.axes[:-1])


def shorter(value: Tensor, axis: int) -> Tensor:
    """The tensor without the last entry along an axis."""
    return Tensor(np.delete(value.array, -1, axis), value.axes)


def whole(value: Tensor) -> Tensor:
    """The tensor with integers in place of floats."""
    return Tensor(value.array.astype(np.int32), value.axes)


def fault(
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
    """A negative: `inputs` and `config` are right, and wrong with the arrays and options of `wrong_...` in them."""
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
    without: str = "",
    named: str = "",
) -> Iterator[Definition]:
    """NaN, infinity, a missing axis and a wrong dtype of one array; `without` one of these that is no fault of it.

    named: what the error calls the array, if not by its name among the inputs.
    """
    value, named = inputs[argument], named or argument.split("/")[-1]
    for name, error, wrong in (
        ("nan", "ContractError", with_value(value, np.nan)),
        ("infinite", "ContractError", with_value(value, np.inf)),
        ("rank", "ShapeError", flat(value)),
        ("dtype", "DtypeError", whole(value)),
    ):
        if name != without:
            yield fault(
                algorithm, stage, f"{prefix}{name}", error, named, inputs, config, wrong_inputs={argument: wrong}
            )


def sizes(
    algorithm: str,
    stage: str,
    inputs: Mapping[str, Tensor],
    config: Mapping[str, Any],
    prefix: str = "",
    **axes: int,
) -> Iterator[Definition]:
    """One entry less along an axis of each array named, `__` for `/`."""
    for name, axis in axes.items():
        array = name.replace("__", "/")
        named = array.split("/")[-1]
        wrong = {array: shorter(inputs[array], axis)}
        yield fault(algorithm, stage, f"{prefix}{named}_size", "ShapeError", named, inputs, config, wrong_inputs=wrong)


def cases() -> Iterator[Definition]:
    """All cases of this module."""

    def option(
        algorithm: str,
        stage: str,
        name: str,
        argument: str,
        inputs: Mapping[str, Tensor],
        config: Mapping[str, Any],
        **wrong: Any,
    ) -> Definition:
        return fault(algorithm, stage, name, "ConfigError", argument, inputs, config, wrong_config=wrong)

    good = {"tokens": 196, "experts": 32, "factor": 1.0, "choices": 1, "rounding": "ceil", "multiple_of": 1}
    for name, wrong in (
        ("tokens", 0), ("experts", 0), ("factor", 0.0), ("factor_small", 0.01), ("choices", 0), ("rounding", "floor"), ("multiple_of", 0),
    ):  # fmt: skip
        argument = "factor" if name.startswith("factor") else name
        edit = {argument: wrong, **({"rounding": "round"} if name == "factor_small" else {})}
        yield option("capacity", "capacity", name, argument, {}, {"arguments": [good]}, arguments=[{**good, **edit}])

    ruled = {"tokens": 196, "experts": 32, "factor": 1.0, "choices": 1, "rule": "tutel"}
    for name, argument, wrong in (("rule_tokens", "tokens", 0), ("rule_factor_small", "factor", 0.001)):
        called = [{**ruled, argument: wrong}]
        yield option("capacity", "capacity", name, argument, {}, {"arguments": [ruled]}, arguments=called)

    given = {"logits": logits("negative/logits")}
    yield from array_faults("softmax_affinity", "softmax", "logits", given, {})
    product = {
        "tokens": tensor(grid("negative/tokens", (G, T, D)), "groups tokens width"),
        "kernel": tensor(grid("negative/kernel", (D, E)), "width experts"),
    }
    for argument in product:
        yield from array_faults("softmax_affinity", "logits", argument, product, {}, f"{argument}_")
    narrow = {"kernel": tensor(grid("negative/kernel/narrow", (D - 1, E)), "width experts")}
    yield fault("softmax_affinity", "logits", "width", "ShapeError", "kernel", product, {}, wrong_inputs=narrow)

    noisy = {**given, "noise": logits("negative/noise")}
    yield from array_faults("gating_noise", "noise", "noise", noisy, {"multiplier": 1.0})
    yield from array_faults("gating_noise", "noise", "logits", noisy, {"multiplier": 1.0}, "logits_")
    yield option("gating_noise", "noise", "multiplier", "multiplier", noisy, {"multiplier": 1.0}, multiplier=-1.0)
    fewer = {"noise": logits("negative/noise/few", (G, T - 1, E))}
    yield fault("gating_noise", "noise", "shape", "ShapeError", "noise", noisy, {"multiplier": 1.0}, wrong_inputs=fewer)

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
    yield from array_faults("token_choice", "allocation", "combine_scores", paired, config, "combine_")
    fewer = {"combine_scores": scores("negative/combine/few", (G, T - 1, E))}
    yield fault(
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
    yield fault("token_choice", "allocation", "order_dtype", "DtypeError", "order", ordered, config,
               wrong_inputs={"order": tensor(order.array.astype(float), "groups tokens")})  # fmt: skip
    yield fault("token_choice", "allocation", "order_shape", "ShapeError", "order", ordered, config,
               wrong_inputs={"order": tensor(order.array[:, :-1], "groups tokens")})  # fmt: skip
    twice = tensor(np.where(order.array == 1, 0, order.array), "groups tokens")
    yield fault("token_choice", "allocation", "order_twice", "ContractError", "order", ordered, config,
               wrong_inputs={"order": twice}, purpose="The order holds a token twice.")  # fmt: skip

    yield from array_faults("batch_priority", "priority", "scores", chosen, {"by": "max", "choices": 1})
    yield option("batch_priority", "priority", "by", "by", chosen, {"by": "max", "choices": 1}, by="mean")
    yield option(
        "batch_priority", "priority", "many_choices", "choices", chosen, {"by": "sum", "choices": 2}, choices=E + 1
    )

    yield from array_faults("expert_choice", "allocation", "scores", chosen, {"capacity": 2})
    for name, wrong in (("no_slot", 0), ("many_slots", T + 1)):
        yield option("expert_choice", "allocation", name, "capacity", chosen, {"capacity": 2}, capacity=wrong)
    yield from array_faults("expert_choice", "allocation", "combine_scores", paired, {"capacity": 2}, "combine_")
    yield from sizes("expert_choice", "allocation", paired, {"capacity": 2}, combine_scores=1)

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
    for field in ("learning_rate", "tolerance"):
        yield option("sparse_transport", "transport", field, field, used, {**config, field: 0.5}, **{field: 0.0})
    rows = {"capacity": 2, "steps": 2, "sparsity": "token"}
    yield option("sparse_transport", "transport", "many_experts", "capacity", used, rows, capacity=E + 1)
    projected = {"values": tensor(grid("negative/values", (3, 4)), "rows n")}
    for stage, config in (("simplex", {}), ("sparse_simplex", {"nonzeros": 2})):
        # A target takes rows of any number.
        yield from array_faults("sparse_transport", stage, "values", projected, config, f"{stage}_", "rank")
        name = stage.replace("simplex", "mass")
        yield option("sparse_transport", stage, name, "mass", projected, {**config, "mass": 1.0}, mass=0.0)
    yield option("sparse_transport", "sparse_simplex", "nonzeros", "nonzeros", projected, {"nonzeros": 2}, nonzeros=7)
    potentials = {
        "potential": tensor(grid("negative/alpha", (G, T)), "groups tokens"),
        "token_potential": tensor(grid("negative/alpha", (G, T)), "groups tokens"),
        "expert_potential": tensor(grid("negative/beta", (G, E)), "groups experts"),
    }
    for stage, *names in (("semi_dual", "potential"), ("dual", "token_potential", "expert_potential")):
        dual = {**used, **{name: potentials[name] for name in names}}
        config = {"capacity": 2, "regularization": 1.0}
        for argument in dual:
            yield from array_faults("sparse_transport", stage, argument, dual, config, f"{stage}_{argument}_")
        yield from sizes("sparse_transport", stage, dual, config, f"{stage}_", **dict.fromkeys(names, 1))
        yield option("sparse_transport", stage, f"{stage}_many_slots", "capacity", dual, config, capacity=T + 1)
        yield option(
            "sparse_transport", stage, f"{stage}_regularization", "regularization", dual, config, regularization=0.0
        )

    mixed = {
        "tokens": tensor(grid("negative/soft", (G, 6, D)), "groups tokens width"),
        "slots": tensor(grid("negative/soft/slots", (D, 3, 2)), "width experts capacity"),
    }
    yield from array_faults("soft_routing", "routing", "tokens", mixed, {})
    yield from array_faults("soft_routing", "routing", "slots", mixed, {}, "slots_")
    scaled = {**mixed, "scale": tensor(np.float32(1), "")}
    yield from array_faults("soft_routing", "routing", "scale", scaled, {}, "scale_")
    yield from sizes("soft_routing", "routing", mixed, {}, slots=0)
    forms = {"norm_form": "paper", "dispatch": "soft", "combine": "soft"}
    yield option("soft_routing", "routing", "norm_form", "norm_form", mixed, forms, norm_form="l1")
    yield option("soft_routing", "routing", "dispatch", "dispatch", mixed, forms, dispatch="hard")
    yield option("soft_routing", "routing", "identity_alone", "dispatch", mixed, forms, dispatch="identity")
    both = {"dispatch": "identity", "combine": "identity"}
    more = {"slots": tensor(grid("negative/soft/more", (D, 3, 3)), "width experts capacity")}
    yield fault("soft_routing", "routing", "identity_slots", "ShapeError", "slots", mixed, both, wrong_inputs=more)

    for algorithm in ("importance_loss", "balance_loss"):
        yield from array_faults(algorithm, "loss", "scores", {"scores": utilities("negative/losses")}, {})
    nobody = {"scores": groups_tokens(np.zeros((G, T, E)))}
    yield fault("importance_loss", "loss", "no_mass", "ContractError", "scores", {"scores": utilities("negative/losses")},
               {}, wrong_inputs=nobody, purpose="Scores of 0 have no coefficient of variation.")  # fmt: skip
    pair, config = {**given, "noisy_logits": logits("negative/noisy")}, {"choices": 1, "noise_std": 0.25}
    yield from array_faults("load_loss", "loss", "logits", pair, config)
    yield from array_faults("load_loss", "loss", "noisy_logits", pair, config, "noisy_")
    yield from sizes("load_loss", "loss", pair, config, noisy_logits=1)
    yield option("load_loss", "loss", "many_choices", "choices", pair, config, choices=E + 1)
    yield option("load_loss", "loss", "noise_std", "noise_std", pair, config, noise_std=0.0)
    yield from array_faults("z_loss", "loss", "logits", given, {})

    stepped = {"z": tensor(grid("negative/z", (3, 4), reach=0.5), "rows n")}
    for wrongly in array_faults("dselect_k_gate", "step", "z", stepped, {"gamma": 1.0}, "step_"):
        if not wrongly.name.endswith("rank"):  # any shape will do
            yield wrongly
    yield option("dselect_k_gate", "step", "step_gamma", "gamma", stepped, {"gamma": 1.0}, gamma=0.0)
    coded, config = {"codes": codes("negative/codes", 8)}, {"experts": 8, "gamma": 1.0}
    yield from array_faults("dselect_k_gate", "selectors", "codes", coded, config, "codes_")
    yield option("dselect_k_gate", "selectors", "gamma", "gamma", coded, config, gamma=-1.0)
    yield option("dselect_k_gate", "selectors", "no_expert", "experts", coded, config, experts=0)
    shares = tensor(grid("negative/shares", (G, T, 2, E), reach=0.25, centre=0.5), "groups tokens choices experts")
    wanted = tensor(grid("negative/mixture", (G, T, 2)), "groups tokens choices")
    mixed = {"selectors": shares, "logits": wanted}
    yield from array_faults("dselect_k_gate", "gate", "selectors", mixed, {}, "selectors_", "rank")
    yield from array_faults("dselect_k_gate", "gate", "logits", mixed, {}, "logits_")
    yield from array_faults("dselect_k_gate", "losses", "selectors", {"selectors": shares}, {}, "losses_")
    lost = tensor(np.where(np.arange(2)[:, None] == 0, 0.0, shares.array), "groups tokens choices experts")
    yield fault(
        "dselect_k_gate", "losses", "losses_lost", "ContractError", "selectors", {"selectors": shares}, {},
        wrong_inputs={"selectors": lost}, purpose="A selector has no mass on any expert.",
    )  # fmt: skip
    yield from array_faults("dselect_k_gate", "routing", "gate", {"gate": chosen["scores"]}, {}, "routing_")

    uneven = {"scores": scores("negative/uneven", (G, T + 1, E))}
    yield from array_faults("base_layers", "balance", "scores", chosen, {}, "assignment_")
    yield fault("base_layers", "balance", "uneven", "ShapeError", "scores", chosen, {}, wrong_inputs=uneven)
    yield from array_faults("base_layers", "greedy", "scores", chosen, {}, "greedy_")
    named = {**chosen, "expert": tensor(np.tile(np.arange(T) % E, (G, 1)), "groups tokens")}
    yield from array_faults("base_layers", "routing", "scores", named, {"capacity": 2}, "routing_")
    yield option("base_layers", "routing", "no_slot", "capacity", named, {"capacity": 2}, capacity=0)
    for name, error, expert in (
        ("expert_dtype", "DtypeError", tensor(named["expert"].array.astype(float), "groups tokens")),
        ("expert_shape", "ShapeError", tensor(named["expert"].array[:, :-1], "groups tokens")),
    ):
        wrong_expert = {"expert": expert}
        yield fault("base_layers", "routing", name, error, "expert", named, {"capacity": 2}, wrong_inputs=wrong_expert)
    absent = {"expert": tensor(named["expert"].array + 1, "groups tokens")}
    yield fault("base_layers", "routing", "expert_absent", "ContractError", "expert", named, {"capacity": 2},
               wrong_inputs=absent, purpose="There is no such expert.")  # fmt: skip

    layer = {**product, "scores": scores("negative/layer"), **experts("negative/experts")}
    del layer["kernel"]
    config = {"allocation": "token_choice", "options": {"choices": 1, "capacity": 2}}
    yield from array_faults("moe_layer", "layer", "tokens", layer, config)
    fewer = {"tokens": tensor(grid("negative/tokens/few", (G, T - 1, D)), "groups tokens width")}
    yield fault("moe_layer", "layer", "tokens_routing", "ShapeError", "tokens", layer, config, wrong_inputs=fewer)
    slots = {
        "inputs": tensor(grid("negative/inputs", (G, E, 2, D)), "groups experts capacity width"),
        **experts("negative/experts"),
    }
    yield option("moe_layer", "experts", "gelu", "gelu", slots, {"gelu": "tanh"}, gelu="relu")
    config = {"gelu": "tanh"}
    yield from array_faults("moe_layer", "experts", "inputs", slots, config, "inputs_")
    for name in (name for name in slots if name != "inputs"):
        yield from array_faults("moe_layer", "experts", name, slots, config, f"{name.removeprefix('experts/')}_")
        yield from sizes("moe_layer", "experts", slots, config, "experts_", **{name.replace("/", "__"): 0})
        yield from sizes("moe_layer", "experts", slots, config, "inner_", **{name.replace("/", "__"): 1})

    idle = {**slots, "used": tensor(np.array([1, 0, 1]), "experts")}
    yield from sizes("moe_layer", "experts", idle, config, used=0)

    yield from _network(array_faults, option, sizes)
    for router in ("softmax_token_choice", "sinkhorn_token_choice"):
        yield from _router(option, router, ("choices", E + 1), ("batch_priority", "mean"), ("capacity_factor", 0.0))
    for router in ("softmax_expert_choice", "sinkhorn_expert_choice", "sparsity_constrained_expert_choice"):
        yield from _router(option, router, ("capacity_factor", 0.0), ("rounding", "floor"))
    for router in ("sinkhorn_token_choice", "sinkhorn_expert_choice"):
        yield from _router(option, router, ("combine_with", "scores"), ("sinkhorn_iterations", 0))
    yield from _router(option, "sparsity_constrained_expert_choice", ("combine_with", "plan"), ("transport_steps", 0))
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
    yield fault("dselect_k", "route", "columns", "ShapeError", "bias", trained, {"router": fields}, wrong_inputs=fewer)
    yield from array_faults("dselect_k", "route", "router/bias", trained, {"router": fields}, "bias_")
    yield from sizes("dselect_k", "route", trained, {"router": fields}, tokens=1)
    routed = {"tokens": product["tokens"], "router/kernel": product["kernel"]}
    even: dict[str, Any] = {"router": {"tokens": T, "experts": E, "width": D}, "train": True}
    odd = tensor(grid("negative/tokens/odd", (G, T + 1, D)), "groups tokens width")
    yield fault("base", "route", "uneven", "ShapeError", "scores", routed, even, wrong_inputs={"tokens": odd},
               wrong_config={"router": {"tokens": T + 1, "experts": E, "width": D}})  # fmt: skip
    yield fault("base", "route", "tokens", "ShapeError", "tokens", routed, even, wrong_inputs={"tokens": odd})
    yield from _router(option, "soft_moe", ("norm_form", "l1"), ("combine", "hard"), ("eval_capacity_factor", 2.0))
    yield from sizes("base", "route", routed, even, router__kernel=1)
    inputs, config = _inputs("softmax_token_choice"), {"router": {"tokens": T, "experts": E, "width": D}}
    for argument in ("tokens", "router/kernel"):
        prefix = argument.removeprefix("router/") + "_"
        yield from array_faults("softmax_token_choice", "route", argument, inputs, config, prefix)
    yield from sizes("softmax_token_choice", "route", inputs, config, tokens=1, router__kernel=1)
    yield from sizes("softmax_token_choice", "route", inputs, config, "width_", router__kernel=0)
    inputs = _inputs("soft_moe")
    yield from sizes("soft_moe", "route", inputs, config, router__slots=0)

    sorted_, tenth = {"scores": scores("negative/importance", (G, 10, E))}, {"tokens": 10, "experts": E, "width": 1}
    cut: dict[str, Any] = {"router": {**tenth, "choices": 1, "drop": 0.25}, "capacity": 3}
    yield from array_faults("importance_score", "allocation", "scores", sorted_, cut)
    faults: tuple[tuple[str, str, Any], ...] = (
        ("drop_all", "drop", 1.0), ("drop_less", "drop", -0.25), ("many_choices", "choices", E + 1),
    )  # fmt: skip
    for name, field, value in faults:
        edited = {**cut["router"], field: value}
        yield option("importance_score", "allocation", name, field, sorted_, cut, router=edited)
    yield option("importance_score", "allocation", "no_slot", "capacity", sorted_, cut, capacity=0)
    weighed = {**sorted_, "combine_scores": scores("negative/importance/combine", (G, 10, E))}
    yield from array_faults("importance_score", "allocation", "combine_scores", weighed, cut, "combine_")
    yield from sizes("importance_score", "allocation", weighed, cut, combine_scores=1)
    share = {**cut["router"], "drop": 1.5}
    yield option("importance_score", "priority", "drop_more", "drop", sorted_, cut, router=share)

    mapped = rescale_inputs("negative/rescale", (4, 3, 5, 2))
    yield from array_faults("sparse_mlp", "rescale", "x", mapped, {})
    for argument in ("token_kernel", "token_bias", "channel_kernel", "channel_bias"):
        name = f"params/{argument}"
        yield from array_faults("sparse_mlp", "rescale", name, mapped, {}, f"{argument}_")
        longer = np.concatenate([mapped[name].array] * 2)
        yield fault(
            "sparse_mlp", "rescale", f"{argument}_size", "ShapeError", argument, mapped, {},
            wrong_inputs={name: tensor(longer, " ".join(mapped[name].axes))},
        )  # fmt: skip
    yield from _router(option, "importance_score", ("choices", E + 1), ("drop", 1.0), ("capacity_factor", 0.0))
    yield from _hash(option)


def _network(array_faults: Any, option: Any, sizes: Any) -> Iterator[Definition]:
    """Faults of the operations around the routers."""

    def drawn(axes: str, *shape: int) -> Tensor:
        return tensor(grid(f"negative/network/{axes}", shape), axes)

    def faults(stage: str, inputs: Mapping[str, Tensor], config: Mapping[str, Any], *any_rank: str) -> Any:
        for argument in inputs:
            without = "rank" if argument in any_rank else ""
            yield from array_faults("network", stage, argument, inputs, config, f"{stage}_{argument}_", without)

    x = {"x": drawn("rows width", 2, 6)}
    yield from faults("gelu", x, {"form": "tanh"}, "x")
    yield option("network", "gelu", "gelu_form", "form", x, {"form": "tanh"}, form="relu")
    norm = {"x": drawn("images tokens width", 2, 3, 6), "scale": drawn("width", 6), "bias": drawn("width", 6)}
    yield from faults("layer_norm", norm, {"epsilon": 0.5}, "x")
    yield from sizes("network", "layer_norm", norm, {"epsilon": 0.5}, "layer_norm_", scale=0, bias=0)
    yield option("network", "layer_norm", "epsilon", "epsilon", norm, {"epsilon": 0.5}, epsilon=0.0)
    heads = {name: drawn("images tokens heads dim", 2, 3, 2, 4) for name in ("query", "key", "value")}
    yield from faults("attention", heads, {})
    yield from sizes("network", "attention", heads, {}, "attention_heads_", key=2)
    yield from sizes("network", "attention", heads, {}, "attention_dim_", key=3, value=3)
    patches = {
        "images": drawn("images height width channels", 2, 4, 4, 2),
        "kernel": drawn("patch patch channels width", 2, 2, 2, 3),
        "bias": drawn("width", 3),
    }
    yield from faults("patch_embed", patches, {})
    yield from sizes("network", "patch_embed", patches, {}, "patch_embed_", images=1, kernel=1, bias=0)
    yield from sizes("network", "patch_embed", patches, {}, "patch_embed_channels_", kernel=2)
    classes = {"logits": drawn("rows classes", 2, 4), "targets": drawn("rows classes", 2, 4)}
    for stage in ("softmax_cross_entropy", "sigmoid_cross_entropy"):
        yield from faults(stage, classes, {}, "logits", "targets")
        yield from sizes("network", stage, classes, {}, f"{stage}_", targets=1)


def _hash(option: Any) -> Iterator[Definition]:
    """Faults in token ids, tables, the routing by a table, MultiHash and the router."""

    def integer_faults(
        algorithm: str,
        stage: str,
        argument: str,
        inputs: Mapping[str, Tensor],
        config: Mapping[str, Any],
        prefix: str = "",
        below: int | None = None,
    ) -> Iterator[Definition]:
        """A missing axis, a wrong dtype and a number out of range of an array of integers."""
        value = inputs[argument]
        faults = [
            ("rank", "ShapeError", Tensor(value.array[0], value.axes[1:])),
            ("dtype", "DtypeError", Tensor(value.array.astype(np.float32), value.axes)),
            ("below_zero", "ContractError", Tensor(value.array - value.array.max() - 1, value.axes)),
        ]
        if below is not None:
            faults.append(("too_large", "ContractError", Tensor(value.array + below, value.axes)))
        for name, error, wrong in faults:
            purpose = f"The argument {argument} is out of range." if error == "ContractError" else ""
            name = f"{prefix}{name}"
            yield fault(
                algorithm, stage, name, error, argument, inputs, config, wrong_inputs={argument: wrong}, purpose=purpose
            )

    patches = {
        "patches": tensor(grid("negative/patches", (G, T, D)), "groups tokens pixels"),
        "codebook": tensor(grid("negative/codebook", (3, D)), "codes pixels"),
    }
    yield from array_faults("token_ids", "codes", "patches", patches, {})
    yield from array_faults("token_ids", "codes", "codebook", patches, {}, "codebook_")
    narrow = {"codebook": tensor(grid("negative/codebook/narrow", (3, D - 1)), "codes pixels")}
    yield fault("token_ids", "codes", "codebook_width", "ShapeError", "codebook", patches, {}, wrong_inputs=narrow)
    states = {"tokens": tensor(grid("negative/tokens", (G, T, D)), "groups tokens width")}
    yield from array_faults("token_ids", "position", "tokens", states, {}, "position_")
    hashed = hashing.given("negative/hash")
    ids = {"ids": hashed["ids"]}
    yield from integer_faults("token_ids", "previous", "ids", ids, {}, "previous_")
    pair, config = {"first": hashed["ids"], "second": hashed["ids"]}, {"vocabulary": hashing.V}
    yield from integer_faults("token_ids", "pair", "first", pair, config, "first_")
    yield from integer_faults("token_ids", "pair", "second", pair, config, "second_", hashing.V)
    yield option("token_ids", "pair", "vocabulary", "vocabulary", pair, config, vocabulary=0)
    yield from sizes("token_ids", "pair", pair, config, second=1)

    draws = {"draws": tensor(np.array([0.25, 0.5, 0.75]), "ids")}
    counts = {"frequencies": tensor(np.array([3.0, 1, 2]), "ids")}
    clusters = {"clusters": tensor(np.array([0, 1, 0]), "ids")}
    points = {"points": tensor(grid("negative/points", (5, 2)), "points width")}
    points["centroids"] = tensor(grid("negative/centroids", (2, 2)), "clusters width")
    rows = {"embeddings": points["points"], "centroids": points["centroids"]}
    for stage, argument, inputs in (("random", "draws", draws), ("balanced", "frequencies", counts)):
        yield from array_faults("hash_tables", stage, argument, inputs, {"experts": E}, f"{stage}_", "rank")
        value = inputs[argument]
        two_axes, number = Tensor(value.array[None], ("rows", "ids")), Tensor(value.array[0].copy(), ())
        for name, shaped in (("rank", two_axes), ("number", number)):
            yield fault("hash_tables", stage, f"{stage}_{name}", "ShapeError", argument, inputs, {"experts": E},
                       wrong_inputs={argument: shaped})  # fmt: skip
        yield option("hash_tables", stage, f"{stage}_experts", "experts", inputs, {"experts": E}, experts=0)
    for name, stage, argument, inputs, number_wrong in (
        ("random_one", "random", "draws", draws, 1.0),
        ("random_below_zero", "random", "draws", draws, -0.25),
        ("balanced_below_zero", "balanced", "frequencies", counts, -1.0),
    ):
        yield fault(
            "hash_tables", stage, name, "ContractError", argument, inputs, {"experts": E},
            wrong_inputs={argument: with_value(inputs[argument], number_wrong)}, purpose=f"The argument {argument} is out of range.",
        )  # fmt: skip
    yield option("hash_tables", "dispersed", "dispersed_experts", "experts", clusters, {"experts": E}, experts=0)
    for name, error, array in (
        ("dtype", "DtypeError", clusters["clusters"].array.astype(np.float32)),
        ("below_zero", "ContractError", clusters["clusters"].array - 1),
    ):
        yield fault(
            "hash_tables", "dispersed", f"dispersed_{name}", error, "clusters", clusters, {"experts": E},
            wrong_inputs={"clusters": tensor(array, "ids")}, purpose=f"The clusters have a wrong {name.replace('_', ' ')}.",
        )  # fmt: skip
    yield from array_faults("hash_tables", "k_means", "points", points, {"iterations": 2}, "k_means_")
    yield from array_faults("hash_tables", "k_means", "centroids", points, {"iterations": 2}, "centroids_")
    yield option("hash_tables", "k_means", "iterations", "iterations", points, {"iterations": 2}, iterations=0)
    yield from sizes("hash_tables", "k_means", points, {"iterations": 2}, centroids=1)
    yield option(
        "hash_tables", "clustered", "clustered_iterations", "iterations", rows, {"iterations": 2}, iterations=0
    )

    config = {"experts": E, "capacity": 2}
    yield from integer_faults("hash_routing", "routing", "ids", hashed, config, below=hashing.V)
    yield from integer_faults(
        "hash_routing", "routing", "table", {**hashed, "table": hashed["table"]}, config, "table_", E
    )
    yield option("hash_routing", "routing", "no_slot", "capacity", hashed, config, capacity=0)
    yield option("hash_routing", "routing", "experts", "experts", hashed, {"experts": E}, experts=0)

    tables = {"tables": tensor(np.stack([hashed["table"].array] * 2), "hashes ids")}
    mixed = {**states, **ids, **tables, **experts("negative/experts", h=4)}
    options: dict[str, Any] = {"activation": "relu"}
    yield from array_faults("multi_hash", "mlp", "tokens", mixed, options)
    yield from integer_faults("multi_hash", "mlp", "ids", mixed, options, "ids_", hashing.V)
    yield from integer_faults("multi_hash", "mlp", "tables", mixed, options, "tables_", E)
    yield option("multi_hash", "mlp", "activation", "activation", mixed, options, activation="silu")
    yield from sizes("multi_hash", "mlp", mixed, options, ids=1)
    three = {"tables": tensor(np.stack([hashed["table"].array] * 3), "hashes ids")}
    yield fault("multi_hash", "mlp", "three_hashes", "ConfigError", "tables", mixed, options, wrong_inputs=three,
               purpose="Three hashes do not divide four hidden units.")  # fmt: skip

    routed = {**states, **ids, **experts("negative/experts")}
    routed["router/tables"] = tensor(hashed["table"].array[None].astype(np.float32), "hashes ids")
    good = {"tokens": T, "experts": E, "width": D, "hashes": 1, "capacity_factor": 1.0}
    for argument, edit in (("hashes", {"hashes": 2}), ("factor", {"capacity_factor": 0.0})):
        (field,) = edit
        yield option("hash", "route", field, argument, routed, {"router": good}, router={**good, **edit})
    yield from sizes("hash", "route", routed, {"router": good}, tokens=1, ids=1)
    one_table = {"router/tables": Tensor(routed["router/tables"].array[0], ("ids",))}
    yield fault(
        "hash", "route", "tables_rank", "ShapeError", "tables", routed, {"router": good}, wrong_inputs=one_table
    )
    yield fault("hash", "route", "ids", "DtypeError", "ids", routed, {"router": good},
               wrong_inputs={"ids": Tensor(hashed["ids"].array.astype(np.float32), hashed["ids"].axes)})  # fmt: skip


def _router(option: Any, router: str, *faults: tuple[str, Any]) -> Iterator[Definition]:
    """Faults in the configuration of a router."""
    defaults = {
        "choices": 1,
        "batch_priority": "none",
        "capacity_factor": 1.0,
        "rounding": "round",
        "norm_form": "paper",
        "combine": "soft",
        "combine_with": "softmax",
        "sinkhorn_iterations": 2,
        "transport_steps": 2,
        "drop": 0.25,
        "eval_capacity_factor": None,
    }
    names = {"capacity_factor": "factor", "sinkhorn_iterations": "iterations", "transport_steps": "steps"}
    for field, wrong in faults:
        good = {"tokens": T, "experts": E, "width": D, field: defaults[field]}
        yield option(
            router,
            "route",
            field,
            names.get(field, field),
            _inputs(router),
            {"router": good},
            router={**good, field: wrong},
        )


def _inputs(router: str) -> dict[str, Tensor]:
    """Tokens, experts and parameters for a router."""
    inputs = {
        "tokens": tensor(grid("negative/router", (G, T, D)), "groups tokens width"),
        **experts("negative/experts"),
    }
    if router == "soft_moe":
        return {
            **inputs,
            "router/slots": tensor(grid("negative/slots", (D, E, 2)), "width experts capacity"),
            "router/scale": tensor(np.float32(1), ""),
        }
    return {**inputs, "router/kernel": tensor(grid("negative/kernel", (D, E)), "width experts")}
