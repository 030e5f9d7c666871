import numpy as np

from moespec.conformance.judge import LANES
from moespec.conformance.suite import load


def test_the_trajectory_is_worth_following():
    """A batch that comes again is routed otherwise, no step is near a tie for float32, and the loss falls."""
    (case,) = load(only=lambda id: id == "vit/training")
    results = {name: value.array for name, value in case.stages[0].outputs.items()}
    slots, steps = results["slots"], len(case.config["rates"])
    turns = case.inputs["images"].array.shape[0] // case.config["batch"]
    assert len(slots) == steps == 20
    changed = (slots[turns:] != slots[:-turns]).reshape(steps - turns, -1).any(axis=1)
    assert changed.sum() >= 5
    margin = case.decisions["train"]
    assert margin["margin"] > margin["needed"][LANES["f32"].name]
    assert results["losses"][-turns:].mean() < 0.5 * results["losses"][:turns].mean()
    moved = [np.abs(results[f"parameters/{n}"] - results["parameters/20"]).max() for n in (1, 5)]
    assert moved[0] > moved[1] > 0
