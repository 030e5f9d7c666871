"""The committed results of the benchmarks: of every router, and such as a reader can compare."""

import json
from pathlib import Path

import pytest

from moespec.spec.routers import ROUTERS

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


@pytest.mark.parametrize("name", ["layers-tpu", "layers-jax-cpu", "layers-torch-cpu"])
def test_layers_of_every_router_were_measured(name):
    """`nox -s tpu` compares with the committed figures, and has nothing to compare a new router with until they are."""
    result = json.loads((RESULTS / f"{name}.json").read_text())
    rows = result["rows"] if name == "layers-tpu" else result["figures"]["layers"]
    assert not {"dense", *ROUTERS} - set(rows)
