"""Steps of routers on the arrays of the vectors: on the backends, as files, and written in other ways that are right."""

import numpy as np
import pytest
from committed import BY_ID, CASES, of, replaced, results_of, rewired
from safetensors.numpy import save_file

import moespec.backends.numpy as reference
from moespec.conformance.check.run import run_cases
from moespec.conformance.check.target import Target, job_of
from moespec.conformance.check.worker import answers
from moespec.conformance.compare import DTYPES, certified, compared, exact

ROUTED = [case for case in CASES if case.expect is None and case.whole != [stage.name for stage in case.stages]]


def test_all_steps_pass_on_jax():
    """The other backends run them in `nox -s conformance`, which compiles on JAX. A third of the cases is run, each in one dtype."""
    pytest.importorskip("jax")
    for n, (name, dtype) in enumerate(DTYPES.items()):
        target = Target("moespec.backends.jax", dtype)
        exact = [c for c in ROUTED[n::9] if name != "bfloat16" or "low_precision" not in c.flags]
        jobs = [job_of(c, s.name) for c in exact for s in c.stages if s.outputs and s.name not in c.whole]
        assert len(jobs) > 100
        for job, found in zip(jobs, answers(target, jobs, "eager"), strict=True):
            sure = certified(job.case.decisions.get(job.stage.name), dtype)
            outcomes = compared(job.stage.name, job.stage.outputs, found, dtype, sure, job.stage.call)
            assert [(job.case.id, o) for o in outcomes if o.state not in ("pass", "inconclusive")] == []


def write(folder, backend, dtype, cases):
    """Writes what a backend makes of every stage and gradient as files."""
    target = Target(f"moespec.backends.{backend}", DTYPES[dtype])
    for case in cases:
        jobs = [job_of(case, stage.name) for stage in case.stages if stage.outputs]
        found = {job.stage.name: results for job, results in zip(jobs, answers(target, jobs, "eager"), strict=True)}
        if case.gradients:
            differentiated = [job_of(case, case.gradients.stage)]
            (found["gradient"],) = answers(target, differentiated, "eager", gradient=True)
        arrays = {f"{stage}/{name}": array for stage, results in found.items() for name, array in results.items()}
        path = folder / f"{case.id}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({name: np.array(array, order="C") for name, array in arrays.items()}, path)


FILED = ("hash_tables", "sigmoid_token_choice", "softmax_expert_choice")


@pytest.mark.parametrize(
    ("backend", "dtype"), [("numpy", "float64"), ("torch", "float32"), ("torch", "bfloat16"), ("jax", "float32")]
)
def test_what_a_backend_computes_passes_as_files(backend, dtype, tmp_path, run):
    pytest.importorskip(backend)
    cases = [case for case in of(*FILED) if case.expect is None and (backend != "jax" or case.gradients is None)]
    write(tmp_path, backend, dtype, cases)
    status, printed, _ = run("check", tmp_path, "--dtype", dtype, "--algorithm", *FILED)
    assert status == 0, printed
    had = [case for case in cases if all(exact(tensor.array, DTYPES[dtype]) for tensor in case.inputs.values())]
    assert printed.splitlines()[-1].startswith(f"{len(had)} passed, 0 failed")


def test_a_step_that_is_wrong_fails_although_the_whole_is_right():
    """The routers of the target have functions of their own."""
    wrong = replaced(softmax_affinity=lambda logits: reference.softmax_affinity(logits) * (1 + 1e-9))
    lacking = replaced()
    del lacking.softmax_affinity
    case = [BY_ID["softmax_token_choice/values"]]
    (result,) = results_of(wrong, case)
    assert (result.state, result.first.stage) == ("fail", "softmax_affinity/scores")
    assert {result.state for result in results_of(lacking, case)} == {"pass"}
    compiled = run_cases(Target("changed", DTYPES["float64"], wrong), case, "compiled")
    assert {result.state for result in compiled} == {"pass"}


def logarithms(torch, backend):
    """The softmax as the exponential of its logarithm."""

    def softmax(logits):
        return torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), dim=-1).exp()

    return {"softmax_affinity": softmax}


def positions(torch, backend):
    """Quantiles as the specification writes them, whole parts and fractions together."""

    def quantile_bias(bias, counts, *, choices):
        experts, bins = counts.shape
        rank = choices * counts.sum(dim=1) / experts
        below = experts * counts.cumsum(dim=1) < experts * rank[:, None]
        here = torch.where(torch.arange(bins) == below.sum(dim=1, keepdim=True), counts, 0.0).sum(dim=1)
        within = (rank - (counts * below).sum(dim=1)) / torch.where(here > 0, here, 1.0)
        position = below.sum(dim=1) + within
        return (position - position.mean()) * ((bias.max() - bias.min() + 2) / bins)

    return {"quantile_bias": quantile_bias}


def constants(torch, backend):
    """The penalty is no part of the graph."""
    return {"relu_loss": lambda gates, penalty, **options: backend.relu_loss(gates, penalty.detach(), **options)}


RIGHT = {
    logarithms: ("noisy_top_k", "softmax_expert_choice", "importance_score"),
    positions: ("quantile_balancing", "sigmoid_token_choice"),
    constants: ("relu_routing", "relu"),
}


@pytest.mark.parametrize("write", RIGHT, ids=lambda write: write.__name__)
def test_what_is_right_in_other_words_passes(write):
    torch, backend = pytest.importorskip("torch"), pytest.importorskip("moespec.backends.torch")
    module = rewired(backend, **write(torch, backend))
    cases = [case for case in of(*RIGHT[write]) if case.expect is None]
    assert [r.first for r in results_of(module, cases, "float32") if r.state not in ("pass", "inconclusive")] == []


def test_no_gradient_by_a_state_is_demanded():
    demanded = {
        (case.stage(case.gradients.stage).call, name) for case in CASES if case.gradients for name in case.gradients.wrt
    }
    states = {("relu_loss", "penalty"), ("scores_above", "thresholds"), ("momentum_update", "average")}
    assert not demanded & states
    assert not [name for _, name in demanded if name.startswith("state/")]
    assert ("relu_loss", "gates") in demanded
