"""How the torch backend moves rows: what its operators compute, their gradients and order, and what they never make."""

import importlib
from functools import partial

import numpy as np
import pytest
import router_inputs
from programs import tensor_sizes

torch = pytest.importorskip("torch")
B = importlib.import_module("moespec.backends.torch")
requests = importlib.import_module("moespec.backends.torch.positions_in_expert")
rows = importlib.import_module("moespec.backends.torch.gathers")

from torch.autograd import gradcheck, gradgradcheck  # noqa: E402


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("experts", [1, 5, 32, 33, 70])
def test_both_ways_to_count_give_the_same_integers(experts, generator):
    asked = torch.randint(0, experts, (4, 200), generator=generator, dtype=torch.int32)
    counted = requests.count_positions(asked, experts)
    assert torch.equal(counted, requests.sort_positions(asked, experts))
    assert torch.equal(counted, requests.positions(asked, experts))
    assert counted.dtype == torch.int32
    expected = [[row[:i].eq(row[i]).sum() for i in range(200)] for row in asked[:1]]
    assert counted[0].tolist() == torch.tensor(expected)[0].tolist()


INDEX = torch.tensor([[3, 0, 4], [4, 1, 4]], dtype=torch.int32)  # token 2 is in no slot, 4 marks an empty slot


@pytest.mark.parametrize("small", [0, rows.SMALL])
def test_gradients_of_the_operators(small, generator, monkeypatch):
    monkeypatch.setattr(rows, "SMALL", small)  # both ways of a gather: masked, and with a row of zeros

    def draw(*shape):
        return torch.rand(shape, generator=generator, dtype=torch.float64, requires_grad=True)

    flat = torch.tensor([1, 4, 0, 1, 3], dtype=torch.int32)  # row 1 twice, row 2 never, 4 is no row
    cases = [
        (lambda x: rows.gather_rows(x, flat), draw(4, 3)),
        (lambda x: rows.sum_rows(x, flat, 4), draw(5, 3)),
        (lambda x: rows.take_scores(x, INDEX[None]), draw(1, 4, 2)),
        (lambda x: rows.put_scores(x, INDEX[None], 4), draw(1, 2, 3)),
    ]
    index = torch.tensor([2, 5, 0, 3], dtype=torch.int32)  # 5 rows, K = 1
    inverse = torch.tensor([[2], [4], [0], [3], [4]], dtype=torch.int32)
    cases.append((lambda x: rows.gather_rows(x, index, inverse), draw(5, 2)))
    twice = torch.tensor([1, 0, 1], dtype=torch.int32)  # 2 rows, K = 2
    places = torch.tensor([[1, 3], [0, 2]], dtype=torch.int32)
    cases.append((lambda x: rows.gather_rows(x, twice, places), draw(2, 3)))
    weight, some = draw(3), draw(3, 4)
    for table in (places, None):
        cases.append((lambda x, table=table: rows.combine_rows(x, weight, twice, 2, table, x.dtype), some))
        cases.append((lambda w, table=table: rows.combine_rows(some, w, twice, 2, table, w.dtype), weight))
    for function, x in cases:
        assert gradcheck(function, x)
        assert gradgradcheck(function, x)
    assert rows.gather_rows(draw(4, 3), flat)[1].eq(0).all()
    assert rows.invert_index(torch.tensor([[2, 3, 0]]), 3).tolist() == [[2, 3, 0]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_what_is_in_a_slot_of_no_token_counts_for_nothing(dtype, generator):
    index, inverse = torch.tensor([2, 0, 2], dtype=torch.int32), torch.tensor([[1], [3]], dtype=torch.int32)
    x = torch.tensor([[float("nan")] * 2, [1.0, 2.0], [float("inf")] * 2], dtype=dtype, requires_grad=True)
    weight = torch.tensor([0.0, 3.0, 0.0], requires_grad=True)
    for places in (inverse, None):
        out = rows.combine_rows(x, weight, index, 2, places, torch.float64)
        to_x, to_weight = torch.autograd.grad(out, (x, weight), torch.ones_like(out))
        assert out.tolist() == [[3, 6], [0, 0]]
        assert to_x.tolist() == [[0, 0], [3, 3], [0, 0]]
        assert to_weight.tolist() == [0, 3, 0]


def test_operators_are_registered_well(generator):
    """Schema, fake implementation and autograd agree with what runs."""
    x = torch.rand(4, 3, generator=generator, requires_grad=True)
    flat = torch.tensor([1, 4, 0, 1, 3], dtype=torch.int32)
    scores = torch.rand(1, 4, 2, generator=generator, requires_grad=True)
    values = torch.rand(1, 2, 3, generator=generator, requires_grad=True)
    index, inverse = torch.tensor([2, 4], dtype=torch.int32), torch.tensor([[2], [2], [0], [2]], dtype=torch.int32)
    utility = torch.rand(2, 3, 8, generator=generator)
    operators = torch.ops.moespec_backends_torch_operators
    for operator, arguments in [
        (rows.gather_rows, (x, flat)),
        (rows.sum_rows, (torch.rand(5, 2, generator=generator, requires_grad=True), flat, 4)),
        (rows.gather_rows, (x, index, inverse)),
        (rows.combine_rows, (x, torch.rand(4, requires_grad=True), flat[:4], 5, None, torch.bfloat16)),
        (rows.take_scores, (scores, INDEX[None])),
        (rows.put_scores, (values, INDEX[None], 4)),
        (rows.invert_index, (flat[:3], 4)),
        *(
            (operators.adam_plan.default, (utility, 1.0, 1.0, 3, 1.0, kind, 4, 0.01, 1e-3))
            for kind in ("semi_dual", "dual")
        ),
        (operators.dykstra.default, (utility, 2, 1, 4)),
    ]:
        torch.library.opcheck(getattr(operator, "operator", operator), arguments)


def test_sums_have_one_order(generator):
    """The sum of a token's rows is that of a loop over the slots, bit for bit, by either implementation."""
    x = torch.rand(300, 7, generator=generator) * 10 ** (6 * torch.rand(300, 1, generator=generator))
    index = torch.randint(0, 41, (300,), generator=generator, dtype=torch.int32)
    want = torch.zeros(41, 7)
    for row, place in zip(x, index.tolist(), strict=True):
        want[place] += row
    for implementation in (rows.sum_rows, rows._sum_serially, rows._sum_segments):
        assert torch.equal(implementation(x, index, 40), want[:40])


def route(name, x):
    config = router_inputs.options(name, width=8, experts=16, tokens=256, capacity_factor=1.0, dimensions=16)
    router = B.ROUTERS[name]
    record, state = router.noise(config), router.initial_state(config)
    noise = None if record is None else torch.zeros(2, *record.shape)
    params = {k: torch.from_numpy(v).requires_grad_() for k, v in router.init(np.random.default_rng(0), config).items()}
    state = {key: torch.from_numpy(value) for key, value in state.items()}
    choices = config.requests[1] if name == "hierarchical_top_k" else getattr(config, "choices", 1)
    return router.route(params, x, config, state=state, noise=noise, train=True), choices


@pytest.mark.parametrize("name", [name for name in B.ROUTERS if name not in ("soft_moe", "dselect_k", "hash")])
def test_nothing_of_size_tokens_experts_capacity(name, generator):
    """Forward and backward, with losses and metrics, also inside the operators."""
    x = torch.randn(2, 256, 8, generator=generator, requires_grad=True)
    mlp = router_inputs.perceptrons(partial(torch.randn, generator=generator, requires_grad=True), 16, 8, 8)
    with tensor_sizes() as recorded:
        output, choices = route(name, x)
        y = B.moe_layer(x, output.routing, lambda inputs: B.expert_mlp(inputs, mlp))
        (y.square().sum() + sum(output.losses.values())).backward()
    capacity = output.routing.token.shape[2]
    largest = max(recorded.sizes.values())
    # The one-hot rows of the cumulative sum, (G, K * T, E), are the largest; a dense routing has C as many.
    assert largest <= 2 * choices * 256 * 16 + 16, recorded.sizes
    assert largest < 2 * 256 * 16 * capacity / 8
    with tensor_sizes() as recorded:
        output.routing.dense()
    assert max(recorded.sizes.values()) == 2 * 256 * 16 * capacity


def test_where_triton_does_not_run_plain_operations_do(generator, monkeypatch):
    """A GPU without it, or without a C compiler: here the CPU, which says that it is a GPU."""
    operators, products = (
        importlib.import_module(f"moespec.backends.torch.{name}") for name in ("operators", "products")
    )
    x = torch.randn(2, 12, 8, generator=generator).bfloat16().requires_grad_()
    kernel, slots = torch.randn(8, 4, generator=generator), torch.randn(8, 4, 3, generator=generator)

    def compute():
        logits = B.router_logits(x, kernel)
        scores = B.softmax_affinity(logits)
        routings = B.token_choice(scores, choices=2, capacity=4), B.expert_choice(scores, capacity=4)
        layers = [B.moe_layer(x, routing, lambda inputs: 2 * inputs) for routing in routings]
        values = [logits, *B.soft_routing(x, slots), *layers]
        return values, torch.autograd.grad(sum(value.square().sum() for value in values), x)[0]

    want, gradient = compute()
    for module in (operators, products):
        monkeypatch.setattr(module, "on_gpu", lambda x: True)
    operators._kernels_run.cache_clear()
    with pytest.warns(UserWarning, match="Triton kernels cannot run on cpu"):
        got, other = compute()
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    torch.testing.assert_close(
        other, gradient, rtol=2**-5, atol=2**-4
    )  # its parts are rounded to bfloat16 before they are added
