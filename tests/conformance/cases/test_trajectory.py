"""The trajectories are worth following: what is trained is routed differently as it learns."""

import numpy as np
import pytest
from committed import CASES

from moespec.conformance.compare import DTYPES, certified
from moespec.spec import ROUTERS

TRAJECTORIES = {case.stages[0].options["model"]["router"]: case for case in CASES if case.kind == "trajectory"}


def test_every_router_has_a_trajectory():
    assert set(TRAJECTORIES) == set(ROUTERS)


@pytest.mark.parametrize("router", TRAJECTORIES)
def test_the_trajectory_is_worth_following(router):
    """A batch that comes again is routed differently, no step is near a tie for float32, and the loss falls."""
    case = TRAJECTORIES[router]
    (stage,) = case.stages
    results = {name: value.array for name, value in stage.outputs.items()}
    steps, turns = len(stage.options["rates"]), case.inputs["images"].array.shape[0] // stage.options["batch"]
    assert len(results["losses"]) == steps == 20
    assert results["losses"][-turns:].mean() < 0.7 * results["losses"][:turns].mean()
    moved = [np.abs(results[f"parameters/{n}"] - results["parameters/20"]).max() for n in (1, 5)]
    assert moved[0] > moved[1] > 0
    if router != "soft_moe":  # which chooses nothing
        slots = results["slots"]
        changed = (slots[turns:] != slots[:-turns]).reshape(steps - turns, -1).any(axis=1)
        assert changed.sum() >= 5 if router != "hash" else not changed.any()  # a hash is fixed
        assert certified(case.decisions[stage.name], DTYPES["float32"])
