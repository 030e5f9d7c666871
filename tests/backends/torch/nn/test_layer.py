"""The modules in the company that torch modules keep: optimisers, autocast, DDP, compile, checkpoints, copies."""

import copy
import importlib
import subprocess
import sys

import numpy as np
import pytest

from moespec.models import vit
from moespec.spec import ConfigError, ContractError, DtypeError, ShapeError

torch = pytest.importorskip("torch")
B = importlib.import_module("moespec.backends.torch")
modules = importlib.import_module("moespec.backends.torch.nn")

from torch import nn  # noqa: E402

WIDTH, TOKENS = 8, 12


def moe(router="softmax_token_choice", **options):
    options_of = getattr(B.ROUTERS.get(router), "Options", None)
    weights = {"z_weight": 0.1} if hasattr(options_of, "z_weight") else {}
    return modules.MoE(WIDTH, 16, 4, tokens=TOKENS, router=router, **{**weights, **options})


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def x():
    return torch.randn(4, TOKENS, WIDTH)


@pytest.mark.parametrize("router", list(B.ROUTERS))
def test_takes_the_place_of_an_mlp(router, x):
    """It trains beside torch's own modules: every parameter has a gradient and the loss goes down."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), moe(router, group_images=2), nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    target, losses = torch.randn(4, TOKENS, WIDTH), []
    for _ in range(15):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), target) + modules.auxiliary_loss(model)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert losses[-1] < 0.9 * losses[0]
    without = (
        "soft_moe hash dselect_k base hierarchical_top_k mixture_of_depths relu batch_expert_choice variable_budget"
    )
    assert ("z" in model[1].losses) == (router not in without.split())
    assert model[1].metrics["load"].shape == (4,)


KINDS = {
    "shared gate": {"shared_experts": 2, "shared_gate": True},
    "latent": {"latent_width": 6, "latent_norm": True, "shared_experts": 1},
    "zero computation": {"constant_experts": 1, "copy_experts": 1, "zero_experts": 1},
    "input": {"weights_on": "input"},
}


@pytest.mark.parametrize("router", ["softmax_token_choice", "softmax_expert_choice", "soft_moe"])
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_experts_train_and_are_saved(kind, router, x):
    layer = moe(router, seed=1, **KINDS[kind])
    layer(x).square().sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())
    other = moe(router, seed=2, **KINDS[kind])
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other.eval()(x), layer.eval()(x))
    torch.testing.assert_close(copy.deepcopy(layer)(x), layer(x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shared_gate": True}, "shared_gate=True: expected shared_experts=1 or more"),
        ({"latent_norm": True}, "latent_norm=True: expected latent_width=1 or more"),
        ({"latent_width": 2.5}, "latent_width: expected an integer, got 2.5"),
        ({"copy_experts": 2, "zero_experts": 2}, "copy_experts=2: expected at least one MLP among experts=4"),
        ({"weights_on": "both"}, "weights_on: expected one of 'output', 'input', got 'both'"),
        ({"shared_gate": 1, "shared_experts": 1}, "shared_gate=1: expected True or False"),
    ],
)
def test_kinds_of_experts_that_contradict_each_other(options, message):
    with pytest.raises(ConfigError, match=message):
        moe(**options)


@pytest.mark.parametrize("train", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("router", list(B.ROUTERS))
def test_padding_is_not_there(router, train):
    """Each image comes out as if it came alone and without its padding, and so do its losses and gradients."""
    options = {"noise_multiplier": 0.0} if "noise_multiplier" in B.ROUTERS[router].Options.__dataclass_fields__ else {}
    module = moe(router, **options).double().train(train)
    module = (
        module.eval() if router in ("gshard", "noisy_top_k", "hierarchical_top_k", "switch") else module
    )  # no noise
    sizes = (8, 4, 0, 8)
    mask = torch.stack([torch.randperm(TOKENS) < size for size in sizes])
    x = torch.randn(len(sizes), TOKENS, WIDTH, dtype=torch.float64, requires_grad=True)

    def gradients(y, loss):
        return torch.autograd.grad((y * y.detach().cos()).sum() + loss, [x, *module.parameters()], allow_unused=True)

    y = module(x, mask=mask)
    losses, metrics = module.losses, module.metrics
    slopes = gradients(y, modules.auxiliary_loss(module))
    assert (y[~mask] == 0).all()
    alone, each, reported = torch.zeros_like(y), [], []
    for image, size in enumerate(sizes):
        if size:
            row = mask[image]
            one = module(x[image, row][None])
            alone = alone.index_put((torch.tensor(image), row.nonzero()[:, 0]), one[0])
            each.append(module.losses)
            reported.append(module.metrics)
    mean = {name: torch.stack([values[name] for values in each]).mean() for name in each[0]}
    torch.testing.assert_close(y, alone)
    torch.testing.assert_close(losses, mean)
    assert set(metrics) == set(reported[0])
    for name, value in metrics.items():
        torch.testing.assert_close(value, torch.stack([values[name] for values in reported]).mean(dim=0))
    torch.testing.assert_close(slopes, gradients(alone, sum(mean.values(), torch.zeros(()))))


def test_a_mask_that_is_none(x):
    module, all_there = moe(), torch.ones(x.shape[:-1], dtype=torch.bool)
    torch.testing.assert_close(module.eval()(x, mask=all_there), module(x))
    for mask, error, message in (
        (all_there[:, 1:], ShapeError, rf"mask: expected the shape \(4, {TOKENS}\) of the tokens"),
        (all_there.float(), DtypeError, "mask: expected booleans, got float32"),
        (~all_there, ContractError, f"mask: expected at least one token, but all {4 * TOKENS} are masked"),
    ):
        with pytest.raises(error, match=message):
            module(x, mask=mask)
    with pytest.raises(ConfigError, match="experts=4 does not divide the 11 tokens"):
        moe("base")(x, mask=all_there & (torch.arange(TOKENS) < TOKENS - 1))


@pytest.mark.full
def test_a_compiled_layer_takes_other_masks(x):
    """The graph breaks at the sizes, which change."""
    torch._dynamo.reset()
    module = moe(choices=2).eval()
    compiled = torch.compile(module, backend="eager")
    for sizes in ((6, 8, 6, 3), (2, 2, 12, 5)):
        mask = torch.arange(TOKENS) < torch.tensor(sizes)[:, None]
        torch.testing.assert_close(compiled(x, mask=mask), module(x, mask=mask))


def test_ids_of_a_hash_layer(x):
    """The module hashes the ids that it is given; its tables are a buffer, which no optimiser sees."""
    module = moe("hash", ids=3)
    assert {name for name, _ in module.named_buffers()} == {"router.tables"}
    assert all("tables" not in name for name, _ in module.named_parameters())
    ids = torch.arange(x.shape[0] * TOKENS).reshape(x.shape[0], TOKENS) % 3
    y = module(x, ids)
    experts = module.experts.params()
    for image, token in ((0, 0), (1, 4), (3, 2)):
        expert = int(module.router.tables[0, ids[image, token]])
        one = {name: value[expert : expert + 1] for name, value in experts.items()}
        torch.testing.assert_close(y[image, token], B.expert_mlp(x[image, token][None, None, None], one)[0, 0, 0])


def test_places_are_those_of_the_image():
    """Images that are alike are routed alike, in one group or two."""
    module = moe("hash", group_images=2)
    y = module(torch.randn(1, TOKENS, WIDTH).expand(2, -1, -1))
    torch.testing.assert_close(y[0], y[1])
    assert module.router.tables.shape == (1, TOKENS)
    with pytest.raises(ShapeError, match=f"x: has {TOKENS + 1} tokens, but the hash tables have only {TOKENS} ids"):
        module(torch.randn(2, TOKENS + 1, WIDTH))


def test_equals_the_functions(x):
    """The module is the router and the layer, on groups of images."""
    module = moe(choices=2, group_images=2).eval()
    params = {"router": module.router.params(), "experts": module.experts.params()}
    tokens = x.reshape(2, 2 * TOKENS, WIDTH)
    output = B.ROUTERS["softmax_token_choice"].route(params["router"], tokens, module.options)
    y = B.moe_layer(tokens, output.routing, lambda inputs: B.expert_mlp(inputs, params["experts"]))
    assert torch.equal(module(x), y.reshape(x.shape))
    assert torch.equal(modules.auxiliary_loss(module), torch.stack(list(output.losses.values())).sum())
    assert module.options.tokens == 2 * TOKENS
    assert set(output.losses) == {"importance", "z"}


def test_initial_values():
    """The same seed gives the same experts; shared experts are equal, independent ones are not."""
    assert torch.equal(moe(seed=3).experts.fc1.weight, moe(seed=3).experts.fc1.weight)
    assert not torch.equal(moe(seed=3).experts.fc1.weight, moe(seed=4).experts.fc1.weight)
    independent, shared = moe().experts.fc1.weight, moe(expert_init="shared").experts.fc1.weight
    assert not torch.equal(independent[0], independent[1])
    assert torch.equal(shared[0], shared[3])
    assert independent.abs().max() <= (6 / (WIDTH + 16)) ** 0.5


def test_noise_only_in_training(x):
    """It is drawn from torch's generator; evaluation is deterministic, and has no load loss."""
    module = moe()
    torch.manual_seed(1)
    first = module(x)
    assert "load" in module.losses
    second = module(x)
    torch.manual_seed(1)
    assert torch.equal(first, module(x))
    assert not torch.equal(first, second)
    module.eval()
    assert torch.equal(module(x), module(x))
    assert "load" not in module.losses


@pytest.mark.parametrize("rate", [{"dropout": 0.5}, {"stochastic_depth": 0.5}])
def test_a_model_drops_in_training_by_the_generator_of_torch(rate):
    """Other numbers each time and for each image, the same from the same state; evaluation draws none."""
    config = vit.named("vit_tiny", depth=2, width=16, hidden=16, **rate)
    params = vit.init(config)
    params["head"]["kernel"] = np.random.default_rng(0).normal(size=(16, 10)).astype(np.float32)
    model = modules.Model(vit.forward, config, params)
    images = torch.randn(1, 8, 8, 1).expand(8, 8, 8, 1)
    torch.manual_seed(1)
    first = model(images)
    second = model(images)
    assert not torch.equal(first, second)
    assert (first - first[:1]).abs().max() > 0.01
    torch.manual_seed(1)
    assert torch.equal(first, model(images))
    assert torch.equal(second, model(images))
    before = torch.get_rng_state()
    still = model.eval()(images)
    assert torch.equal(torch.get_rng_state(), before)
    torch.testing.assert_close(still, still[:1].expand(8, 10))


def test_other_numbers_of_tokens_and_invalid_arguments(x):
    for router in ("softmax_token_choice", "soft_moe"):
        assert moe(router)(torch.randn(2, 20, WIDTH)).shape == (2, 20, WIDTH)
    with pytest.raises(ShapeError, match=r"^x: 3 images"):
        moe(group_images=2)(x[:3])
    for wrong in ({"device": "gpu"}, {"dtype": torch.int32}, {"dtype": 32}):
        with pytest.raises(ConfigError, match=r"^device=.*, dtype="):
            modules.MoE(8, 16, 2, tokens=12, **wrong)


def test_names_of_a_state_dict():
    of_experts = [f"experts.{n}" for n in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")]
    assert list(moe().state_dict()) == ["router.kernel", *of_experts]


def test_model_holds_parameters_by_path():
    """The state dict has the paths of the parameters; noise in training alone; losses and metrics, which no copy has."""
    sizes = {"width": 16, "hidden": 16, "depth": 2, "moe": "last_half", "experts": 4, "router": "softmax_token_choice"}
    config, images = vit.named("vit_tiny", **sizes, router_options={"z_weight": 0.5}), torch.randn(4, 8, 8, 1)
    params = vit.init(config)
    model = modules.Model(vit.forward, config, params, noise=vit.moe_noise)
    assert {"blocks.1.moe.router.kernel", "blocks.1.moe.experts.w1", "head.kernel"} <= set(model.state_dict())
    assert model.params()["blocks"]["1"]["moe"]["experts"]["w1"] is model.get_parameter("blocks.1.moe.experts.w1")
    assert list(model.params()) == list(params)
    other = modules.Model(vit.forward, config, vit.init(config, 1))
    other.load_state_dict(model.state_dict(), strict=True)
    with torch.no_grad():
        for each in (model, other):
            each.get_parameter("head.kernel").normal_(generator=torch.Generator().manual_seed(0))
    assert torch.equal(other.eval()(images), model.eval()(images))
    assert not torch.equal(model.train()(images), model(images))
    (model(images).square().sum() + modules.auxiliary_loss(model)).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert {"importance", "load", "z"} <= {name.rpartition("/")[2] for name in model.losses}
    assert model.metrics
    twin = copy.deepcopy(model)
    assert not twin.losses
    assert torch.equal(twin.eval()(images), model.eval()(images))
    assert model.double()(images.double()).dtype == torch.float64
    assert not params["head"]["kernel"].any()


def test_weights_of_experts_may_be_computed(x):
    module = moe().eval()
    y = module(x)
    nn.utils.parametrizations.weight_norm(module.experts.fc1)
    torch.testing.assert_close(module(x), y)


def test_no_auxiliary_loss_is_zero():
    assert modules.auxiliary_loss(nn.Linear(2, 2)).item() == 0


def test_neither_the_other_framework_is_imported_nor_what_is_slow():
    code = "import sys, moespec.backends.torch.nn; assert not {'jax', 'sympy', 'matplotlib', 'scipy'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True)
