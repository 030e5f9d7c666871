"""`moe_mlp` where most slots are empty: the same numbers as by slots, by the work of the tokens."""

import importlib
from functools import partial
from typing import Any

import numpy as np
import pytest
from programs import equations, tensor_sizes
from router_inputs import perceptrons

from moespec.spec import ConfigError

B = {name: pytest.importorskip(f"moespec.backends.{name}") for name in ("jax", "torch")}
jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
grouped, megablox = (importlib.import_module(f"moespec.backends.jax.{name}") for name in ("grouped", "megablox"))

WIDTH, HIDDEN = 6, 5
ROWS = (0, 1, grouped.STEP, grouped.STEP + 1, 0, grouped.BLOCK, grouped.BLOCK + 1, 2 * grouped.BLOCK + grouped.STEP - 1)
"""Rows of each expert: none, less than a block, whole blocks, and a row more."""


def problem(requests: Any, *, seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tokens and scores (G, T, ...) whose best experts are those of `requests` (G, T), and the perceptrons."""
    random = np.random.default_rng(seed)
    groups, tokens = requests.shape
    experts = len(ROWS)
    scores = random.uniform(0.1, 0.5, (groups, tokens, experts))
    np.put_along_axis(scores, requests[..., None], random.uniform(0.6, 0.9, (groups, tokens, 1)), axis=2)
    params = perceptrons(lambda *shape: random.normal(size=shape), experts, WIDTH, HIDDEN)
    return {"tokens": random.normal(size=(groups, tokens, WIDTH)), "scores": scores}, params


def requests() -> Any:
    """Three groups whose requests for the experts add up to `ROWS`."""
    chosen = np.repeat(np.arange(len(ROWS)), ROWS)
    chosen = np.random.default_rng(1).permutation(chosen)
    return chosen[: len(chosen) // 3 * 3].reshape(3, -1)


def layer(b: Any, whole: bool, inputs: Any, params: Any, **options: Any) -> Any:
    """The layer of perceptrons, or the layer by slots with the same perceptrons."""
    routing = b.token_choice(inputs["scores"], **options)
    if whole:
        return b.moe_mlp(inputs["tokens"], routing, params)
    return b.moe_layer(inputs["tokens"], routing, partial(b.expert_mlp, params=params))


def values(name: str, whole: bool, case: Any, dtype: str, **options: Any) -> Any:
    """The output of the layer and the gradients of its square, a list of arrays of NumPy."""
    b = B[name]
    with jax.enable_x64(dtype == "float64"):
        arrays = b.from_numpy(case, dtype)

        def loss(arrays: Any, _: Any) -> Any:
            y = layer(b, whole, *arrays, **options)
            return b.sum(b.cast(y, "float32" if dtype == "bfloat16" else dtype) ** 2), {"y": y}

        named = {"inputs": arrays[0], "params": arrays[1]}
        gradient_of = b.value_and_grad(lambda p, x: loss((p["inputs"], p["params"]), x))
        (_, aux), gradient = (jax.jit(gradient_of) if name == "jax" else gradient_of)(named, None)
        return jax.tree.leaves(b.to_numpy((aux["y"], gradient)))


@pytest.mark.parametrize("name", B)
@pytest.mark.parametrize(
    "options",
    [{"choices": 1, "capacity": 400}, {"choices": 2, "capacity": 400}, {"choices": 1, "capacity": 120}],
    ids=["room", "two choices", "dropped"],
)
def test_the_layer_is_that_by_slots(name: str, options: Any) -> None:
    """Of three groups, with experts of no row, of one, and of the sizes around those of the blocks."""
    case = problem(requests())
    for a, b in zip(*(values(name, whole, case, "float64", **options) for whole in (True, False)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", B)
def test_in_bfloat16(name: str) -> None:
    case = problem(requests()[:, :60])
    each = (values(name, whole, case, "bfloat16", choices=1, capacity=60) for whole in (True, False))
    for a, b in zip(*each, strict=True):
        np.testing.assert_allclose(a, b, atol=0.02 * np.abs(b).max())


@pytest.mark.parametrize(("width", "hidden", "dtype"), [(1160, 96, "float32"), (128, 384, "bfloat16")])
def test_the_kernels_of_a_tpu_are_the_loops(width: int, hidden: int, dtype: str) -> None:
    """Interpreted: experts without rows, undefined rows without an expert, all widths. Float32 sums differ by sqrt(terms) roundoffs."""
    random = np.random.default_rng(2)
    ends = jax.numpy.cumsum(jax.numpy.array([0, 100, 0, 157, 300], "int32"))
    shapes = (3 * megablox.TILE, width), (3 * megablox.TILE, hidden), (len(ends), width, hidden), (len(ends), hidden)
    rows, gradient, kernel, bias = (B["jax"].from_numpy(random.normal(size=shape), dtype) for shape in shapes)
    made = grouped._products(rows, kernel, ends, bias), grouped._products(gradient, kernel, ends, turned=True)
    want = *(each[: ends[-1]] for each in made), grouped._sums_of_products(rows, gradient, ends)
    unknown = jax.numpy.arange(len(rows))[:, None] >= ends[-1]
    rows, gradient = (jax.numpy.where(unknown, jax.numpy.nan, each) for each in (rows, gradient))
    own = partial(megablox.products, interpret=True)
    made = own(rows, kernel, ends, bias), own(gradient, kernel, ends, turned=True)
    got = *(each[: ends[-1]] for each in made), megablox.sums_of_products(rows, gradient, ends, interpret=True)
    for a, b in zip(*(jax.tree.leaves(B["jax"].to_numpy(each)) for each in (got, want)), strict=True):
        np.testing.assert_allclose(a, b, atol=(width**0.5 * 2**-24 if dtype == "float32" else 2**-8) * np.abs(b).max())


def test_torch_autocast() -> None:
    """The products are made in the dtype of autocast, as those by slots are, and the output has that of the tokens."""
    case = problem(requests()[:, :60])
    b = B["torch"]
    inputs, params = b.from_numpy(case, "float32")
    with torch.autocast("cpu", torch.bfloat16):
        got, want = (layer(b, whole, inputs, params, choices=1, capacity=60) for whole in (True, False))
    exact = layer(b, False, inputs, params, choices=1, capacity=60)
    assert got.dtype == want.dtype == torch.float32
    assert 0 < (got - exact).abs().max() <= 1.5 * (want - exact).abs().max()


def test_torch_makes_nothing_of_the_size_of_the_slots() -> None:
    """With many experts, each with room for all, no tensor has an entry for each slot and unit of the hidden layer."""
    case = problem(requests())
    inputs, params = B["torch"].from_numpy(case, "float32")
    largest = {}
    for whole in (True, False):
        with tensor_sizes() as recorded:
            layer(B["torch"], whole, inputs, params, choices=1, capacity=400)
        largest[whole] = max(recorded.sizes.values())
    rows = inputs["tokens"].shape[0] * inputs["tokens"].shape[1]
    assert largest[False] >= len(ROWS) * rows * WIDTH
    assert largest[True] < 2 * rows * max(WIDTH, len(ROWS))


def test_jax_makes_nothing_of_the_size_of_the_slots() -> None:
    case = problem(requests())
    inputs, params = B["jax"].from_numpy(case, "float32")

    def loss(whole: bool, params: Any, inputs: Any) -> Any:
        return (layer(B["jax"], whole, inputs, params, choices=1, capacity=400) ** 2).sum()

    def largest(whole: bool) -> int:
        program = jax.make_jaxpr(jax.grad(partial(loss, whole)))(params, inputs)
        made = [value.aval for equation in equations(program.jaxpr) for value in equation.outvars]
        return max(each.size for each in made if each.dtype == np.float32)

    whole, slots = largest(True), largest(False)
    rows = inputs["tokens"].shape[0] * inputs["tokens"].shape[1]
    assert slots >= len(ROWS) * rows * WIDTH
    assert whole < 2 * (rows + grouped.BLOCK) * max(WIDTH, len(ROWS))


@pytest.mark.parametrize("name", B)
def test_a_parameter_that_is_missing(name: str) -> None:
    inputs, params = B[name].from_numpy(problem(requests()), "float32")
    routing = B[name].token_choice(inputs["scores"], choices=1, capacity=400)
    with pytest.raises(ConfigError, match="params: w2 is missing"):
        B[name].moe_mlp(inputs["tokens"], routing, {"w1": params["w1"]})
