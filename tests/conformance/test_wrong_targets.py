"""Targets that are wrong in one place: the suite must fail each of them, in the algorithm that is wrong."""

import math
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import erf

import moespec.backends.numpy as reference
from moespec.backends.routers import build
from moespec.conformance import suite
from moespec.conformance.judge import LANES
from moespec.conformance.runner import run_lane
from moespec.conformance.target import Target
from moespec.spec import ALGORITHMS, RouterOutput
from moespec.spec.numerics import logsumexp, normal_cdf, softmax, variance

ROOT = Path(__file__).parents[2]
ROOMS = ("spec", "backends", "models", "conformance")
CASES = suite.load()
SlotRouting, SoftRouting = reference.SlotRouting, reference.SoftRouting


def states(algorithm, **changed):
    """The state of each case of an algorithm for the numpy backend with some of its names replaced."""
    module = SimpleNamespace(**{**vars(reference), **changed})
    # The routers of the reference are the specification's own; composed anew they are made of the replaced functions.
    module.ROUTERS = changed.get("ROUTERS") or build(module)
    cases = [case for case in CASES if case.algorithm == algorithm]
    return {result.id: result.state for result in run_lane(Target("changed", LANES["f64"], module), cases, "eager")}


def failures(algorithm, **changed):
    return {id.split("/")[1] for id, state in states(algorithm, **changed).items() if state in ("fail", "error")}


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "vit"])
def test_the_reference_passes(algorithm):
    assert set(states(algorithm).values()) == {"pass"}


# Wrong functions. `token` and `weight` of a routing are (groups, experts, slots).


def ties_to_the_higher_expert(scores, *, combine_scores=None, **options):
    weights = None if combine_scores is None else combine_scores[..., ::-1]
    routing = reference.token_choice(scores[..., ::-1], combine_scores=weights, **options)
    return SlotRouting(routing.token[:, ::-1], routing.weight[:, ::-1], None, routing.tokens)


def ties_to_the_higher_token(scores, *, combine_scores=None, **options):
    weights = None if combine_scores is None else combine_scores[:, ::-1]
    routing = reference.expert_choice(scores[:, ::-1], combine_scores=weights, **options)
    last = routing.tokens - 1
    return routing._replace(token=np.where(routing.token > last, routing.token, last - routing.token))


def second_choices_first(scores, *, choices, capacity, combine_scores=None, order=None):
    """All choices of a token before those of the next token."""
    weights = scores if combine_scores is None else combine_scores
    groups, tokens, experts = scores.shape
    token = np.full((groups, experts, capacity), tokens, np.int32)
    weight = np.zeros((groups, experts, capacity), weights.dtype)
    for g in range(groups):
        filled = [0] * experts
        for t in range(tokens) if order is None else order[g]:
            for e in np.argsort(-scores[g, t].real, kind="stable")[:choices]:
                if filled[e] < capacity:
                    token[g, e, filled[e]], weight[g, e, filled[e]] = t, weights[g, t, e]
                    filled[e] += 1
    return SlotRouting(token, weight, None, tokens)


def renormalised(scores, **options):
    """The weights that a token keeps are divided by their sum."""
    routing = reference.token_choice(scores, **options)
    total = routing.dense().combine.sum(axis=(2, 3))
    total = np.concatenate([np.where(total.real > 0, total, 1), np.ones_like(total[:, :1])], 1)
    weight = routing.weight / np.take_along_axis(total, routing.token.reshape(len(total), -1), 1).reshape(
        routing.token.shape
    )
    return routing._replace(weight=weight)


def without_order(scores, *, order=None, **options):
    return reference.token_choice(scores, **options)


def weights_of_the_selection(scores, *, combine_scores=None, **options):
    return reference.token_choice(scores, **options)


def constant_weights(scores, *, combine_scores=None, **options):
    weights = scores if combine_scores is None else combine_scores
    return reference.token_choice(scores, combine_scores=weights.real, **options)


def slots_by_index(scores, **options):
    routing = reference.expert_choice(scores, **options)
    order = np.argsort(routing.token, axis=-1)
    return routing._replace(
        token=np.take_along_axis(routing.token, order, -1), weight=np.take_along_axis(routing.weight, order, -1)
    )


def zeros_kept(scores, *, drop_zero=False, **options):
    return reference.expert_choice(scores, **options)


def priority_ascending(scores, **options):
    return reference.batch_priority(-scores, **{**options, "by": "max"})


def capacity(ceil, round):
    def expert_capacity(tokens, experts, factor, *, choices=1, rounding="ceil", multiple_of=1):
        options = {"choices": choices, "rounding": rounding, "multiple_of": multiple_of}
        reference.expert_capacity(tokens, experts, factor, **options)
        slots = {"ceil": ceil, "round": round}[rounding](choices * tokens, factor, experts)
        return math.ceil(slots / multiple_of) * multiple_of

    return expert_capacity


capacity_floor = capacity(lambda n, f, e: int(n * f / e), lambda n, f, e: round(n * f / e))
half_up = capacity(lambda n, f, e: math.ceil(n * f / e), lambda n, f, e: int(n * f / e + 0.5))
divided_first = capacity(lambda n, f, e: math.ceil(n / e * f), lambda n, f, e: round(n / e * f))


def softmax_over_tokens(logits):
    reference.softmax_affinity(logits)  # refuses what it must
    return softmax(logits, axis=1)


def unscaled_noise(logits, noise, *, multiplier=1.0):
    return reference.add_gating_noise(logits, noise, multiplier=multiplier * logits.shape[2])


def rows_first(logits, *, iterations=20, tolerance=None):
    reference.sinkhorn_affinity(logits, iterations=iterations, tolerance=tolerance)
    _, tokens, experts = logits.shape
    g = np.zeros((len(logits), experts))
    for _ in range(iterations):
        f = -logsumexp(logits + g[:, None], axis=2)
        g = np.log(tokens / experts) - logsumexp(logits + f[:, :, None], axis=1)
    return np.exp(logits + f[:, :, None] + g[:, None])


def solved_to_the_end(utility, *, steps=20, **options):
    return reference.sparse_transport_affinity(utility, **options, steps=10 * steps)


def exchanged(*arguments, **options):
    routing = reference.soft_routing(*arguments, **options)
    return SoftRouting(routing.combine, routing.dispatch)


def each_expert_apart(*arguments, **options):
    """The combine softmax over the slots of each expert alone."""
    routing = reference.soft_routing(*arguments, **options)
    return routing._replace(combine=routing.combine / routing.combine.sum(axis=3, keepdims=True))


def other_norm(tokens, slots, *, norm_form="paper", **options):
    return reference.soft_routing(
        tokens, slots, norm_form={"paper": "rsqrt", "rsqrt": "paper"}.get(norm_form, norm_form), **options
    )


def sample_variance(scores):
    experts = scores.shape[2]
    return reference.importance_loss(scores) * (experts / (experts - 1) if experts > 1 else 1)


def last_maximum(scores):
    return reference.balance_loss(scores[..., ::-1])


def threshold_without_self(logits, noisy_logits, *, choices, noise_std):
    """As Shazeer et al. estimate the load."""
    reference.load_loss(logits, noisy_logits, choices=choices, noise_std=noise_std)
    losses = []
    for clean, noisy in zip(logits, noisy_logits, strict=True):
        load = 0
        for expert in range(clean.shape[1]):
            others = np.delete(noisy, expert, axis=1)
            ranked = np.take_along_axis(others, np.argsort(-others.real, axis=1, kind="stable"), 1)
            threshold = ranked[:, choices - 1] if choices <= ranked.shape[1] else ranked[:, -1] - 1e3
            load = load + np.eye(clean.shape[1])[expert] * np.sum(
                1 - normal_cdf((threshold - clean[:, expert]) / noise_std)
            )
        losses.append(variance(load) / np.mean(load) ** 2)
    return np.mean(losses)


def square_of_the_mean(logits):
    reference.z_loss(logits)
    return np.mean(np.mean(logsumexp(logits, axis=2), axis=1) ** 2)


def normalised_tokens(tokens, routing, experts):
    return reference.moe_layer(tokens / np.sqrt(1e-6 + np.sum(tokens**2, 2, keepdims=True)), routing, experts)


def empty_slots_reach_the_last_token(tokens, routing, experts):
    dense = routing.dense()
    outputs = experts(np.einsum("gtec,gtd->gecd", dense.dispatch, tokens))
    empty = dense.dispatch.sum(axis=1) == 0
    combine = dense.combine.copy()
    combine[:, -1] += empty
    return np.einsum("gtec,gecd->gtd", combine, outputs)


def exact_gelu(x, *, form="tanh"):
    reference.gelu(x, form=form)
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def exact_experts(inputs, params, *, gelu="tanh"):
    reference.expert_mlp(inputs, params, gelu=gelu)
    return reference.expert_mlp(inputs, params, gelu="erf")


def unbiased_layer_norm(x, scale, bias=None, **options):
    width = x.shape[-1]
    shift = 0 if bias is None else bias
    return shift + math.sqrt((width - 1) / width) * (reference.layer_norm(x, scale, bias, **options) - shift)


def columns_of_patches(images, kernel, bias):
    return reference.patch_embed(np.swapaxes(images, 1, 2), np.swapaxes(kernel, 0, 1), bias)


def unscaled_attention(query, key, value):
    return reference.attention(query * math.sqrt(query.shape[-1]), key, value)


def routers(name, change):
    """The registry with the `route` of one router changed: `change(route, params, tokens, config, **options)`."""
    composed = build(reference)
    route = composed[name].route
    return {**composed, name: replace(composed[name], route=lambda *a, **options: change(route, *a, **options))}


def configured(**fields):
    return lambda route, params, tokens, config, **options: route(params, tokens, replace(config, **fields), **options)


def noise_for_the_choice_alone(route, params, tokens, config, *, noise=None, train=False):
    """Noise decides who is chosen, but the weights are those without it."""
    noisy, clean = (route(params, tokens, config, noise=n, train=train) for n in (noise, None))
    scores = reference.softmax_affinity(reference.router_logits(tokens, params["kernel"]))
    scores = np.concatenate([scores, np.zeros_like(scores[:, :1])], 1)  # a token that is none
    weight = np.stack([[s[t, e] for e, t in enumerate(g)] for s, g in zip(scores, noisy.routing.token, strict=True)])
    routing = SlotRouting(noisy.routing.token, weight, None, noisy.routing.tokens)
    return RouterOutput(routing, clean.losses, noisy.metrics)


WRONG = [
    ("token_choice", "tied", {"token_choice": ties_to_the_higher_expert}),
    ("token_choice", "first_choices_first", {"token_choice": second_choices_first}),
    ("token_choice", "dropped_first", {"token_choice": renormalised}),
    ("token_choice", "combine_scores", {"token_choice": weights_of_the_selection}),
    ("token_choice", "gradient", {"token_choice": constant_weights}),
    ("token_choice", "order", {"token_choice": without_order}),
    ("batch_priority", "crowd", {"batch_priority": priority_ascending}),
    ("batch_priority", "crowd", {"token_choice": without_order}),
    ("expert_choice", "tied", {"expert_choice": ties_to_the_higher_token}),
    ("expert_choice", "two_slots", {"expert_choice": slots_by_index}),
    ("expert_choice", "zeros_dropped", {"expert_choice": zeros_kept}),
    ("capacity", "ceil", {"expert_capacity": capacity_floor}),
    ("capacity", "half_even", {"expert_capacity": half_up}),
    ("capacity", "left_to_right", {"expert_capacity": divided_first}),
    ("softmax_affinity", "square", {"softmax_affinity": softmax_over_tokens}),
    ("softmax_expert_choice", "values", {"softmax_affinity": softmax_over_tokens}),
    ("gating_noise", "values", {"add_gating_noise": unscaled_noise}),
    ("sinkhorn", "one_iteration", {"sinkhorn_affinity": rows_first}),
    ("sinkhorn_token_choice", "gradient_plan", {"sinkhorn_affinity": rows_first}),
    ("sparse_transport", "plan", {"sparse_transport_affinity": solved_to_the_end}),
    ("soft_routing", "square", {"soft_routing": exchanged}),
    ("soft_routing", "values", {"soft_routing": each_expert_apart}),
    ("soft_routing", "small_paper", {"soft_routing": other_norm}),
    ("importance_loss", "values", {"importance_loss": sample_variance}),
    ("balance_loss", "tied", {"balance_loss": last_maximum}),
    ("load_loss", "one_choice", {"load_loss": threshold_without_self}),
    ("z_loss", "values", {"z_loss": square_of_the_mean}),
    ("moe_layer", "soft", {"moe_layer": normalised_tokens}),
    ("moe_layer", "dropped", {"moe_layer": empty_slots_reach_the_last_token}),
    ("moe_layer", "experts_tanh", {"expert_mlp": exact_experts}),
    ("network", "gelu_tanh", {"gelu": exact_gelu}),
    ("network", "layer_norm", {"layer_norm": unbiased_layer_norm}),
    ("network", "patch_embed", {"patch_embed": columns_of_patches}),
    ("network", "attention", {"attention": unscaled_attention}),
]
ROUTERS = [
    ("softmax_token_choice", "multiple", configured(rounding="round")),
    ("softmax_token_choice", "priority_max", configured(batch_priority="none")),
    ("softmax_token_choice", "noise", noise_for_the_choice_alone),
    ("sinkhorn_token_choice", "values", configured(combine_with="plan")),
    ("sinkhorn_token_choice", "gradient", configured(combine_with="plan")),
    ("sinkhorn_token_choice", "clean_combine", configured(combine_from_clean_logits=False)),
    ("sinkhorn_expert_choice", "combine_plan", configured(combine_with="softmax")),
    ("softmax_expert_choice", "multiple", configured(multiple_of=1)),
    ("sparsity_constrained_expert_choice", "few_steps", configured(transport_steps=20)),
    ("soft_moe", "soft_uniform", configured(dispatch="uniform", combine="soft")),
]
WRONG += [(name, case, {"ROUTERS": routers(name, change)}) for name, case, change in ROUTERS]
zeros = routers("sparsity_constrained_expert_choice", configured(drop_zero_plan=True))
WRONG.append(("sparsity_constrained_expert_choice", "zero_plan", {"ROUTERS": zeros}))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # those that do not refuse NaN
@pytest.mark.parametrize(("algorithm", "case", "changed"), WRONG, ids=lambda value: value if type(value) is str else "")
def test_a_wrong_target_fails(algorithm, case, changed):
    assert case in failures(algorithm, **changed)


# The same with the tree itself.


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the packages under the names that an installation gives them."""
    folder = tmp_path_factory.mktemp("tree")
    for room in ROOMS:
        shutil.copytree(ROOT / room, folder / "moespec" / room, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def python(tree, *arguments):
    """Runs the interpreter of the tests with the copy before whatever is installed."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-P", *arguments], capture_output=True, text=True, check=False, cwd=tree, env=environment
    )


def run_suite(tree):
    """What the conformance session runs for numpy, without whole models, which take as long as the rest together:
    exit status, numbers that passed and failed, and what it prints.
    """
    command = "-m moespec.conformance run --target moespec.backends.numpy --mode eager --lane f64"
    algorithms = [word for name in ALGORITHMS if name != "vit" for word in ("--algorithm", name)]
    found = python(tree, *command.split(), *algorithms)
    passed, failed = re.match(r"(\d+) passed, (\d+) failed, \d+ skipped$", found.stdout.splitlines()[-1]).groups()
    assert "Traceback" not in found.stderr
    return found.returncode, int(passed), int(failed), found.stdout


def test_the_copy_is_what_is_imported(tree):
    names = ["spec", "backends.numpy", "conformance.suite", "models.vit"]
    program = f"import importlib\nfor n in {names}: print(importlib.import_module('moespec.' + n).__file__)"
    located = python(tree, "-c", program).stdout.split()
    assert len(located) == len(names)
    assert all(Path(path).is_relative_to(tree) for path in located)


def test_an_unchanged_tree_passes(tree):
    status, passed, failed, _ = run_suite(tree)
    assert (status, failed) == (0, 0)
    assert passed >= sum(case.algorithm != "vit" for case in CASES) - 1


LINES = {
    "tie order": (
        "spec/numerics.py",
        'np.argsort(-values.real, axis=axis, kind="stable")',
        'np.flip(np.argsort(values.real, axis=axis, kind="stable"), axis=axis)',
        "token_choice/tied",
    ),
    "capacity rounding": (
        "spec/capacity.py",
        "slots = ROUNDINGS[rounding](choices * tokens * factor / experts)",
        "slots = int(choices * tokens * factor / experts)",
        "softmax_token_choice/multiple",
    ),
    "softmax axis": (
        "spec/softmax.py",
        'return softmax(as_array("logits", logits, "tokens experts"))',
        'return softmax(as_array("logits", logits, "tokens experts"), axis=0)',
        "softmax_affinity/square",
    ),
    "rounding of a router": (
        "spec/routing.py",
        'rounding: str = "ceil"',
        'rounding: str = "round"',
        "sinkhorn_expert_choice/multiple",
    ),
}


@pytest.mark.parametrize("change", LINES)
def test_a_tree_with_one_line_changed_fails(tree, change):
    name, right, wrong, case = LINES[change]
    path = tree / "moespec" / name
    text = path.read_text()
    assert text.count(right) == 1
    path.write_text(text.replace(right, wrong))
    try:
        status, _, failed, output = run_suite(tree)
    finally:
        path.write_text(text)
    assert status == 1
    assert failed > 0
    assert re.search(rf"^(FAIL|ERROR) {case} ", output, re.MULTILINE)
