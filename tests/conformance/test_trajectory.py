import numpy as np
import pytest

from moespec.conformance.judge import LANES
from moespec.conformance.suite import load
from moespec.spec import ROUTERS

CASES = {case.config["model"]["router"]: case for case in load() if case.kind == "trajectory"}


def test_every_router_has_a_trajectory():
    assert set(CASES) == set(ROUTERS)


@pytest.mark.parametrize("router", CASES)
def test_the_trajectory_is_worth_following(router):
    """A batch that comes again is routed otherwise, no step is near a tie for float32, and the loss falls."""
    case = CASES[router]
    results = {name: value.array for name, value in case.stages[0].outputs.items()}
    steps, turns = len(case.config["rates"]), case.inputs["images"].array.shape[0] // case.config["batch"]
    assert len(results["losses"]) == steps == 20
    assert results["losses"][-turns:].mean() < 0.7 * results["losses"][:turns].mean()
    moved = [np.abs(results[f"parameters/{n}"] - results["parameters/20"]).max() for n in (1, 5)]
    assert moved[0] > moved[1] > 0
    if router != "soft_moe":  # which chooses nothing
        slots, margin = results["slots"], case.decisions["train"]
        changed = (slots[turns:] != slots[:-turns]).reshape(steps - turns, -1).any(axis=1)
        assert changed.sum() >= 5 if router != "hash" else not changed.any()  # a hash is fixed
        assert margin["margin"] > margin["needed"][LANES["f32"].name]
