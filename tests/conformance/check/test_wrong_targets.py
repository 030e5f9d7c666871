"""Targets that are wrong in one place: the vector that is there for it fails them."""

import tomllib
from pathlib import Path

import pytest
from committed import BY_ID, of, results_of, rewired

from moespec.conformance.author.variant import every, module_of
from moespec.conformance.cases import variants
from moespec.conformance.check.explain import mark_reordered
from moespec.conformance.check.results import FAILED, Report
from moespec.conformance.check.run import Plan, run_cases
from moespec.conformance.check.target import DEFAULT, Target
from moespec.conformance.compare import DTYPES

# The case that is there for a mistake, and variants that make it.
WRONG = tomllib.loads(Path(__file__).with_name("variants.toml").read_text())["caught_by"]


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_target_fails(case):
    for name in WRONG[case]:
        (result,) = results_of(module_of(variants()[name].replaced), [BY_ID[case]])
        assert result.state in FAILED, name


CONTIGUOUS = {
    "softmax_affinity": "softmax_affinity",
    "relu_loss": "relu_routing",
    "layer_norm": "network",
    "spread_images": "image_pooling",
    "project_simplex": "sparse_transport",
}
"""Functions, but for one not the first of their row, and the row."""


@pytest.mark.parametrize("name", CONTIGUOUS)
def test_a_kernel_that_takes_every_array_for_contiguous_fails_in_the_mode_strided(name):
    """With values and with gradients. A run has the mode without naming it; for arrays without strides it changes nothing."""
    torch = pytest.importorskip("torch")
    right = pytest.importorskip("moespec.backends.torch")

    def raw(x):
        return torch.as_strided(x, x.shape, torch.empty(x.shape).stride()) if isinstance(x, torch.Tensor) else x

    def contiguous(function):
        return lambda *given, **named: function(*map(raw, given), **{key: raw(value) for key, value in named.items()})

    ids = [case.id for case in of(CONTIGUOUS[name])]
    plan = Plan(Report("target", "kernel", "", []), ids, ("float64", "float32"), DEFAULT)
    ((dtype, chosen),) = [(dtype, chosen) for dtype, mode, chosen in plan.parts() if mode == "strided"]
    cases = [BY_ID[id] for id in chosen]
    assert dtype == "float32"
    wrong = Target("kernel", DTYPES["float32"], rewired(right, **{name: contiguous(getattr(right, name))}))
    assert {result.state for result in run_cases(wrong, cases, "eager")} == {"pass"}
    assert {result.kind for result in run_cases(wrong, cases, "strided") if result.state == "fail"} == {
        "value",
        "gradient",
    }
    assert {result.state for result in run_cases(Target("k", DTYPES["float32"], right), cases, "strided")} == {"pass"}
    assert run_cases(Target("numpy", DTYPES["float64"], module_of({})), cases, "strided") == []


@pytest.mark.parametrize("router", ["dselect_k", "gshard", "relu"])
def test_losses_that_train_nothing_fail(router):
    def detached(B, route):
        output = route.output()
        return output._replace(losses={name: B.stop_gradient(loss) for name, loss in output.losses.items()})

    loss = "gradient" if router == "relu" else "wide"
    (result,) = results_of(module_of(every((router,), detached)), [BY_ID[f"{router}/{loss}"]])
    assert (result.state, result.first.stage.partition("/")[0]) == ("fail", "gradient")


def test_another_order_of_tokens_is_not_one_of_equal_scores():
    cases = [BY_ID["token_choice/all_experts"]]
    results = results_of(module_of(variants()["all_choices_of_a_token_first"].replaced), cases)
    assert [result.state for result in mark_reordered(results, cases)] == ["fail"]
