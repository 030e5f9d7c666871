"""What the tests of both frameworks on a mesh run in processes of their own: the same training on one device and on meshes of four.

All is in float64, so that what differs is an error, and not the order of a sum.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from moespec.backends import mesh
from moespec.backends.mesh import MeshSizes, Shards
from moespec.backends.optimizer import OptimizerConfig
from moespec.backends.optimizer_options import Optimizer
from moespec.backends.pytrees import leaves
from moespec.models import layers, vit
from moespec.models.pytrees import flatten, nested
from moespec.models.random_keys import of_step
from moespec.spec import SpecError
from moespec.training.configuration.config import Config, LitConfig, MocoConfig, ModelConfig
from moespec.training.evaluation.metrics import make_forward
from moespec.training.objectives.classification import make_loss
from moespec.training.objectives.table import extra_params, objective_of

BATCH, STEPS, RATE = 16, 3, 0.01
SMALL = 300
"""In place of `mesh.SMALL`: most parameters of a model of this size are split over `fsdp`, and of experts some, some not."""
MESHES = (MeshSizes(data=4), MeshSizes(data=2, expert=2), MeshSizes(fsdp=2, expert=2))


class Case(NamedTuple):
    """The training of a model with a router."""

    optimizer: OptimizerConfig
    accumulate: int = 1
    recompute: bool = False
    exchanges: int = 4
    """All-to-alls of a layer for each backward pass: two forward, two backward."""
    model: Mapping[str, Any] = {}
    loads: int = 0
    """Loads that are summed over all devices in a step, of a balance loss of all of them."""


ADAMW = Case(OptimizerConfig(clip=0.5, weight_decay=0.1))
# What goes into the experts needs no gradient.
EXPERTS = Case(OptimizerConfig(clip=0.5, rates="experts/=1, .*=0"), exchanges=3)
MOMENTUM = Optimizer(lambda xp, p, g, kept, n: (kept["mu"] + g, {"mu": 0.9 * kept["mu"] + g}), ("mu",))
LAMB = Case(OptimizerConfig("lamb", weight_decay=0.1, ema=0.9), accumulate=2)
# What is computed anew in the backward pass is exchanged anew. The epsilon is far above the rounding errors of a gradient
# that is 0, that of the bias of the keys.
ADAFACTOR = Case(OptimizerConfig("adafactor", factored_from=4, epsilon=1e-12), recompute=True, exchanges=6)

GLOBAL = {"capacity_factor": float("inf"), "balance_weight": 1.0, "balance_scope": "global"}

LATENT: dict[str, Any] = {"latent_width": 24, "latent_norm": True, "shared_gate": True, "weights_on": "input"}
WITHOUT_MLP: dict[str, Any] = {"experts": 7, "constant_experts": 1, "copy_experts": 1, "zero_experts": 1}

CASES = {
    "softmax_token_choice": ADAMW._replace(model={"group_images": 2}),
    # Gated experts without biases, of a width of their own, and one for all tokens.
    "sinkhorn_token_choice": LAMB._replace(
        model={"expert_hidden": 24, "expert_activation": "swiglu", "expert_bias": False, "shared_experts": 2, **LATENT}
    ),
    "softmax_expert_choice": ADAFACTOR,
    "sinkhorn_expert_choice": LAMB,
    # Of what all devices have nothing is trained.
    "sparsity_constrained_expert_choice": EXPERTS,
    "soft_moe": Case(OptimizerConfig(MOMENTUM, weight_decay=0.1, ema=0.9), recompute=True, exchanges=6),
    # It keeps a state.
    "sigmoid_token_choice": LAMB._replace(
        model={"router_options": {"choices": 2, "bias_update_rate": 0.25}, **WITHOUT_MLP}
    ),
    # Each expert has room for all tokens; noise and dropout are drawn for the images; the balance loss is of all devices.
    "noisy_top_k": ADAMW._replace(model={"dropout": 0.1, "router_options": GLOBAL}, loads=1),
}
CONTINUED = ("noisy_top_k", "sinkhorn_token_choice", "soft_moe")
"""Routers of which the training goes on on another mesh, one for each optimiser."""
FORWARD = dict(zip(CASES, MESHES * 3, strict=False))
"""The mesh on which the model of a router is evaluated."""
SOME = {
    **{"sigmoid_token_choice": MESHES[:1], "sinkhorn_token_choice": MESHES[1:], "soft_moe": MESHES[1:]},
    **{"sparsity_constrained_expert_choice": MESHES[1:2], "noisy_top_k": MESHES[2:]},
}
"""Meshes that show each optimiser, split and exchange once: all of all routers take minutes."""
WHICH = {"all": dict.fromkeys(CASES, MESHES), "some": SOME}
PAIRS = [
    pytest.param(sizes, router, marks=[] if sizes in SOME.get(router, ()) else pytest.mark.full, id=f"{sizes}-{router}")
    for sizes in MESHES
    for router in CASES
]
MOVED = [pytest.param(name, marks=[] if len(SOME[name]) > 1 else pytest.mark.full) for name in CONTINUED]


def devices(count: int) -> dict[str, str]:
    """The environment of a process of JAX whose CPU is several devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    return {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}


def which(request: Any) -> str:
    """What is computed for the tests that are run: of `WHICH`, "all" if some of them are marked `full`."""
    return "all" if any(item.get_closest_marker("full") for item in request.session.items) else "some"


ONE_BLOCK: dict[str, Any] = {"moe": "last_1", "depth": 1, "experts": 4, "channels": 1, "image_size": 8}


def model(router: str, **more: Any) -> vit.VitConfig:
    """One block of attention and experts."""
    return vit.named("vit_tiny", router=router, **{**ONE_BLOCK, "classes": 10, **CASES[router].model, **more})


def slot_entries(router: str, images: int) -> int:
    """The numbers in the slots of some images."""
    config = model(router)
    (layer,) = vit.moe_layers(config, images)
    settings: Any = layer.settings
    mlps = settings.experts - layer.experts.without_mlp
    return layer.groups * mlps * settings.capacity(train=True) * (config.latent_width or config.width)


def reductions(router: str, sizes: MeshSizes) -> int:
    """The sets of axes that gradients and metrics are summed over."""
    wide = [axis for axis in mesh.AXES if sizes.size([axis]) > 1]
    sets = {tuple(wide)}
    for path, split in mesh.splits(vit.parameter_shapes(model(router)), sizes).items():
        if CASES[router].optimizer.rate_of(path):
            sets.add(tuple(axis for axis in wide if axis not in split))
    return len(sets - {()})


def params(config: vit.VitConfig) -> dict[str, Any]:
    """Parameters of which none is 0."""
    return moved(vit.init(config))


def moved(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with numbers added to each."""
    rng = np.random.default_rng(0)
    return nested({name: value + 0.1 * rng.standard_normal(value.shape) for name, value in flatten(tree).items()})


def batches() -> Iterator[dict[str, Any]]:
    """The batch of each step."""
    rng = np.random.default_rng(1)
    for step in range(STEPS):
        targets, images = np.eye(10)[rng.integers(0, 10, BATCH)], rng.standard_normal((BATCH, 8, 8, 1))
        yield {"images": images, "targets": targets, "random": of_step(BATCH, seed=0, step=step)}


def rows_of(B: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """What this process has of a batch, as arrays of the backend, or of the backend on a mesh."""
    rows = B.rows(BATCH)
    return B.put(nested({name: value[rows.start : rows.stop] for name, value in flatten(batch).items()}))


def training(B: Any, router: str, *, before: Any = None, **options: Any) -> dict[str, Any]:
    """The step, the metrics of all steps, the parameters after them, and the state, as this process exports it.

    before(step, state, batch): what is called before the first step. options: those of `make_step`.
    """
    case, config = CASES[router], model(router)
    state, metrics = B.init_state(params(config), case.optimizer), []
    loss = make_loss(B, config, "softmax", recompute=case.recompute)
    state_update = layers.state_update(B, vit.moe_layers(config, BATCH))
    step = B.make_step(loss, case.optimizer, accumulate=case.accumulate, **state_update, **options)
    for number, batch in enumerate(batches()):
        rows = rows_of(B, batch)
        if before and not number:
            before(step, state, rows)
        state, figures = step(state, rows, RATE)
        metrics.append(B.to_numpy(figures))
    return {"step": step, "metrics": metrics, "params": B.state_params(state), "state": B.export_state(state)}


OBJECTIVES = {"moco": MESHES[2], "lit": MESHES[1]}
"""Objectives whose loss is over the images of all devices, each on one mesh."""


def of_objective(B: Any, name: str, **options: Any) -> dict[str, Any]:
    """The metrics and the state of training by an objective, as of `training`: of two views, or of images and texts."""
    router = "noisy_top_k" if name == "moco" else "softmax_expert_choice"
    one = vit.named("vit_tiny", **ONE_BLOCK, classes=0, router=router)
    tower = ModelConfig("text_tiny", width=64, depth=1, length=6, projection=64, moe="last_1", experts=4)
    # The epsilon is far above the rounding errors of gradients that are 0, those of biases before a normalisation.
    optimizer = OptimizerConfig(weight_decay=0.1, clip=0.5, epsilon=1e-3, ema=0.9, ema_steps=2 * STEPS)
    config = Config(objective=name, optimizer=optimizer, text=tower.but(router="softmax_token_choice"))  # type: ignore[arg-type]
    config = replace(config, moco=MocoConfig(hidden=6, output=4), lit=LitConfig(locked=False, loss="sigmoid"))
    objective = objective_of(config)
    state, metrics = B.init_state({**params(one), **moved(extra_params(config, one))}, optimizer), []
    step = B.make_step(objective.make_loss(B, config, one), optimizer, averaged=objective.averaged, **options)
    rng = np.random.default_rng(2)
    for number in range(STEPS):
        images = [rng.standard_normal((BATCH, 8, 8, 1)) for _ in range(2)]
        random = of_step(2 * BATCH, seed=0, step=number).reshape(2, BATCH, 4)
        if name == "moco":
            views = {view: {"images": images[i], "random": random[i]} for i, view in enumerate(("first", "second"))}
        else:
            ids = rng.integers(0, 257, (BATCH, 6), np.int32)
            views = {"image": {"images": images[0]}, "text": {"ids": ids}}
        state, figures = step(state, rows_of(B, views), RATE)
        metrics.append(B.to_numpy(figures))
    return {"metrics": metrics, "state": B.export_state(state)}


def check_objective(processes: list[Any], want: dict[str, Any], name: str) -> None:
    """Of a mesh: metrics of each step of every process, and the state, equal those of one device."""
    for process in processes:
        assert_same(process[name]["metrics"], want["metrics"])
    assert_same(together([process[name]["state"] for process in processes]), want["state"])


def check_narrow(metrics: Any, one: Any) -> None:
    """Training with slots that travel in bfloat16, beside that of one device in float64: rounded, and no more."""
    for narrow, exact in zip(metrics, one, strict=True):
        difference = abs(float(narrow["loss"]) - float(exact["loss"]))
        assert 1e-7 < difference < 0.01


def continued(B: Any, step: Any, router: str, exported: dict[str, Any]) -> dict[str, Any]:
    """An exported state after its import as it is exported again, and after one more step; on a mesh, what the import read."""
    on_mesh = B.sizes.devices > 1
    readers = (
        nested({path: Reader(leaf) for path, leaf in flatten(exported).items() if path != "step"}) if on_mesh else {}
    )
    state = B.import_state({**exported, **readers}, CASES[router].optimizer)
    again = B.export_state(state)
    state, _ = step(state, rows_of(B, next(batches())), RATE)
    read = {path: reader.entries for path, reader in leaves(readers["params"])} if on_mesh else {}
    return {"again": again, "after": B.export_state(state), "read": read}


def messages(calls: Mapping[str, Callable[[], Any]]) -> dict[str, str]:
    """What is said by the errors that calls raise, by the name of the call."""
    said = {}
    for name, call in calls.items():
        try:
            call()
        except SpecError as error:
            said[name] = f"{type(error).__name__}: {error}"
    return said


class Reader:
    """An array of which slices are read; `entries` is the size of the largest."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.dtype, self.entries = array, array.shape, array.dtype, 0

    def __getitem__(self, index: Any) -> np.ndarray:
        part = self.array[index]
        self.entries = max(self.entries, part.size)
        return part


def forward(B: Any, router: str, params: Any) -> Any:
    """Logits and statistics of the last batch."""
    *_, batch = batches()
    return B.to_numpy(B.compile(make_forward(B, model(router)))(params, rows_of(B, batch)["images"]))


def together(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The state of which each process exported its pieces. Each entry is in one piece."""
    (step,) = {part["step"] for part in parts}
    return {"step": step} | {slot: _together([part[slot] for part in parts]) for slot in parts[0] if slot != "step"}


def _together(parts: list[Any]) -> Any:
    if isinstance(parts[0], dict):
        return {name: _together([part[name] for part in parts]) for name in parts[0]}
    return _joined(parts)


def _joined(all_pieces: list[Shards]) -> np.ndarray:
    first = all_pieces[0]
    array, times = np.zeros(first.shape, first.dtype), np.zeros(first.shape, int)
    for pieces in all_pieces:
        assert (pieces.shape, pieces.dtype) == (first.shape, first.dtype)
        for start, piece in pieces.shards:
            assert piece.dtype == first.dtype
            index = tuple(slice(begin, begin + size) for begin, size in zip(start, piece.shape, strict=True))
            array[index], times[index] = piece, times[index] + 1
    assert np.all(times == 1)
    return array


def check_training(processes: list[Any], want: dict[str, Any], sizes: MeshSizes, router: str) -> None:
    """Of a mesh: metrics of each step, logits and statistics of every process, and the state, equal those of one device."""
    for process in processes:
        assert_same(process[sizes, router]["metrics"], want["metrics"])
        if "forward" in process[sizes, router]:
            assert_same(process[sizes, router]["forward"], want["forward"])
    assert_same(together([process[sizes, router]["state"] for process in processes]), want["state"])


def check_continued(processes: list[Any], want: dict[str, Any], router: str) -> None:
    """A state of one mesh, on another: the same bits, and then the step that one device makes."""
    before, after = MESHES[-2:]
    exported = together([process[before, router]["state"] for process in processes])
    again = together([process["continued", router]["again"] for process in processes])
    assert_same(again, exported, exact=True)
    assert_same(together([process["continued", router]["after"] for process in processes]), want["after"])
    for path, leaf in leaves(exported["params"]):
        parts = after.size([axis for axis in mesh.split_axes(path, leaf.shape, after) if axis])
        for process in processes:
            assert process["continued", router]["read"][path] == leaf.size // parts, path


def assert_same(got: Any, want: Any, where: str = "", *, exact: bool = False) -> None:
    """Nested dicts and lists of arrays with the same names, shapes and numbers."""
    if isinstance(want, dict):
        assert set(got) == set(want), where
        for name in want:
            assert_same(got[name], want[name], f"{where} {name}", exact=exact)
    elif isinstance(want, list | tuple):
        assert len(got) == len(want), where
        for index, (one, other) in enumerate(zip(got, want, strict=True)):
            assert_same(one, other, f"{where} {index}", exact=exact)
    else:
        assert np.shape(got) == np.shape(want), where
        tolerance = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-8, "atol": 1e-10}
        np.testing.assert_allclose(got, want, err_msg=where, **tolerance)
