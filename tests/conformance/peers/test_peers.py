"""Peers: the table is made of what was recorded, wrong names are rejected, and torch's own functions are run."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from absent import run_without
from committed import BY_ID, CASES, of

from moespec.conformance import suite
from moespec.conformance.check.match_variant import Known
from moespec.conformance.check.run import run_cases
from moespec.conformance.compare import DTYPES
from moespec.conformance.peers import PEERS
from moespec.conformance.peers.__main__ import main
from moespec.conformance.peers.measure import measure, read_record, readings
from moespec.conformance.peers.table import judged, table
from moespec.conformance.peers.target import ERRORS, PeerTarget, routing_only
from moespec.spec import LEDGER
from moespec.spec.implementations.positions import Measured
from moespec.spec.implementations.table import page

ROOT = Path(__file__).parents[3]
RECORDS = ROOT / "conformance" / "reports"


def test_the_committed_table_is_that_of_the_committed_records():
    records = [read_record(RECORDS / f"peer-{name}.json") for name in PEERS]
    assert len(records) == len(list(RECORDS.glob("peer-*.json")))
    assert (ROOT / "docs" / "peers.md").read_text() == table(records)


@pytest.mark.parametrize(
    "entry",
    [
        {"function": "softmax_affinity"},  # which passes
        {"cases": ["network/layer_norms*"]},
        {"verdict": "a mistake"},
        {"ledger": "NW-1z"},
    ],
)
def test_a_verdict_is_of_cases_that_fail_and_a_failure_without_one_is_unexplained(entry, monkeypatch):
    record = read_record(RECORDS / "peer-torch.json")
    right = next(each for each in PEERS["torch"].verdicts if each["function"] == "layer_norm")
    changed = replace(PEERS["torch"], verdicts=(right,))
    monkeypatch.setitem(PEERS, "torch", changed)
    found = {name: (verdict, len(cases)) for name, verdict, _, cases in judged(record)}
    assert found["layer_norm"][0] == "another default"
    assert found["gelu"] == ("unexplained", 2)
    monkeypatch.setitem(PEERS, "torch", replace(changed, verdicts=(right | entry,)))
    with pytest.raises(ValueError, match=r"peers\.toml, torch: .* matches no failing case, verdict or reading"):
        table([record])


def test_the_committed_readings_are_those_of_the_committed_records():
    """After a change of the ledger, of the vectors or of the variants: `python -m moespec.conformance.peers`."""
    found = json.loads((ROOT / "spec" / "implementations" / "measured.json").read_text())
    assert found == readings([read_record(RECORDS / f"peer-{name}.json") for name in PEERS], CASES)
    assert (ROOT / "docs" / "implementations.md").read_text() == page([Measured(**each) for each in found])
    assert all(each["readings"].keys() <= {r.id for entry in LEDGER.values() for r in entry.readings} for each in found)


def test_of_a_router_neither_the_losses_nor_their_gradient_nor_the_update_is_compared():
    """The balance loss of another reading differs in a case, the routing does not."""
    whole = BY_ID["softmax_token_choice/noise"]
    cases = (whole, routing_only(whole))
    found = [Known([case]).differs((case.id, "route"), "balance_after_drops", DTYPES["float64"]) for case in cases]
    assert found == [True, False]
    whole, part = BY_ID["sigmoid_token_choice/gradient_losses"], routing_only(BY_ID["sigmoid_token_choice/values"])
    assert whole.gradients
    assert routing_only(whole).gradients is None
    assert routing_only(BY_ID["sigmoid_token_choice/gradient_output"]).gradients
    assert part.whole == ["route", "moe_layer"]


def test_a_package_without_capacity_is_compared_where_it_drops_nothing():
    torch = pytest.importorskip("torch")
    from moespec.conformance.peers.adapters.on_torch import dropless, sparse

    scores = torch.tensor([[[0.5, 0.25], [0.75, 0.125]]])
    gates = torch.tensor([[[0.0, 2.0], [3.0, 0.0]]])
    assert dropless(scores, gates, 1).dense().combine.tolist() == [[[[0.0], [2.0]], [[3.0], [0.0]]]]
    assert sparse(scores, gates[:, :, :1].expand(1, 2, 2), 1, 2).token.tolist() == [[[1, 2], [2, 2]]]
    with pytest.raises(NotImplementedError, match="no token is dropped"):
        dropless(scores, gates.flip(2)[:, :, :1].expand(1, 2, 2) + 1, 1)


@pytest.mark.parametrize("name", PEERS)
def test_a_committed_record_is_of_the_pinned_version_and_of_these_vectors(name):
    """After a change of the vectors: `nox -s peers`."""
    found = read_record(RECORDS / f"peer-{name}.json")
    pinned = dict(requirement.split("==") for requirement in (*PEERS[name].requires, *PEERS[name].alone))
    assert found["versions"][found["package"]].split("+")[0] == pinned[found["package"]]
    assert found["suite"] == suite.digest()
    ids = {case["id"] for function in found["functions"].values() for case in function["cases"]}
    assert ids
    assert ids <= BY_ID.keys()


@pytest.fixture
def root(tmp_path):
    """A checkout without records."""
    for folder in ("conformance/reports", "docs", "spec/implementations"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def written(root):
    return [path for path in root.rglob("*") if path.is_file()]


def test_a_damaged_record_is_named(root, capsys):
    path = root / "conformance/reports/peer-pot.json"
    path.write_text('{"schema": 1}')
    assert main(["--root", str(root)]) == 1
    assert f"{path}: not a peer record" in capsys.readouterr().err
    assert written(root) == [path]


def test_a_peer_that_is_not_installed_is_named(root):
    program = """
        from moespec.conformance.peers.__main__ import main
        sys.exit(main(["--peer", "pot", *sys.argv[1:]]))
    """
    result = run_without(["ot", "torch"], program, "--root", str(root))
    assert result.returncode == 1
    assert result.stderr.startswith("--peer pot: No module named ")
    assert "Traceback" not in result.stderr
    assert not written(root)


# torch's own functions, for real.

FUNCTIONS = ("network", "softmax_affinity", "expert_choice", "batch_priority", "moe_layer")


@pytest.fixture(scope="module")
def measured():
    pytest.importorskip("torch")
    return measure(PEERS["torch"], of(*FUNCTIONS), suite.digest())


def states(measured, function, dtype="float64"):
    cases = [case for case in measured["functions"][function]["cases"] if case["dtype"] == dtype]
    return {case["id"].split("/")[1]: case["state"] for case in cases}


def test_what_torch_claims_is_measured(measured):
    json.dumps(measured)
    assert set(measured["functions"]) == {
        "attention", "batch_priority", "expert_choice", "gelu", "layer_norm", "patch_embed", "router_logits",
        "sigmoid_cross_entropy", "softmax_affinity", "softmax_cross_entropy",
    }  # fmt: skip
    assert measured["functions"]["softmax_affinity"]["runs"] == "`torch.softmax` over experts"
    for dtype in ("float64", "float32"):
        assert set(states(measured, "softmax_affinity", dtype).values()) == {"pass"}
        assert set(states(measured, "attention", dtype).values()) == {"pass"}


def test_where_torch_differs_the_variant_is_named_and_what_it_cannot_be_told_is_not_implemented(measured):
    for function, case, variant in (
        ("gelu", "gelu_default", "exact_gelu_by_default"),
        ("layer_norm", "layer_norm", "epsilon_of_torch_by_default"),
    ):
        found = states(measured, function)
        assert found[case] == "fail"
        assert variant in [each["variant"] for each in measured["functions"][function]["variants"]]
    assert states(measured, "gelu")["gelu_tanh"] == "pass"
    choice = states(measured, "expert_choice")
    assert (choice["tied"], choice["zeros_dropped"]) == ("fail", "not implemented")


def test_a_peer_is_not_run_on_our_errors_nor_on_what_adapters_share():
    pytest.importorskip("torch")
    target = PeerTarget(PEERS["torch"].target, DTYPES["float64"])
    wanted = ("softmax_affinity/negative_shape", "softmax_affinity/values", "softmax_token_choice/values")
    results = {result.id: result for result in run_cases(target, [BY_ID[id] for id in wanted], "eager")}
    assert results["softmax_affinity/negative_shape"].first.message == ERRORS
    assert results["softmax_affinity/values"].state == "pass"
    assert results["softmax_token_choice/values"].state == "not implemented"
    assert {outcome.state for outcome in results["softmax_token_choice/values"].outcomes} == {"not implemented"}


def test_of_a_router_that_lacks_an_option_the_layer_is_not_offered_either(monkeypatch):
    pytest.importorskip("torch")
    target = PeerTarget(PEERS["torch"].target, DTYPES["float32"])

    def route(*arguments, **options):
        raise AssertionError("it is not asked")

    monkeypatch.setattr(target.module, "ROUTERS", {"softmax_token_choice": SimpleNamespace(route=route)}, raising=False)
    (result,) = run_cases(target, [routing_only(BY_ID["softmax_token_choice/several_choices"])], "eager")
    states = {outcome.stage.split("/")[0]: outcome.state for outcome in result.outcomes}
    assert (states["route"], states["moe_layer"]) == ("not implemented", "not implemented")
