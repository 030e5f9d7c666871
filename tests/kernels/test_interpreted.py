"""The Triton kernels, run by Triton's interpreter on the CPU, compute what the plain operations compute: `nox -s cuda`."""

import importlib
import os
from typing import Any

import numpy as np
import pytest

from moespec import spec

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="triton is not installed: `nox -s cuda` runs this file")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("only with TRITON_INTERPRET=1, as `nox -s cuda` sets it", allow_module_level=True)

B = importlib.import_module("moespec.backends.torch")
gathers, kernels, operators, products, rng = (
    importlib.import_module(f"moespec.backends.torch.{name}")
    for name in ("gathers", "kernels", "operators", "products", "rng")
)

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
WIDTHS = (1, 3, 16, 256, 300)
"""A number, less than a block, a block of 16 bytes, a whole block, and a part of a second one."""
PLAIN, KERNEL = (lambda x: False), (lambda x: True)
LOOSE = {torch.float32: 1e-5, torch.float64: 1e-13, torch.bfloat16: 2**-7, torch.float16: 2**-10}
"""The interpreter cuts off what bfloat16 has no room for, where a GPU rounds (`test_code.py`)."""


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has the operators run their kernels on the CPU, or not any more."""

    def switch(on: bool) -> None:
        for module in (operators, products):
            monkeypatch.setattr(module, "on_gpu", KERNEL if on else PLAIN)

    switch(True)
    return switch


def draw(*shape: int, dtype: Any = torch.float32) -> Any:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def maps(count: int, choices: int, slots: int, *, kept: float = 0.7) -> tuple[Any, Any]:
    """`index` (slots,) of the tokens in the slots, and its inverse (count, choices); some choices are dropped."""
    random = np.random.default_rng(count + choices + slots)
    index = np.full(slots, count, np.int32)
    inverse = np.full((count, choices), slots, np.int32)
    free = list(random.permutation(slots))
    for token in range(count):
        for choice in range(choices):
            if free and random.uniform() < kept:
                inverse[token, choice] = free.pop()
                index[inverse[token, choice]] = token
    return torch.from_numpy(index), torch.from_numpy(inverse)


def close(got: Any, want: Any) -> None:
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    torch.testing.assert_close(got, want, rtol=LOOSE[got.dtype], atol=LOOSE[got.dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_gather(dtype: Any, width: int, kernel: Any) -> None:
    """Bit for bit, with more rows than a tile has; the index 70 is no row, and a row may be read by several."""
    x = draw(70, width, dtype=dtype)
    index = torch.from_numpy(np.random.default_rng(0).integers(0, 71, 131).astype(np.int32))
    index[-1], index[-2] = 70, 69
    want = torch.cat([x, x.new_zeros(1, width)])[index]
    assert torch.equal(gathers.gather_rows(x, index), want)
    assert want.dtype == dtype
    assert torch.equal(kernels.add_rows(x.mT.contiguous().mT, index[:, None], dtype=dtype), want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "choices"), [(width, 2) for width in WIDTHS] + [(3, 1), (300, 1), (3, 5)])
@pytest.mark.parametrize("known", [True, False], ids=["inverse", "segments"])
def test_weighted_sums(dtype: Any, width: int, choices: int, known: bool, kernel: Any) -> None:
    """With the inverse of the index, or by sorting it; against float64. Float64 weights make float64 sums."""
    index, inverse = maps(67, choices, 90 * choices)
    x, weight = draw(len(index), width, dtype=dtype), draw(len(index))
    for w in (weight, weight.double()):
        want = torch.zeros(68, width, dtype=torch.float64).index_add_(0, index, x.double() * w[:, None].double())[:67]
        got = gathers.combine_rows(x, w, index, 67, inverse if known else None, torch.float64)
        assert torch.allclose(got, want, rtol=0, atol=1e-12 if torch.float64 in (dtype, w.dtype) else 1e-5)
    got = gathers.sum_rows(x, index, 67, inverse if known else None)
    close(got, torch.zeros(68, width, dtype=torch.float64).index_add_(0, index, x.double())[:67].to(dtype))


def test_sums_have_one_order(kernel: Any) -> None:
    """That of a loop over the rows, bit for bit, though they differ by six orders of magnitude."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(300, 7, generator=generator) * 10 ** (6 * torch.rand(300, 1, generator=generator))
    index = torch.randint(0, 41, (300,), generator=generator, dtype=torch.int32)
    want = torch.zeros(41, 7)
    for row, place in zip(x, index.tolist(), strict=True):
        want[place] += row
    assert torch.equal(gathers.sum_rows(x, index, 40), want[:40])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_gradients_of_the_weighted_sum(dtype: Any, width: int, kernel: Any) -> None:
    """Against float64. A slot without a token has the gradient 0, whatever is in it."""
    index, inverse = maps(67, 2, 180)
    gradient, x, weight = draw(67, width, dtype=dtype), draw(180, width, dtype=dtype), draw(180)
    x[index == 67] = float("nan")
    to_rows, to_weight = gathers.combine_gradients(gradient, x, weight, index, inverse)
    incoming = torch.cat([gradient, gradient.new_zeros(1, width)])[index].double()
    close(to_rows, (incoming * weight[:, None].double()).to(dtype))
    close(to_weight, (incoming * x.double().nan_to_num()).sum(dim=1).float())


def test_random_words(kernel: Any) -> None:
    """Of counters that broadcast, more than a program makes, and none."""
    first, second = torch.arange(-3, 4, dtype=torch.int32)[:, None], torch.arange(300, dtype=torch.int32) * 7777777
    for one, other in ((first, second), (first[:0], second)):
        kernel(True)
        got = rng.threefry(key := torch.tensor([2**31 - 1, -5], dtype=torch.int32), one, other)
        kernel(False)
        assert torch.equal(got, rng.threefry(key, one, other))


def test_empty(kernel: Any) -> None:
    """No rows, no sums, no columns, no choices, and nothing in any slot."""
    none = torch.zeros(0, dtype=torch.int32)
    assert gathers.gather_rows(draw(0, 3), torch.zeros(2, dtype=torch.int32)).tolist() == [[0] * 3] * 2
    assert gathers.gather_rows(draw(4, 3), none).shape == (0, 3)
    assert gathers.gather_rows(draw(4, 0), torch.zeros(2, dtype=torch.int32)).shape == (2, 0)
    assert gathers.sum_rows(draw(0, 3), none, 2).tolist() == [[0] * 3] * 2
    assert gathers.sum_rows(draw(4, 3), none[:0].expand(0), 0, torch.zeros(0, 2, dtype=torch.int32)).shape == (0, 3)
    assert gathers.sum_rows(draw(4, 3), torch.full((4,), 2, dtype=torch.int32), 2).eq(0).all()
    assert kernels.add_rows(draw(4, 3), torch.zeros(2, 0, dtype=torch.int32), dtype=torch.float32).eq(0).all()
    empty = gathers.combine_gradients(draw(2, 3), draw(0, 3), draw(0), none, None)
    assert [tuple(x.shape) for x in empty] == [(0, 3), (0,)]
    assert products.split_product(draw(0, 4, dtype=torch.bfloat16), draw(4, 3)).shape == (0, 3)


@pytest.mark.parametrize("count", [1, 128, 130])
@pytest.mark.parametrize(("width", "columns"), [(1, 1), (31, 7), (32, 16), (70, 196)])
def test_product(count: int, width: int, columns: int, kernel: Any) -> None:
    """As exact as a product in float32, which one of bfloat16 would not be."""
    tokens, matrix = draw(count, width, dtype=torch.bfloat16), draw(width, columns)
    exact = tokens.double() @ matrix.double()
    bound = 2**-22 * (tokens.double().abs() @ matrix.double().abs())
    assert ((products.split_product(tokens, matrix) - exact).abs() <= bound).all()
    assert not ((tokens @ matrix.bfloat16() - exact).abs() <= bound).all()


def test_gradients_of_the_product(kernel: Any) -> None:
    """That of the tokens is the exact one rounded to bfloat16, but for 2^-16 of what is added up."""
    tokens, matrix, weight = draw(130, 70, dtype=torch.bfloat16), draw(70, 24), draw(130, 24)
    to_tokens, to_matrix = products.split_gradients(weight, tokens, matrix)
    want = tokens.double().mT @ weight.double()
    assert torch.linalg.norm(to_matrix - want) < 1e-6 * torch.linalg.norm(want)
    want = weight.double() @ matrix.double().mT
    bound = 2**-8 * want.abs() + 2**-16 * (weight.double().abs() @ matrix.double().abs().mT)
    assert ((to_tokens - want).abs() <= bound).all()
    assert not ((weight.bfloat16() @ matrix.bfloat16().mT - want).abs() <= bound).all()


def test_the_product_differentiates_twice(kernel: Any) -> None:
    """As in float64, but for what bfloat16 rounds."""
    draws = draw(20, 9, dtype=torch.bfloat16), draw(9, 7), draw(20, 7), draw(20, 9, dtype=torch.bfloat16), draw(9, 7)

    def second(function: Any, tokens: Any, matrix: Any, gradient: Any, *of_gradients: Any) -> Any:
        inputs = [x.requires_grad_() for x in (tokens, matrix, gradient)]
        gradients = torch.autograd.grad(function(tokens, matrix), inputs[:2], gradient, create_graph=True)
        return torch.autograd.grad(gradients, inputs, of_gradients)

    got = second(products.split_product, *(x.clone() for x in draws))
    want = second(torch.matmul, *(x.double() for x in draws))
    for value, exact, given in zip(got, want, draws[:3], strict=True):
        assert value.dtype == given.dtype
        assert torch.linalg.norm(value - exact) < 2**-7 * torch.linalg.norm(exact)


def test_maps_of_slots(kernel: Any) -> None:
    """Scores to slots and back, and inverses, of experts that have empty slots, and of more numbers than a program has."""
    random = np.random.default_rng(0)
    chosen = np.stack([[random.permutation(190)[:60] for _ in range(5)] for _ in range(3)])
    token = torch.from_numpy(np.where(chosen < 150, chosen, 150).astype(np.int32))
    index = torch.from_numpy(random.permutation(2000)[:1500].clip(max=1400).astype(np.int32))
    several = (
        torch.from_numpy(np.stack([random.permutation(150)[:100].clip(max=90) for _ in range(6)]))
        .int()
        .reshape(2, 3, 100)
    )
    calls = [
        lambda: gathers.take_scores(draw(3, 150, 5), token),
        lambda: gathers.put_scores(draw(3, 5, 60, dtype=torch.float64), token, 150),
        lambda: gathers.invert_index(index, 1400),
        lambda: gathers.invert_index(several, 90),
    ]
    got = [call() for call in calls]
    kernel(False)
    assert all(torch.equal(one, call()) for one, call in zip(got, calls, strict=True))


@pytest.mark.parametrize(
    ("tokens", "experts", "large"), [(1, 1, False), (196, 8, False), (50, 32, False), (300, 40, True)]
)
def test_sinkhorn(tokens: int, experts: int, large: bool, kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One program a group, as the specification has it; the plain loop where a gradient goes through, or a group is too large."""
    calls = []
    run = kernels.sinkhorn
    monkeypatch.setattr(kernels, "sinkhorn", lambda *of: calls.append(of) or run(*of))
    logits = 10 * draw(2, tokens, experts)
    logits[0, :, 0] = logits[0, 0, :] = -50
    got = B.sinkhorn_affinity(logits, iterations=20)
    assert len(calls) == (not large)
    want = np.stack([spec.sinkhorn_affinity(group.double().numpy()) for group in logits])
    np.testing.assert_allclose(got.numpy(), want, atol=2e-5 * want.max())
    B.sinkhorn_affinity(logits.requires_grad_()).sum().backward()
    assert len(calls) == (not large)


def test_the_operators_are_registered_well(kernel: Any) -> None:
    """Schema, fake implementation and autograd agree with what runs."""
    index, inverse = maps(4, 2, 7)
    x, weight, y = draw(7, 3).requires_grad_(), draw(7).requires_grad_(), draw(4, 3).requires_grad_()
    tokens, matrix = draw(4, 3, dtype=torch.bfloat16).requires_grad_(), draw(3, 5).requires_grad_()
    for operator, arguments in [
        (gathers.gather_rows, (y, index, inverse)),
        (gathers.sum_rows, (x, index, 4)),
        (gathers.combine_rows, (x, weight, index, 4, inverse, torch.bfloat16)),
        (gathers.combine_rows, (x, weight, index, 4, None, torch.float32)),
        (gathers.combine_gradients, (y, x, weight, index, inverse)),
        (products.split_product, (tokens, matrix)),
        (products.split_gradients, (draw(4, 5).requires_grad_(), tokens, matrix)),
    ]:
        torch.library.opcheck(getattr(operator, "operator", operator), arguments)
