"""A manifest is executable by itself: NumPy, safetensors and the public names of the specification are all that it takes."""

import json
from functools import partial

import numpy as np
import pytest
from safetensors.numpy import load_file

from moespec import spec
from moespec.conformance import suite

GROUPED = ("groups", "images", "rows")
"""A first axis of these names is not one of the specification, which computes one group at a time."""


class Manifest:
    """The interpreter: the values that references stand for, and the calls of stages on them."""

    def __init__(self, path):
        self.content = json.loads(path.read_text())
        file = path.with_suffix(".safetensors")
        self.beside = load_file(file) if file.exists() else {}
        self.values, self.grouped = {}, set()
        self.stages = {stage["name"]: stage for stage in self.content["stages"]}
        for name, entry in self.content["inputs"].items():
            self.learn(name, entry)
        for name, stage in self.stages.items():
            for result, entry in stage["outputs"].items():
                self.learn(f"{name}/{result}", entry)
                if len(stage["outputs"]) == 1:  # which the name of the stage stands for, too
                    self.learn(name, entry)

    def array(self, entry):
        found = self.beside[entry["tensor"]] if "tensor" in entry else np.array(entry["data"], entry["dtype"])
        return found.astype(np.float64) if found.dtype.kind == "f" else found

    def learn(self, name, entry):
        self.values[name] = self.array(entry)
        self.grouped = self.grouped - {name} | ({name} if entry["axes"][:1] in [[axis] for axis in GROUPED] else set())

    def read(self, reference):
        """The names of the arrays that a reference leads to."""
        if isinstance(reference, dict):
            parts = reference["arguments"] if "call" in reference else reference
            return {name for part in parts.values() for name in self.read(part)}
        if reference is None or reference in self.values:
            return {reference} - {None}
        return {name for part in self.stages[reference.split("/")[0]]["arguments"].values() for name in self.read(part)}

    def value(self, reference, group):
        """What a reference stands for: an array, a function, or what an earlier call returns, made once more."""
        if reference is None:
            return None
        if isinstance(reference, dict) and "call" in reference:
            return (lambda x: x) if reference["call"] == "identity" else self.bound(reference, group)
        if isinstance(reference, dict):
            return {name: self.value(part, group) for name, part in reference.items()}
        if reference in self.values:
            return self.values[reference][group] if reference in self.grouped else self.values[reference]
        name, _, part = reference.partition("/")
        found = self.bound(self.stages[name], group)()
        return getattr(found, part) if part else found

    def bound(self, called, group):
        """The public name with its arguments."""
        *owners, _ = path = called["call"].split(".")
        found = spec
        for part in path:
            owner, found = found, found[part] if isinstance(found, dict) else getattr(found, part)
        options = dict(called["options"])
        if owners[:1] == ["ROUTERS"]:
            fields = {name: float("inf") if value == "inf" else value for name, value in options["options"].items()}
            options["options"] = owner.options(**fields)
        return partial(
            found, **{name: self.value(part, group) for name, part in called["arguments"].items()}, **options
        )

    def run(self, name):
        """The results of a stage: of the groups one after the other, or their mean, of statistics the sum, of booleans whether any
        is true."""
        stage = self.stages[name]
        rows = [len(self.values[read]) for read in self.read(stage["arguments"]) & self.grouped]
        groups = [results(self.bound(stage, g)(), stage["outputs"]) for g in range(rows[0] if rows else 1)]
        joined = {}
        for result, entry in stage["outputs"].items():
            each = np.stack([group[result] for group in groups])
            same = all(np.array_equal(each[0], one) for one in each)
            adds = ["excess_gates", "expert_load", "required_biases", "capacity_thresholds"]
            adds += ["budget_excess", "pooled_cutoff"]
            sums = result.startswith("statistics/") or stage["call"] in adds
            mean = each.sum(axis=0) if sums else each.mean(axis=0)
            mean = each[0] if same and not sums else each.any(axis=0) if each.dtype == bool else mean
            joined[result] = each if each.ndim == len(entry["axes"]) else mean
        if stage["call"].endswith(".route") and "balance_scope" in stage["options"]["options"]:
            joined |= self.of_the_batch(stage)
        return joined

    def of_the_batch(self, stage):
        """The balance loss of a router that counts the choices of all groups: that of all their tokens as one group."""
        options, kept = dict(stage["options"]["options"]), dict(self.values)
        del options["balance_scope"]
        options |= {name: len(kept["tokens"]) * options[name] for name in ("tokens", "images") if name in options}
        together = {name: array.reshape(1, -1, *array.shape[2:]) for name, array in kept.items() if name in OF_GROUPS}
        self.values |= together
        found = self.bound({**stage, "options": {**stage["options"], "options": options}}, 0)()
        self.values |= kept
        return {"losses/balance": found.losses["balance"], "metrics/balance_loss": found.metrics["balance_loss"]}


OF_GROUPS = ("tokens", "noise", "ids")
"""Inputs of a router with a row for each group."""


def results(found, wanted):
    """What a call returned, by name; a sparse routing is the token and the weight of each slot."""
    if hasattr(found, "losses"):
        parts = {
            f"{kind}/{n}": v for kind in ("losses", "metrics", "statistics") for n, v in getattr(found, kind).items()
        }
        return results(found.routing, wanted) | parts
    if "slots" in wanted:
        tokens = np.concatenate([found.dispatch, np.ones((1, *found.dispatch.shape[1:]))])
        return {"slots": tokens.argmax(axis=0), "weights": found.combine.sum(axis=0)}
    if hasattr(found, "_asdict"):
        return found._asdict()
    return found if isinstance(found, dict) else {next(iter(wanted), ""): found}


ALGORITHMS = sorted(path.name for path in suite.VECTORS.glob("*"))
ROUNDOFF = 2.0**-53
CONSTANTS = json.loads((suite.VECTORS.parent / "suite.json").read_text())["constants"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_stage_computes_its_results(algorithm):
    """Integers exactly, and floats but for the last bits, which depend on the machine; models are not in the specification."""
    for manifest in map(Manifest, (suite.VECTORS / algorithm).glob("*.json")):
        for name, stage in manifest.stages.items():
            if "expect" in manifest.content or not hasattr(spec, stage["call"].split(".")[0]):
                continue
            computed = manifest.run(name)
            for result, entry in stage["outputs"].items():
                want, got = manifest.array(entry), computed[result]
                scale = 0.0
                if entry["kind"] == "float":
                    scale = np.abs(want) if entry["scale"] == "magnitude" else manifest.array(entry["scale"])
                    scale = CONSTANTS[entry["constant"]]["c"] * ROUNDOFF * scale
                assert np.shape(got) == want.shape, (manifest.content["id"], name, result)
                assert (np.abs(got - want.astype(float)) <= scale).all(), (manifest.content["id"], name, result)
