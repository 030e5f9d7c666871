"""What a target says of itself once, so that it is asked only about what it has."""

from types import SimpleNamespace

import numpy as np
import pytest
from committed import BY_ID

from moespec.conformance import call
from moespec.conformance.author.variant import module_of
from moespec.conformance.check.process import Remote
from moespec.conformance.check.run import run_cases
from moespec.conformance.check.target import Facts, Target
from moespec.conformance.compare import DTYPES

ASKED = [
    *("z_loss/values", "z_loss/gradient", "token_choice/tied", "switch/values", "sparse_mlp/both_layers"),
    "capacity/ceil",
]


def without(*names):
    return SimpleNamespace(**{name: each for name, each in vars(module_of({})).items() if name not in names})


def test_what_is_missing_is_named_by_its_first_part():
    missing = call.missing(without("ROUTERS", "z_loss"))
    assert (missing["z_loss"], missing["ROUTERS"], missing["ROUTERS.switch.route"]) == ("z_loss", "ROUTERS", "ROUTERS")
    assert all(path.partition(".")[0] in ("z_loss", "ROUTERS") for path in missing)
    module = module_of({})
    del module.ROUTERS["switch"]
    module.ROUTERS["gshard"] = object()
    parts = {"ROUTERS.switch.route": "ROUTERS['switch']", "ROUTERS.gshard.route": "ROUTERS['gshard'].route"}
    assert call.missing(module) == parts


@pytest.mark.parametrize(
    ("absent", "lacks"),
    [
        ((), set()),
        (("z_loss",), {"z_loss/values", "z_loss/gradient"}),
        (("cast",), {"z_loss/gradient"}),
        (("ROUTERS",), {"switch/values", "sparse_mlp/both_layers"}),
        (("token_choice",), {"token_choice/tied"}),
        (("CAPACITY_RULES",), set()),
    ],
)
def test_a_case_whose_names_are_missing_is_not_implemented(absent, lacks):
    results = run_cases(Target("some", DTYPES["float64"], without(*absent)), [BY_ID[id] for id in ASKED], "eager")
    states = {result.id: result.state for result in results}
    assert {id for id, state in states.items() if state == "not implemented"} == lacks
    assert {states[id] for id in set(ASKED) - lacks} == {"pass"}


def test_a_process_is_not_asked_about_what_it_lacks(monkeypatch):
    """Nor about a case that it declares as not offered, in which it says nothing."""
    facts = Facts(
        missing={"z_loss": "z_loss"}, not_offered={"token_choice/*": "no"}, without_gradients="cast is missing"
    )
    asked = []

    def answers(self, jobs, mode, *, gradient=False):
        asked.extend((job.case.id, gradient) for job in jobs)
        return [{"capacity": np.array(0)} for _ in jobs]

    monkeypatch.setattr(Remote, "facts", lambda self: facts)
    monkeypatch.setattr(Remote, "answers", answers)
    remote = Remote(Target, "any", DTYPES["float64"], 1.0, 0)
    ids = ["z_loss/values", "importance_loss/gradient", "token_choice/tied", "capacity/ceil"]
    results = {result.id: result for result in run_cases(remote, [BY_ID[id] for id in ids], "eager")}
    assert set(asked) == {("capacity/ceil", False), ("importance_loss/gradient", False)}  # its value alone
    messages = {id: {outcome.message for outcome in result.outcomes} for id, result in results.items()}
    assert messages["z_loss/values"] == {"z_loss is missing"}
    assert messages["token_choice/tied"] == {"declared as not offered: no"}
    assert "cast is missing" in messages["importance_loss/gradient"]
