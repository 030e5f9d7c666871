"""Known variants: each is caught, each is recognised in a target that computes it, and nothing else is."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from committed import BY_ID, CASES, results_of

from moespec.conformance.author.variant import Variant, module_of, variant
from moespec.conformance.cases import variants
from moespec.conformance.check import mutation_report
from moespec.conformance.check.match_variant import Known, match_variants
from moespec.conformance.check.results import FAILED
from moespec.spec import CAPACITY_RULES, LEDGER, ROUTERS

VALUES = [replace(case, gradients=None) for case in CASES if case.kind not in ("negative", "trajectory")]
KNOWN = Known(VALUES)

ALTERNATIVES = {reading.id for entry in LEDGER.values() for reading in entry.readings[1:]}
UNSEEN = tomllib.loads(Path(__file__).with_name("variants.toml").read_text())["unseen"]
"""Alternatives of the ledger that no vector can show."""


def values_of(module, algorithms, dtype="float64", most=None):
    """What comes of the values of some algorithms, or of the first few cases of each."""
    cases = (case for name in sorted(algorithms) for case in [c for c in VALUES if c.algorithm == name][:most])
    return results_of(module, list(cases), dtype)


def names(results):
    return {(match.algorithm, match.variant) for match in match_variants(results, KNOWN)}


# What they are.


def test_each_computes_something_where_there_is_no_capacity():
    """Rules of the capacity have no number of slots for an infinite factor, and change nothing then."""
    cases = [BY_ID[f"softmax_token_choice/{name}"] for name in ("dropless", "nine_choices")]
    for known in variants().values():
        if "softmax_token_choice" in known.replaced:
            results = results_of(module_of(known.replaced), cases)
            assert not [o for result in results for o in result.outcomes if o.state == "error"], known.name


def test_each_says_what_it_is():
    right = module_of({})
    for name, known in variants().items():
        assert re.fullmatch(r"[a-z][a-z0-9_]+", name)
        assert re.fullmatch(r"[A-Z].+\.", known.computes), name
        assert known.ledger in ("", *LEDGER, *ALTERNATIVES), name
        assert known.replaced, name
        assert known.algorithms, name
        assert all(hasattr(right, replaced) for replaced in known.replaced.keys() - ROUTERS.keys()), name
    assert len({known.computes for known in variants().values()}) == len(variants())


def test_every_alternative_of_the_ledger_and_every_rule_of_capacity_has_one():
    assert ALTERNATIVES - {known.ledger for known in variants().values()} == set(UNSEEN)
    assert {f"capacity_of_{name}" for name in CAPACITY_RULES} <= variants().keys()


# Each is caught and recognised. `nox -s variants` runs all on all cases.

OTHERS = [
    case for case in CASES if case.gradients or case.kind in ("negative", "trajectory") or case.algorithm == "vit"
]
OTHERS.sort(
    key=lambda case: (
        case.kind == "negative",
        case.kind == "trajectory",
        case.algorithm == "vit" and "optimizer" not in case.id,
    )
)
"""What catches those whose values are right: gradients, steps of optimizers, models and their training, errors."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if n % 4 == 0 else pytest.mark.full) for n, name in enumerate(variants())]
)
def test_a_variant_is_caught_and_recognised(name):
    """By the first case that fails on it."""
    known = variants()[name]
    module, results = module_of(known.replaced), []
    cases = [case for case in VALUES if case.algorithm in known.algorithms - {"vit"}]
    for case in [*cases, *(mutation_report.first_step(case) for case in OTHERS if case.algorithm in known.algorithms)]:
        results += results_of(module, [case])
        if mutation_report.falls(results[-1]):
            break
    assert mutation_report.falls(results[-1])
    if case in cases and results[-1].returned:
        matches = [match for match in match_variants(results, KNOWN) if match.algorithm == case.algorithm]
        assert name in {match.variant for match in matches}
        assert all(match.agree == match.of for match in matches)


@pytest.mark.full
@pytest.mark.parametrize("name", variants())
def test_a_variant_is_recognised_in_every_algorithm(name):
    known = variants()[name]
    results = values_of(module_of(known.replaced), known.algorithms - {"vit"})
    matches = match_variants(results, KNOWN)
    for algorithm in {result.algorithm for result in results if result.returned}:
        mine = [match for match in matches if match.algorithm == algorithm]
        assert all(match.agree == match.of for match in mine)
        assert name in {match.variant for match in mine}


def test_the_right_backend_is_not_a_variant():
    assert not names(values_of(module_of({}), {"token_choice", "sinkhorn", "soft_moe", "moe_layer"}))


# Other targets.


def test_an_unknown_mistake_has_no_name():
    sharper = module_of({"softmax_affinity": lambda B, logits: B.softmax_affinity(1.01 * logits)})
    results = values_of(sharper, {"softmax_affinity", "softmax_expert_choice"}, most=8)
    assert sum(result.state in FAILED for result in results) > 10
    assert not names(results)


def test_two_mistakes_have_both_names():
    rows, kept = variants()["rows_first"], variants()["kept_weights_renormalised"]
    module = module_of({**rows.replaced, **kept.replaced})
    matches = names(values_of(module, {"sinkhorn", "token_choice", "sinkhorn_token_choice"}, most=4))
    assert {("sinkhorn", rows.name), ("token_choice", kept.name), ("sinkhorn_token_choice", kept.name)} <= matches


def test_a_stage_that_the_target_passes_and_a_variant_fails_speaks_against_it():
    """A target that renormalises, but not where all experts are chosen."""
    kept = variants()["kept_weights_renormalised"]

    def sometimes(B, scores, *, choices, **options):
        function = (
            kept.replaced["token_choice"] if choices < scores.shape[2] else lambda B, *a, **o: B.token_choice(*a, **o)
        )
        return function(B, scores, choices=choices, **options)

    (match,) = match_variants(values_of(module_of({"token_choice": sometimes}), {"token_choice"}), KNOWN)
    assert match.variant == kept.name
    assert match.agree < match.of
    assert f"in {match.agree} of {match.of} stages" in match.text


def test_a_drift_is_not_taken_for_a_variant():
    """Results a few bounds off, which is what a lower precision gives."""
    drifting = module_of({"softmax_affinity": lambda B, logits: B.softmax_affinity(logits) * (1 + 2.0**-49)})
    results = values_of(drifting, {"softmax_affinity"})
    assert any(result.state in FAILED for result in results)
    assert not names(results)


def test_what_only_lacks_results_has_no_name():
    """A router without its losses is right in all that it returns."""

    def without_losses(routers):
        def routed(router):
            return lambda *arguments, **options: router.route(*arguments, **options)._replace(losses={})

        return {name: replace(router, route=routed(router)) for name, router in routers.items()}

    results = values_of(module_of({"ROUTERS": without_losses}), {"switch"})
    assert {result.first.stage for result in results if result.state in FAILED} == {"route/losses/balance"}
    assert not names(results)


# The command.


def test_the_command(run):
    status, printed, _ = run("variants", "--algorithm", "z_loss", "--algorithm", "capacity")
    lines = printed.splitlines()
    assert status == 0
    assert re.fullmatch(r"\d+ variants, 0 survive, 0 caught by a single case; \d+ cases", lines[-1])
    assert any(re.match(r"square_of_the_mean +\d+ +z_loss/\w+ \(z_loss/loss\)$", line) for line in lines)
    assert any(line.startswith("choices_not_counted ") and line.endswith("CA-4b") for line in lines)


def test_a_variant_that_survives_fails(run, monkeypatch):
    same = variant(lambda B, logits: B.z_loss(logits), "z_loss")
    monkeypatch.setitem(variants(), "no_variant", Variant("no_variant", "The same.", same.replaced))
    status, printed, _ = run("variants", "--algorithm", "z_loss")
    assert status == 1
    assert re.search(r"^no_variant +0 +SURVIVES$", printed, re.MULTILINE)
    assert "1 survive," in printed.splitlines()[-1]


def test_the_reference_passes_the_first_step_of_a_trajectory():
    (result,) = results_of(module_of({}), [mutation_report.first_step(BY_ID["vit/training_soft_moe"])])
    assert result.state == "pass"
