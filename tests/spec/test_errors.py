"""Every kind of bad input to every public function: the class, the argument and the value in the message.

For each function there is one valid call; the arrays of that call are then spoiled one at a time.
"""

import inspect
from typing import Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest

from moespec import spec
from moespec.spec import ConfigError, ContractError, DtypeError, Routing, ShapeError, SpecError, checks
from moespec.spec.examples import LOGITS, NOISE

ONES = np.ones((6, 3))
COLUMNS = np.linspace(-1.0, 1.0, 36).reshape(6, 6) ** 3  # of 2 branches and 2 + 2 experts
MLP = {"w1": np.ones((3, 2, 4)), "b1": np.ones((3, 4)), "w2": np.ones((3, 4, 2)), "b2": np.ones((3, 2))}


def expert_mlp(inputs, w1, b1, w2, b2, **options):
    return spec.expert_mlp(inputs, {"w1": w1, "b1": b1, "w2": w2, "b2": b2}, **options)


def rescale(x, token_kernel, token_bias, channel_kernel, channel_bias):
    params = {"token_kernel": token_kernel, "token_bias": token_bias}
    return spec.rescale(x, params | {"channel_kernel": channel_kernel, "channel_bias": channel_bias})


def multi_hash_mlp(tokens, w1, b1, w2, b2, **options):
    return spec.multi_hash_mlp(tokens, params={"w1": w1, "b1": b1, "w2": w2, "b2": b2}, **options)


def moe_layer(tokens, dispatch, combine):
    return spec.moe_layer(tokens, Routing(dispatch, combine), lambda inputs: inputs)


def routing_metrics(dispatch, combine):
    return spec.routing_metrics(Routing(dispatch, combine))


def of_routing(name):
    """A function of a routing as one of its tensors."""
    return lambda dispatch, combine: getattr(spec, name)(Routing(dispatch, combine))


def moe_mlp(tokens, dispatch, combine, w1, b1, w2, b2, **options):
    return spec.moe_mlp(tokens, Routing(dispatch, combine), {"w1": w1, "b1": b1, "w2": w2, "b2": b2}, **options)


# name -> function, arrays, static arguments
CALLS = {
    "router_logits": (spec.router_logits, {"tokens": LOGITS, "kernel": np.eye(3)}, {}),
    "add_gating_noise": (spec.add_gating_noise, {"logits": LOGITS, "noise": NOISE}, {"multiplier": 1.0}),
    "router_jitter": (spec.router_jitter, {"tokens": LOGITS, "noise": NOISE}, {"epsilon": 0.01}),
    "softmax_affinity": (spec.softmax_affinity, {"logits": LOGITS}, {}),
    "normalize_selected": (spec.normalize_selected, {"scores": LOGITS, "combine_scores": ONES}, {"choices": 2}),
    "gshard_keep": (spec.gshard_keep, {"gates": ONES, "noise": ONES[:, 0]}, {}),
    "sigmoid_affinity": (spec.sigmoid_affinity, {"logits": LOGITS}, {}),
    "sinkhorn_affinity": (spec.sinkhorn_affinity, {"logits": LOGITS}, {"iterations": 2, "tolerance": 0.1}),
    "token_choice": (
        spec.token_choice,
        {"scores": LOGITS, "combine_scores": ONES},
        {"choices": 2, "capacity": 2, "order": [5, 4, 3, 2, 1, 0]},
    ),
    "batch_priority": (spec.batch_priority, {"scores": LOGITS}, {"by": "sum", "choices": 2}),
    "expert_choice": (spec.expert_choice, {"scores": LOGITS, "combine_scores": ONES}, {"capacity": 2}),
    "importance_score_order": (spec.importance_score_order, {"scores": LOGITS}, {"drop": 0.2}),
    "importance_score_choice": (
        spec.importance_score_choice,
        {"scores": LOGITS, "combine_scores": ONES},
        {"choices": 2, "capacity": 2, "drop": 0.2},
    ),
    "rescale": (
        rescale,
        {
            "x": np.ones((5, 4)),
            "token_kernel": np.ones((5, 7)),
            "token_bias": np.ones(7),
            "channel_kernel": np.ones((4, 2)),
            "channel_bias": np.ones(2),
        },
        {},
    ),
    "project_simplex": (spec.project_simplex, {"values": ONES[0]}, {"mass": 2.0}),
    "project_sparse_simplex": (spec.project_sparse_simplex, {"values": ONES[0]}, {"nonzeros": 2, "mass": 2.0}),
    "transport_semi_dual": (
        spec.transport_semi_dual,
        {"potential": ONES[:, 0], "utility": ONES},
        {"capacity": 2, "regularization": 1.0},
    ),
    "transport_dual": (
        spec.transport_dual,
        {"token_potential": ONES[:, 0], "expert_potential": ONES[0], "utility": ONES},
        {"capacity": 2, "regularization": 1.0},
    ),
    "sparse_transport_affinity": (
        spec.sparse_transport_affinity,
        {"utility": ONES},
        {
            "capacity": 2,
            "objective": "semi_dual",
            "solver": "adam",
            "sparsity": "expert",
            "steps": 2,
            "learning_rate": 0.1,
            "tolerance": 0.1,
            "regularization": 1.0,
        },
    ),
    "soft_routing": (
        spec.soft_routing,
        {"tokens": LOGITS, "slots": np.ones((3, 2, 2)), "scale": np.array(1.0)},
        {"norm_form": "paper", "dispatch": "soft", "combine": "soft"},
    ),
    "noisy_top_k_logits": (spec.noisy_top_k_logits, {"logits": LOGITS, "noise_logits": ONES, "noise": NOISE}, {}),
    "noisy_top_k_affinity": (spec.noisy_top_k_affinity, {"noisy_logits": LOGITS}, {"choices": 2}),
    "noisy_top_k_load_loss": (
        spec.noisy_top_k_load_loss,
        {"logits": LOGITS, "noise_logits": ONES, "noisy_logits": LOGITS + NOISE},
        {"choices": 2},
    ),
    "hierarchical_affinity": (spec.hierarchical_affinity, {"noisy_logits": COLUMNS}, {"branches": 2, "choices": 1}),
    "hierarchical_load_loss": (
        spec.hierarchical_load_loss,
        {"logits": COLUMNS, "noise_logits": COLUMNS, "noisy_logits": COLUMNS},
        {"branches": 2, "choices": 1},
    ),
    "batchwise_mask": (spec.batchwise_mask, {"gates": ONES}, {"capacity": 2}),
    "threshold_mask": (spec.threshold_mask, {"gates": ONES, "thresholds": ONES[0]}, {}),
    "threshold_loss": (spec.threshold_loss, {"gates": ONES, "thresholds": ONES[0]}, {"capacity": 2}),
    "masked_gates": (spec.masked_gates, {"gates": ONES}, {"mask": ONES > 0}),
    "importance_loss": (spec.importance_loss, {"scores": ONES}, {}),
    "load_loss": (spec.load_loss, {"logits": LOGITS, "noisy_logits": LOGITS}, {"choices": 2, "noise_std": 0.1}),
    "balance_loss": (spec.balance_loss, {"scores": ONES}, {}),
    "z_loss": (spec.z_loss, {"logits": LOGITS}, {}),
    "moe_layer": (moe_layer, {"tokens": LOGITS, "dispatch": np.ones((6, 3, 2)), "combine": np.ones((6, 3, 2))}, {}),
    "routing_metrics": (routing_metrics, {"dispatch": np.ones((6, 3, 2)), "combine": np.ones((6, 3, 2))}, {}),
    **{
        name: (of_routing(name), {"dispatch": np.ones((6, 3, 2)), "combine": np.ones((6, 3, 2))}, {})
        for name in ("collapse_metrics", "cumulative_dispatch", "experts_per_token", "summed_dispatch")
    },
    "slot_similarity": (spec.slot_similarity, {"slots": np.ones((3, 2, 2))}, {}),
    "capped_affinity": (
        spec.capped_affinity,
        {"scores": ONES},
        {"capacity": 2, "cap": 1, "regularization": 1.0, "iterations": 2},
    ),
    "moe_mlp": (
        moe_mlp,
        {"tokens": np.ones((6, 2)), "dispatch": np.ones((6, 3, 1)), "combine": np.ones((6, 3, 1)), **MLP},
        {"gelu": "tanh"},
    ),
    "expert_mlp": (expert_mlp, {"inputs": np.ones((3, 1, 2)), **MLP}, {"gelu": "tanh"}),
    "gelu": (spec.gelu, {"x": ONES}, {"form": "erf"}),
    "layer_norm": (spec.layer_norm, {"x": LOGITS, "scale": ONES[0], "bias": ONES[0]}, {"epsilon": 1e-6}),
    "attention": (spec.attention, {name: np.ones((4, 2, 3)) for name in ("query", "key", "value")}, {}),
    "patch_embed": (
        spec.patch_embed,
        {"images": np.ones((4, 4, 1)), "kernel": np.ones((2, 2, 1, 3)), "bias": ONES[0]},
        {},
    ),
    "convolution": (
        spec.convolution,
        {"images": np.ones((4, 3, 1)), "kernel": np.ones((3, 3, 1, 3)), "bias": ONES[0]},
        {"stride": 2},
    ),
    "softmax_cross_entropy": (spec.softmax_cross_entropy, {"logits": LOGITS, "targets": ONES}, {}),
    "sigmoid_cross_entropy": (spec.sigmoid_cross_entropy, {"logits": LOGITS, "targets": ONES}, {}),
    "smooth_step": (spec.smooth_step, {"z": ONES}, {"gamma": 1.0}),
    "dselect_k_selectors": (spec.dselect_k_selectors, {"codes": LOGITS}, {"experts": 7, "gamma": 1.0}),
    "dselect_k_codes": (
        spec.dselect_k_codes,
        {"tokens": ONES, "bias": np.ones(4), "kernel": np.ones((ONES.shape[1], 4))},
        {"choices": 2, "experts": 2},
    ),
    "dselect_k_gate": (spec.dselect_k_gate, {"selectors": ONES, "logits": ONES[:, 0]}, {}),
    "dselect_k_routing": (spec.dselect_k_routing, {"gate": ONES}, {}),
    "dselect_k_entropy": (spec.dselect_k_entropy, {"selectors": ONES}, {}),
    "dselect_k_reachability": (spec.dselect_k_reachability, {"selectors": ONES}, {}),
    "base_assignment": (spec.base_assignment, {"scores": LOGITS, "noise": NOISE[:, 0]}, {"shards": 2}),
    "base_greedy": (spec.base_greedy, {"scores": LOGITS}, {}),
    "base_routing": (spec.base_routing, {"scores": LOGITS}, {"expert": [0, 1, 2, 0, 1, 2], "capacity": 2}),
    "patch_codes": (spec.patch_codes, {"patches": LOGITS, "codebook": np.eye(3)}, {}),
    "box_muller": (spec.box_muller, {"uniform": np.full((3, 2), 0.5)}, {}),
    "dropout": (spec.dropout, {"x": LOGITS, "draws": np.full((6, 3), 0.5)}, {"rate": 0.25}),
    "position_ids": (spec.position_ids, {"tokens": LOGITS}, {}),
    "hash_table_random": (spec.hash_table_random, {"draws": np.array([0.0, 0.5])}, {"experts": 3}),
    "hash_table_balanced": (spec.hash_table_balanced, {"frequencies": ONES[:, 0]}, {"experts": 3}),
    "k_means": (spec.k_means, {"points": LOGITS, "centroids": LOGITS[:2]}, {"iterations": 2}),
    "multi_hash_mlp": (
        multi_hash_mlp,
        {"tokens": np.ones((6, 2)), **MLP},
        {"activation": "relu", "ids": np.zeros(6, int), "tables": np.zeros((2, 3), int)},
    ),
}
WITHOUT_ARRAYS = {"expert_capacity", "hash_table_of", "mean", "slot_tokens", "stop_gradient"}
WITHOUT_ARRAYS |= {"hash_routing", "hash_table_dispersed", "pair_ids", "previous_ids"}  # of integers: see test_hash
WITHOUT_ARRAYS |= {"hash_table_clustered"}  # is k_means
WITHOUT_ARRAYS |= {"branch_rate", "random_words", "threefry", "unit_interval"}  # of integers: see test_threefry
ARRAYS = [(name, argument) for name, (_, arrays, _) in CALLS.items() for argument in arrays]
ANY_RANK = {
    ("gelu", "x"),
    ("layer_norm", "x"),
    ("softmax_cross_entropy", "logits"),
    ("sigmoid_cross_entropy", "logits"),
}
ANY_RANK |= {
    ("dselect_k_codes", "tokens"),
    ("smooth_step", "z"),
    ("box_muller", "uniform"),
    ("dropout", "x"),
    ("dropout", "draws"),
    ("dselect_k_selectors", "codes"),
    ("dselect_k_gate", "selectors"),
}
ANY_RANK |= {("dselect_k_entropy", "selectors"), ("dselect_k_reachability", "selectors")}
ANY_RANK |= {("softmax_cross_entropy", "targets"), ("sigmoid_cross_entropy", "targets")}


def call(name, **changes):
    function, arrays, options = CALLS[name]
    return function(**{**arrays, **options, **changes})


def test_every_public_function_has_a_call():
    assert set(CALLS) == {n for n in spec.__all__ if inspect.isfunction(getattr(spec, n))} - WITHOUT_ARRAYS


@pytest.mark.parametrize("name", CALLS)
def test_the_call_is_valid(name):
    call(name)


@pytest.mark.parametrize(("name", "argument"), ARRAYS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_must_be_finite(name, argument, value):
    array = np.array(CALLS[name][1][argument])
    array.flat[-1] = value
    with pytest.raises(ContractError) as error:
        call(name, **{argument: array})
    index = tuple(size - 1 for size in array.shape)
    assert f"{argument}: " in str(error.value)
    assert str(value) in str(error.value)
    assert str(index) in str(error.value)


@pytest.mark.parametrize(("name", "argument"), ARRAYS)
@pytest.mark.parametrize(
    "dtype", [np.int64, np.bool_, np.complex256 if hasattr(np, "complex256") else np.int32, object]
)
def test_values_must_be_floating(name, argument, dtype):
    with pytest.raises(DtypeError) as error:
        call(name, **{argument: np.ones_like(CALLS[name][1][argument]).astype(dtype)})
    assert f"{argument}: " in str(error.value)
    assert np.dtype(dtype).name in str(error.value)


@pytest.mark.parametrize(("name", "argument"), [pair for pair in ARRAYS if pair not in ANY_RANK])
def test_rank(name, argument):
    array = np.asarray(CALLS[name][1][argument])
    for wrong in (array[None], *([array[0]] if array.ndim else [])):
        with pytest.raises(ShapeError) as error:
            call(name, **{argument: wrong})
        assert f"{argument}: " in str(error.value)
        assert str(wrong.shape) in str(error.value)


@pytest.mark.parametrize(("name", "argument"), [pair for pair in ARRAYS if np.ndim(CALLS[pair[0]][1][pair[1]])])
def test_no_axis_may_be_empty(name, argument):
    array = np.asarray(CALLS[name][1][argument])
    for axis in range(array.ndim):
        wrong = np.delete(array, slice(None), axis=axis)
        with pytest.raises(ShapeError) as error:
            call(name, **{argument: wrong})
        assert f"{argument}: " in str(error.value)
        assert str(wrong.shape) in str(error.value)


@pytest.mark.parametrize(
    ("name", "argument"),
    [pair for pair in ARRAYS if len(CALLS[pair[0]][1]) > 1 and np.ndim(CALLS[pair[0]][1][pair[1]])],
)
def test_axes_must_agree(name, argument):
    """Doubling any axis of one array breaks the agreement with another, unless it is an axis of its own."""
    array = np.asarray(CALLS[name][1][argument])
    free = {
        ("router_logits", "tokens", 0),
        *(("patch_codes", name, 0) for name in ("patches", "codebook")),
        *(("k_means", name, 0) for name in ("points", "centroids")),
        ("router_logits", "kernel", 1),
        ("gshard_keep", "gates", 1),
        *((name, "gates", 0) for name in ("threshold_mask", "threshold_loss")),
        ("soft_routing", "tokens", 0),
        ("soft_routing", "slots", 1),
        ("soft_routing", "slots", 2),
        ("layer_norm", "x", 0),
        ("attention", "query", 0),
        ("transport_semi_dual", "utility", 1),
        ("expert_mlp", "inputs", 1),
        ("moe_layer", "tokens", 1),
        ("convolution", "images", 0),
        ("convolution", "images", 1),
        ("patch_embed", "images", 0),
        ("patch_embed", "images", 1),
        ("dselect_k_gate", "selectors", 1),
        ("dselect_k_codes", "tokens", 0),
    }
    for axis in range(array.ndim):
        wrong = np.concatenate([array, array], axis=axis)
        if (name, argument, axis) in free:
            call(name, **{argument: wrong})
        else:
            with pytest.raises(ShapeError):
                call(name, **{argument: wrong})


OF_ARRAYS = {"order", "expert", "ids", "tables", "mask"}
WRONG = {int: (0, -1, 1.5, True), float: (-1.0, np.nan, np.inf, "1"), str: ("nonsense", 0)}
"""What an option of a type cannot be. Bounds that depend on other arguments have error cases in the suite."""


def wrong_options():
    for name, (_, _, options) in CALLS.items():
        hints = get_type_hints(getattr(spec, name))
        for option in sorted(options.keys() - OF_ARRAYS):
            kind = hints[option]
            for type_, values in WRONG.items():
                if type_ in (kind, *get_args(kind)) or (type_ is str and get_origin(kind) is Literal):
                    yield from ((name, option, value) for value in values)


@pytest.mark.parametrize(("name", "option", "value"), list(wrong_options()))
def test_options(name, option, value):
    with pytest.raises(ConfigError) as error:
        call(name, **{option: value})
    assert str(error.value).startswith(f"{option}: ")
    assert str(value) in str(error.value)


def test_every_option_is_tested():
    tested = {(name, option) for name, option, _ in wrong_options()}
    given = {(name, option) for name, (_, _, options) in CALLS.items() for option in options.keys() - OF_ARRAYS}
    assert tested == given


def test_choices_of_a_row_sparse_plan_are_experts():
    with pytest.raises(ConfigError, match="capacity: 4 is more than the 3 experts"):
        call("sparse_transport_affinity", capacity=4, sparsity="token")


@pytest.mark.parametrize(
    ("order", "kind", "words"),
    [
        ([0, 1, 2, 3, 4, 4], ContractError, "permutation"),
        ([0, 1, 2, 3, 4, 6], ContractError, "6"),
        ([-1, 0, 1, 2, 3, 4], ContractError, "-1"),
        ([0, 1, 2], ShapeError, "(3,)"),
        ([[0, 1, 2, 3, 4, 5]], ShapeError, "(1, 6)"),
        ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], DtypeError, "float64"),
        (np.zeros(6, bool), DtypeError, "bool"),
    ],
)
def test_order(order, kind, words):
    with pytest.raises(kind) as error:
        call("token_choice", order=order)
    assert str(error.value).startswith("order: ")
    assert words in str(error.value)


def test_every_error_is_a_value_error():
    for kind in (ConfigError, ShapeError, DtypeError, ContractError):
        assert issubclass(kind, SpecError)
        assert issubclass(kind, ValueError)


class Foreign:
    """What the static checks may know of an array of another framework."""

    def __init__(self, shape, dtype):
        self.shape, self.dtype, self.ndim = shape, dtype, len(shape)


def test_static_checks_read_only_shape_and_dtype():
    array = Foreign((2, 6, 3), "torch.bfloat16")
    checks.check_scores("scores", array, "groups tokens experts")
    checks.check_size("scores", array, 1, 6, "tokens")
    checks.check_same_shape("scores", array, "others", Foreign((2, 6, 3), "float32"))
    checks.check_one_per_token("order", Foreign((2, 6), "torch.int32"), (2, 6))
    with pytest.raises(DtypeError, match=r"scores: .* got int32"):
        checks.check_floating("scores", Foreign((), "torch.int32"))
    with pytest.raises(ShapeError, match=r"scores: expected the axes \(tokens, experts\), got shape \(2, 6, 3\)"):
        checks.check_scores("scores", array)
    with pytest.raises(ShapeError, match=r"scores: .* differs from that of others"):
        checks.check_same_shape("scores", array, "others", Foreign((2, 6, 4), "float32"))
    with pytest.raises(ShapeError, match="order"):
        checks.check_one_per_token("order", Foreign((2, 6), "int32"), (2, 5))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_every_floating_dtype_gives_float64(dtype):
    assert spec.softmax_affinity(LOGITS.astype(dtype)).dtype == np.float64


def test_bfloat16_gives_float64():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    assert spec.softmax_affinity(LOGITS.astype(bfloat16)).dtype == np.float64


def test_complex64_gives_complex128():
    assert spec.softmax_affinity(LOGITS.astype(np.complex64)).dtype == np.complex128


def test_inputs_are_not_changed():
    for function, arrays, options in CALLS.values():
        copies = {name: np.array(array) for name, array in arrays.items()}
        function(**copies, **options)
        assert all(np.array_equal(copies[name], arrays[name]) for name in arrays)
