"""Fused layers through the adapter: at sizes that a kernel can run, forward and backward, compiled, and once wrong."""

import numpy as np
import pytest
from committed import CASES
from fused_layers import FORWARD, JAX, NUMPY, RIGHT, SUBTLE, WRONG

from moespec.conformance import suite
from moespec.conformance.author import large
from moespec.conformance.author.backward import layer_gradients
from moespec.conformance.check.adapter import Adapter
from moespec.conformance.check.run import run_cases
from moespec.conformance.check.target import Target
from moespec.conformance.compare import ALL_DTYPES, DTYPES, compare, tolerance
from moespec.conformance.format import GoldenError
from moespec.conformance.golden.fresh import fresh
from moespec.conformance.manifest import encode
from moespec.spec import ROUTERS

ROUTER, SEED = "softmax_expert_choice", 7


@pytest.fixture(scope="module")
def layers():
    """The large cases of one router."""
    return fresh(SEED, lambda id: id.startswith(f"{ROUTER}/"), size="large")


def states(name, cases, dtype, mode="eager"):
    return {result.id: result.state for result in run_cases(Adapter(name, ALL_DTYPES[dtype]), cases, mode)}


# The cases.


def test_what_is_made(layers):
    assert [case.id for case in layers] == [id for id in large.ids() if id.startswith(f"{ROUTER}/")]
    assert not any(list(suite.problems(case)) for case in layers)
    for case in layers:
        _, tokens, width = case.inputs["tokens"].array.shape
        experts, d, hidden = case.inputs["experts/w1"].array.shape
        assert 64 <= tokens <= 264
        assert 64 <= width == d <= 384
        assert (hidden, hidden % 64, 8 <= experts <= 264) == (4 * width, 0, True)  # blocks of a kernel are whole
    dropped = layers[1].stage("route").outputs["metrics/dropped"].array
    assert dropped > 0.2


def test_every_router_has_some_and_a_seed_gives_the_same():
    ids = set(large.ids())
    assert {id.partition("/")[0] for id in ids} == {*ROUTERS}
    assert not ids & suite.ids()
    first, second, other = (
        encode(case)[1]
        for seed in (SEED, SEED, SEED + 1)
        for case in fresh(seed, lambda id: id == "hash/large_64", size="large")
    )
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert not any(np.array_equal(first[name], other[name]) for name in first if name.endswith("w1"))


@pytest.mark.parametrize("router", ["cosine_token_choice", "relu", "sigmoid_token_choice"])
def test_parameters_of_all_names_and_states_are_made(target, router):
    """Routers whose large cases could not be made: they have a state, or parameters that others do not have."""
    (case,) = fresh(SEED, lambda id: id == f"{router}/large_64", size="large")
    (result,) = run_cases(Target("moespec.backends.numpy", DTYPES["float64"]), [case], "eager")
    assert result.state == "pass"
    assert states(target("fused_whole", FORWARD), [case], "float64") == {case.id: "pass"}


def test_every_large_case_has_what_its_router_takes():
    ids = {(id.partition("/")[0], "dropless" in id, "gradient" in id): id for id in [*large.ids()][::-1]}
    for id in ids.values():
        made, record = large.definition(id), ROUTERS[id.partition("/")[0]]
        options = record.options(**made.routed.options)
        names = {f"state/{name}" for name in record.initial_state(options)}
        names |= {f"router/{name}" for name in record.init(np.random.default_rng(0), options)}
        assert names == {name for name in made.inputs if name.startswith(("router/", "state/"))}
        assert not [name for name in made.by if name.startswith("state/")]
        if "dropless" in id:
            assert options.capacity() == options.tokens


def test_zeros_and_small_mistakes_fail_in_every_dtype(layers):
    """By how much: a tenth of the layer in bfloat16, a thousandth of a tenth in float32."""
    value = layers[2].stages[-1].outputs["output"]
    for dtype, mistake in (("bfloat16", 0.1), ("float16", 0.02), ("float32", 1e-4), ("float64", 1e-12)):
        assert compare(value, 0 * value.array, ALL_DTYPES[dtype]).fraction > 10
        assert not compare(value, value.array * (1 + mistake), ALL_DTYPES[dtype]).passed
        size = np.sqrt(np.mean(value.array**2))
        assert tolerance(value, ALL_DTYPES[dtype]).mean() < mistake * size * 2


def test_a_gradient_that_is_not_that_of_the_specification_is_not_made(monkeypatch):
    def halved(*arguments):
        return {name: slope / 2 for name, slope in layer_gradients(*arguments).items()}

    monkeypatch.setattr("moespec.conformance.author.reference_gradients.layer_gradients", halved)
    with pytest.raises(GoldenError, match="along a direction"):
        fresh(SEED, lambda id: id == "hash/large_gradient", size="large")


# Fused layers.


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_a_fused_layer_passes_forward_and_backward(target, layers, dtype):
    pytest.importorskip("torch")
    assert set(states(target("fused_right", RIGHT), layers, dtype).values()) == {"pass"}


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_a_wrong_backward_pass_is_caught(target, layers, dtype):
    pytest.importorskip("torch")
    name = target("fused_wrong_backward", WRONG)
    gradient = f"{ROUTER}/large_gradient"
    assert states(name, layers, dtype) == {case.id: "fail" if case.id == gradient else "pass" for case in layers}
    (result,) = run_cases(Adapter(name, ALL_DTYPES[dtype]), layers[-1:], "eager")
    failed = {outcome.stage for outcome in result.outcomes if outcome.state == "fail"}
    assert "gradient/experts/w1" in failed
    assert not {"gradient/experts/w2", "gradient/experts/b2", "moe_layer/output"} & failed


@pytest.mark.parametrize("by", SUBTLE)
def test_a_wrong_backward_pass_fails_a_default_run(run, target, by):
    pytest.importorskip("torch")
    name = target(f"fused_{by.replace('/', '_')}", SUBTLE[by])
    status, printed, _ = run("run", "--adapter", name, "--algorithm", ROUTER, "--dtype", "f64,f32")
    assert (status, printed.count(f"FAIL {ROUTER}/gradient_output [")) == (1, 3)  # the third on strided tensors


def test_jax_is_differentiated_and_compiled(target, layers):
    pytest.importorskip("jax")
    name = target("fused_jax", JAX)
    for dtype, mode in (("float64", "eager"), ("float32", "compiled"), ("bfloat16", "eager")):
        assert set(states(name, [layers[0], layers[-1]], dtype, mode).values()) == {"pass"}


def test_an_adapter_may_compile_by_itself(target, layers):
    torch = pytest.importorskip("torch")
    text = (
        RIGHT + "\ncalls = []\ndef compile(f):\n    calls.append(f)\n    return torch.compile(f, backend='aot_eager')\n"
    )
    name = target("fused_compiling", text)
    torch._dynamo.reset()
    assert set(states(name, [layers[0], layers[-1]], "float32", "compiled").values()) == {"pass"}
    assert __import__(name).calls


SMALL = [case for case in CASES if case.algorithm == "soft_moe" and case.kind in ("value", "gradient")]


RIGHT_VJP = NUMPY.replace("FACTOR", "1")
VJPS = {
    "right": (RIGHT_VJP, "pass"),
    "off": (NUMPY.replace("FACTOR", "1.01"), "fail"),
    "without experts": (RIGHT_VJP.replace("* 1, tree", ", {'router': tree['router']}"), "fail"),
}


@pytest.mark.parametrize("name", VJPS)
def test_a_derivative_of_its_own(target, name):
    text, state = VJPS[name]
    results = states(target(f"numpy_vjp_{len(text)}", text), SMALL, "float64")
    assert {results.pop(case.id) for case in SMALL if case.gradients} == {state}
    assert set(results.values()) == {"pass"}


def test_what_has_no_derivative_is_not_implemented(target, layers):
    without = target("numpy_no_vjp", FORWARD)
    assert states(without, SMALL, "float64")["soft_moe/gradient"] == "not implemented"
    assert set(states(without, SMALL, "float64", "compiled").values()) == {"not implemented"}
    declining = FORWARD + "def vjp(*_):\n    raise NotImplementedError('later')\n"
    assert states(target("numpy_declines", declining), SMALL, "float64")["soft_moe/gradient"] == "not implemented"
    pytest.importorskip("torch")
    opaque = "\nright = layer\ndef layer(x, params, options):\n    with torch.no_grad():\n"
    opaque += "        return right(x, params, options)\n"
    (result,) = run_cases(Adapter(target("opaque", RIGHT + opaque), DTYPES["float64"]), layers[-1:], "eager")
    assert "autograd cannot differentiate the layer, and the" in "".join(outcome.message for outcome in result.outcomes)


# The command line.


def test_the_command_line(run, target):
    name = target("adding", "import numpy as np\ndef layer(x, params, options):\n    return np.ones_like(x)\n")
    options = ("--adapter", name, "--dtype", "f64", "--case", "switch/large_64", "--fresh", SEED)
    status, printed, _ = run("run", *options, "--size", "large")
    assert status == 1
    assert printed.startswith(f"fresh, seed {SEED}, large\n")
    (command,) = [line for line in printed.splitlines() if "conformance show " in line]
    assert command.endswith(f"show switch/large_64 --adapter adding --dtype float64 --fresh {SEED} --size large")
