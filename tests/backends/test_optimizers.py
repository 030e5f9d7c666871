"""Each optimiser by name: its state moves between backends; and which parameters decay, and how fast: the rule is the authors'
one. Its steps, also of what is frozen, are cases of the conformance suite."""

import importlib
from functools import cache
from typing import Any

import numpy as np
import pytest
from my_routers import nearest, tempered

from moespec.backends.optimizer import OptimizerConfig, initial_params
from moespec.backends.optimizer_options import OPTIMIZERS, Optimizer
from moespec.spec import ROUTERS
from moespec.spec.errors import ConfigError

OWN = Optimizer(lambda xp, p, g, kept, n: (g / n + kept["nu"], {"mu": xp.sqrt(g * g), "nu": kept["mu"]}), ("mu", "nu"))
COMPILED = ["jax", "torch"]
AROUND: dict[str, Any] = {"weight_decay": 0.25, "decay": "head/kernel=0.5", "clip": 1.0, "ema": 0.75}
OPTIONS: dict[str, dict[str, Any]] = {
    "adamw": {"name": "adamw", "b1": 0.75, "epsilon": 1e-3},
    "adam": {"name": "adam", "b2": 0.75},
    "sgd": {"name": "sgd"},
    "sgd_nesterov": {"name": "sgd", "momentum": 0.5, "nesterov": True},
    "sgd_plain": {"name": "sgd", "momentum": 0.0},
    "lamb": {"name": "lamb"},
    **{f"{name}_bfloat16": {"name": name, "momentum_dtype": "bfloat16"} for name in ("adamw", "adam", "lamb")},
    "adafactor": {"name": "adafactor", "factored_from": 3},
    "adafactor_float32": {"name": "adafactor", "factored_from": 3, "momentum_dtype": "float32", "decay_cap": 0.3},
    "own": {"name": f"{__name__}:OWN"},
    "adafactor_no_momentum": {"name": "adafactor", "factored_from": 4, "momentum": 0.0},
}
SHAPES = {
    "head": {"kernel": (4, 3), "bias": (3,)},
    "experts": {"w1": (2, 3, 5), "b1": (2, 5)},
    "router": {"scale": ()},
    "token": {"tables": (2, 2)},
}


def draw(seed: int, shapes: Any = SHAPES) -> Any:
    random = np.random.default_rng(seed)
    if isinstance(shapes, dict):
        return {name: draw(seed + index, part) for index, (name, part) in enumerate(shapes.items())}
    return random.normal(size=shapes).astype(np.float32)


def loss(params: Any, batch: Any) -> Any:
    """Whose gradient is the batch: the mean over its examples."""
    total = 0.0
    for name, part in params.items():
        for key, value in part.items():
            total = total + (value * batch[name][key][0]).sum() if name != "token" else total
    return total, {}


@cache
def step_of(B: Any, optimizer: OptimizerConfig) -> Any:
    """The step, which is compiled once for all tests of a file."""
    return B.make_step(loss, optimizer, **({"compiled": False} if B.name == "torch" else {}))


def steps(B: Any, optimizer: OptimizerConfig, count: int, *, state: Any = None, first: int = 0) -> Any:
    """The state after some steps, each with its own gradient and rate."""
    step = step_of(B, optimizer)
    state = B.init_state(B.from_numpy(draw(7)), optimizer) if state is None else state
    for index in range(first, first + count):
        batch = B.from_numpy(nested(lambda leaf: leaf[None], draw(100 * (index + 1))))
        state, _ = step(state, batch, 0.1 / (1 + index))
    return state


def nested(function: Any, tree: Any) -> Any:
    return {k: nested(function, v) for k, v in tree.items()} if isinstance(tree, dict) else function(tree)


def same(got: Any, want: Any, tolerance: float, where: str = "") -> None:
    if isinstance(want, dict):
        assert set(got) == set(want), where
        for name, part in want.items():
            same(got[name], part, tolerance, f"{where}/{name}")
    else:
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance, err_msg=where)


def test_every_optimiser_is_tried() -> None:
    assert {options["name"] for options in OPTIONS.values()} == {*OPTIMIZERS, f"{__name__}:OWN"}


def test_one_of_the_users_own_is_that_of_numpy() -> None:
    modules = [importlib.import_module(f"moespec.backends.{name}") for name in ("torch", "numpy")]
    same(*(B.export_state(steps(B, OptimizerConfig(OWN, **AROUND), 3)) for B in modules), 1e-5)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_state_moves_between_backends(options: dict[str, Any]) -> None:
    """Two steps in one, three in the other; and to the same bits in the same one, in float32."""
    jax, torch = (
        pytest.importorskip(name) and importlib.import_module(f"moespec.backends.{name}") for name in COMPILED
    )
    optimizer = OptimizerConfig(**AROUND, **options, rates="bias=0")
    for here, there in ((jax, torch), (torch, jax), (jax, jax), (torch, torch)):
        exported = here.export_state(steps(here, optimizer, 2))
        assert nested(np.shape, {k: v for k, v in exported.items() if k != "step"}) == optimizer.state_shapes(SHAPES)
        moved = there.import_state(exported, optimizer)
        same(there.export_state(moved), exported, 0)
        resumed = there.export_state(steps(there, optimizer, 3, state=moved, first=2))
        unbroken = here.export_state(steps(here, optimizer, 5))
        # A momentum in bfloat16 may round to the other side.
        rounded = 2.0**-8 if "mu" in exported and optimizer.momentum_dtype == "bfloat16" else 2e-6
        same(resumed, unbroken, 0 if here is there else rounded)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "adamv"}, r"^name='adamv': expected one of adamw, adam, sgd, lamb, adafactor"),
        (
            {"name": "sgd", "b1": 0.5},
            r"^b1=0\.5: the optimizer 'sgd' does not have this option; it has momentum, nesterov",
        ),
        ({"momentum": 0.5}, r"^momentum=0\.5: the optimizer 'adamw' does not have"),
        ({"name": "lamb", "decay_rate": 0.5}, r"^decay_rate=0\.5: the optimizer 'lamb' does not have"),
        ({"name": "sgd", "momentum": 1.0}, r"^momentum=1\.0: expected a number in \[0, 1\)"),
        ({"name": "sgd", "momentum": 0.0, "nesterov": True}, r"^nesterov=True: needs momentum, got momentum="),
        ({"name": "adafactor", "factored_from": 0}, r"^factored_from=0: expected an integer >= 1"),
        ({"name": "adafactor", "decay_cap": 1.0}, r"^decay_cap=1\.0: expected"),
        ({"name": "adafactor", "decay_rate": 0.0}, r"^decay_rate=0\.0: expected a number > 0"),
        ({"name": "adafactor", "momentum_dtype": "float16"}, r"^momentum_dtype='float16': expected"),
        ({"momentum_dtype": "float16"}, r"^momentum_dtype='float16': expected"),
        ({"name": "sgd", "momentum_dtype": "bfloat16"}, r"^momentum_dtype='bfloat16': the optimizer 'sgd' does not"),
        ({"rates": "head=-1"}, r"^rates='head=-1': expected pattern=rate"),
        ({"ema": 1.0}, r"^ema=1\.0: expected"),
    ],
)
def test_an_option_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OptimizerConfig(**options)


def test_patterns_must_be_found() -> None:
    paths = [("head", "kernel"), ("head", "bias")]
    with pytest.raises(ConfigError, match="'haed'"):
        OptimizerConfig(decay="head/kernel=3.0, haed=1.0").check_patterns(paths)
    with pytest.raises(ConfigError, match=r"^rates='haed=0': 'haed' matches no parameter of the model"):
        OptimizerConfig(rates="haed=0").check_patterns(paths)
    with pytest.raises(ConfigError, match=r"^rates='head=0': all parameters are frozen; leave at least one to train"):
        OptimizerConfig(rates="head=0").check_patterns(paths)
    OptimizerConfig(rates="kernel=0, head=2", decay="head/kernel=3.0").check_patterns(paths)


DECAYING = (
    *("head/kernel", "blocks/0/attention/out/kernel", "blocks/1/moe/experts/w1", "blocks/1/mlp/w2", "router/kernel"),
    *("rescale1/token_kernel", "rescale2/channel_kernel", "router/noise_kernel", "router/scale"),
)
OTHERS = (
    *("", "head/bias", "norm/scale", "blocks/0/norm1/scale", "positions", "token", "router/slots", "experts/b1"),
    *("head/probe", "router/tables", "tokens/codebook"),
)


@pytest.mark.parametrize("path", [*DECAYING, *OTHERS])
def test_what_decays(path: str) -> None:
    """Kernels and the scale of Soft MoE decay, whose slots do not, as in the configurations of the authors."""
    assert OptimizerConfig(weight_decay=0.25).decay_of(path.split("/") if path else ()) == 0.25 * (path in DECAYING)


@pytest.mark.parametrize("name", [*ROUTERS, *(f"{own.__name__}:ROUTER" for own in (nearest, tempered))])
def test_a_router_says_what_decays_and_what_is_frozen(name: str) -> None:
    """By names of its parameters, which no other router means otherwise."""
    router, optimizer = ROUTERS[name], OptimizerConfig(weight_decay=0.25)
    params = initial_params(
        router,
        np.random.default_rng(0),
        router.options(tokens=8, width=4, experts=4, **({"affinity": "softmax"} if name == "hash" else {})),
    )
    assert params.keys() >= set(router.decays)
    for param in params:
        path = ("blocks", "1", "moe", "router", param)
        assert optimizer.decay_of(path) == 0.25 * (param in router.decays), path
        assert optimizer.rate_of(path) == (param not in router.frozen), path


def test_the_first_pattern_that_is_found_counts() -> None:
    optimizer = OptimizerConfig(weight_decay=0.5, decay="head/kernel=3.0, router/.*=0, kernel=0.25, slots=1")
    expected = {"head/kernel": 3.0, "router/kernel": 0.0, "router/slots": 0.0, "a/kernel": 0.25, "mlp/w1": 0.5}
    assert {path: optimizer.decay_of(path.split("/")) for path in expected} == expected
    # A constant never decays, whatever the pattern.
    assert OptimizerConfig(decay=".*=1").decay_of(("router", "tables")) == 0.0


@pytest.mark.parametrize(
    "decay",
    ["kernel", "kernel=", "=0.1", "(=0.1", "kernel=fast", "kernel=-1", "kernel=nan", "kernel=1e39", "a=1,", ","],
)
def test_decay_that_cannot_be_read_is_an_error(decay: str) -> None:
    with pytest.raises(ConfigError, match=r"^decay="):
        OptimizerConfig(decay=decay)
