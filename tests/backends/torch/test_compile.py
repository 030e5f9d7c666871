"""The torch backend under `torch.compile(fullgraph=True)`: the same numbers on other shapes, the same errors. That every function
is traced without a break, the compiled mode of the conformance suite checks."""

import importlib

import numpy as np
import pytest
from router_inputs import perceptrons

from moespec.spec import ConfigError, DtypeError, ShapeError

torch = pytest.importorskip("torch")
B = importlib.import_module("moespec.backends.torch")

EXPERTS, WIDTH = 4, 6


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def draw(*shape):
    return B.from_numpy(np.random.default_rng(shape).normal(size=shape))


MLP = perceptrons(draw, EXPERTS, WIDTH, 5)


def layer(x, routing, mlp):
    return B.moe_layer(x, routing, lambda inputs: B.expert_mlp(inputs, mlp))


def gradients(function, x, *arguments):
    """The outputs of `function`, and the gradient of the sum of its floating outputs."""
    x = x.detach().requires_grad_()
    outputs = function(x, *arguments)
    total = sum(value.sum() for value in outputs.values() if value.requires_grad)
    leaves = [x, *(leaf for leaf in arguments if isinstance(leaf, torch.Tensor) and leaf.requires_grad)]
    return outputs, torch.autograd.grad(total, leaves)


def assert_same(compiled, eager):
    for got, want in zip([*compiled[0].values(), *compiled[1]], [*eager[0].values(), *eager[1]], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_compiled_numbers_on_a_second_shape():
    """What the compiler generates for symbolic sizes: gathers, sums and scatters together have been miscompiled."""

    def function(x, kernel):
        scores = B.softmax_affinity(B.router_logits(x, kernel))
        chosen = B.token_choice(scores, choices=2, capacity=3)
        picked = B.expert_choice(scores, capacity=2)
        return {"y": layer(x, chosen, MLP) + layer(x, picked, MLP)}

    compiled = torch.compile(function, fullgraph=True, dynamic=True)
    kernel = draw(WIDTH, EXPERTS).requires_grad_()
    for shape in [(2, 12, WIDTH), (3, 20, WIDTH), (2, 12, WIDTH)]:
        x = draw(*shape)
        assert_same(gradients(compiled, x, kernel), gradients(function, x, kernel))


def test_numbers_of_options_are_static():
    """Also for a function that torch has compiled with other numbers, as of several runs in one process."""

    def routed(options):
        def route(tokens):
            return B.ROUTERS["gshard"].route(params, tokens, options, train=True).routing.weight

        return route

    for tokens, factor in ((6, 1.0), (12, 1.25), (8, 2.0), (6, 1.5)):
        router = B.ROUTERS["gshard"]
        options = router.options(width=WIDTH, experts=EXPERTS, tokens=tokens, capacity_factor=factor)
        params = B.from_numpy(router.init(np.random.default_rng(0), options))
        x = draw(2, tokens, WIDTH).float()
        torch.testing.assert_close(B.quick_compile(routed(options))(x), routed(options)(x))


def test_static_faults_raise_while_tracing():
    scores = draw(2, 6, EXPERTS)
    with pytest.raises(ConfigError, match=r"^choices: a token cannot choose 9 of 4 experts"):
        B.compile(B.token_choice)(scores, choices=9, capacity=2)
    with pytest.raises(ShapeError, match=r"^logits: expected"):
        B.compile(B.softmax_affinity)(scores[0])
    with pytest.raises(DtypeError, match=r"^scores: .* got int64"):
        B.compile(lambda x: B.expert_choice(x, capacity=2))(scores.long())
    plain = torch.compile(B.token_choice, fullgraph=True, backend="eager")
    with pytest.raises(torch._dynamo.exc.Unsupported, match="choices: a token cannot choose 9 of 4 experts"):
        plain(scores, choices=9, capacity=2)


def test_compiled_gradients():
    """`compile(value_and_grad(f))` is `value_and_grad(compile(f))`: the loss and its backward pass are compiled. And so by `trace`."""

    def loss(params, x):
        scores = B.softmax_affinity(B.router_logits(x, params["router"]["kernel"]))
        y = layer(x, B.token_choice(scores, choices=1, capacity=3), params["experts"])
        return y.square().mean(), {"y": y}

    params, x = {"router": {"kernel": draw(WIDTH, EXPERTS)}, "experts": MLP, "unused": draw(2)}, draw(2, 12, WIDTH)
    (value, aux), gradient = B.value_and_grad(loss)(params, x)
    assert not value.requires_grad
    assert not aux["y"].requires_grad
    assert gradient["unused"].eq(0).all()
    for evaluate in (
        *(compile(B.value_and_grad(loss)) for compile in (B.quick_compile, B.trace)),
        *(B.value_and_grad(compile(loss)) for compile in (B.quick_compile, B.trace)),
    ):
        (got, _), compiled_gradient = evaluate(params, x)
        torch.testing.assert_close(got, value)
        assert list(compiled_gradient) == list(params)
        for name in MLP:
            torch.testing.assert_close(compiled_gradient["experts"][name], gradient["experts"][name])
        torch.testing.assert_close(compiled_gradient["router"]["kernel"], gradient["router"]["kernel"])


class Decided(torch.autograd.Function):
    """A product whose derivative asks for a number."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, slope):
        return 2 * slope if slope.sum() > 0 else -2 * slope


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * x.sum().item(),
        lambda x: x if x.sum() > 0 else -x,
        lambda x: x[x > 0],
        lambda x: x[: int(x.sum())],
        B.value_and_grad(lambda x: (Decided.apply(x["x"]).sum(), {})),
    ],
    ids=["item", "if", "mask", "size", "backward"],
)
def test_what_asks_for_numbers_is_not_traced(function):
    x = draw(3)
    with pytest.raises(RuntimeError, match=r"_local_scalar_dense|aten\.(nonzero|index|_local)"):
        B.trace(function)({"x": x} if hasattr(function, "_loss") else x)


def test_a_trace_is_of_one_shape():
    """And of what is written for compilers."""
    traced = B.trace(lambda x: x / len(x) if torch.compiler.is_compiling() else None)
    for size in (2, 3, 2):
        assert torch.equal(traced(torch.ones(size)), torch.ones(size) / size)


def test_a_cuda_graph_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU there is none, and the numbers are the same; what a step returns is its own, as the next one overwrites the rest."""
    kept, run = [], torch.compile
    monkeypatch.setattr(torch, "compile", lambda *of, **more: kept.append(more) or run(*of, **more))
    optimizer, params, batch = B.OptimizerConfig("sgd"), {"w": np.ones(3, np.float32)}, {"x": draw(4, 3).float()}

    def loss(params, batch):
        y = (batch["x"] @ params["w"]).square().mean()
        return y, {"twice": 2 * y}

    training, made = importlib.import_module("moespec.backends.torch.training"), []
    of_pass = training.set_gradients
    monkeypatch.setattr(training, "set_gradients", lambda *of: made.append(of_pass(*of)) or made[-1])
    step, state = B.make_step(loss, optimizer, cuda_graph=True), B.init_state(params, optimizer)
    with pytest.warns(UserWarning, match="the step has no CUDA graph; set TORCH_LOGS=perf_hints to see why"):
        state, first = step(state, batch, 0.1)
    state, second = step(state, batch, 0.1)
    assert not {value.data_ptr() for value in first.values()} & {value.data_ptr() for value in made[0][0].values()}
    assert [more["options"] for more in kept] == [{"triton.cudagraphs": True}]
    plain, other = B.make_step(loss, optimizer, compiled=False), B.init_state(params, optimizer)
    for got in (first, second):
        other, want = plain(other, batch, 0.1)
        assert got.keys() == want.keys()
        torch.testing.assert_close(got, want)
    for wrong in ({"accumulate": 2}, {"compiled": False}):
        with pytest.raises(ConfigError, match="cuda_graph=True: expected compiled=True and accumulate=1"):
            B.make_step(loss, optimizer, cuda_graph=True, **wrong)
