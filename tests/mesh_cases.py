"""What the tests of both frameworks on a mesh run in processes of their own: the same training on one device and on meshes of four.

All is in float64, so that what differs is an error, and not the order of a sum.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from moespec.backends import mesh
from moespec.backends.mesh import MeshSizes, Pieces, leaves
from moespec.backends.optimizer import OptimizerConfig
from moespec.models import vit
from moespec.models.draws import of_step
from moespec.models.training.objective import make_forward, make_loss

BATCH, STEPS, RATE = 16, 3, 0.01
MESHES = (MeshSizes(data=4), MeshSizes(data=2, expert=2), MeshSizes(fsdp=2, expert=2))


class Case(NamedTuple):
    """The training of a model with a router."""

    optimizer: OptimizerConfig
    accumulate: int = 1
    recompute: bool = False
    model: Mapping[str, Any] = {}


ADAMW = Case(OptimizerConfig(clip=0.5, weight_decay=0.1))
LAMB = Case(OptimizerConfig("lamb", weight_decay=0.1, ema=0.9), accumulate=2)
# The epsilon is far above the rounding errors of a gradient that is 0, that of the bias of the keys.
ADAFACTOR = Case(OptimizerConfig("adafactor", factored_from=4, epsilon=1e-12), recompute=True)

CASES = {
    "softmax_token_choice": ADAMW._replace(model={"group_images": 2}),
    "sinkhorn_token_choice": LAMB,
    "softmax_expert_choice": ADAFACTOR,
    "sinkhorn_expert_choice": LAMB,
    "sparsity_constrained_expert_choice": ADAMW,
    "soft_moe": ADAFACTOR,
    # Each expert has room for all tokens; noise and dropout are drawn for the images.
    "noisy_top_k": ADAMW._replace(model={"dropout": 0.1, "router_options": {"capacity_factor": float("inf")}}),
}


def split_all() -> None:
    """Has nearly every parameter split over `fsdp`, also of a model of this size."""
    mesh.SMALL = 64


def model(router: str, **more: Any) -> vit.VitConfig:
    """One block of attention and experts."""
    fixed = {"moe": "last_1", "depth": 1, "experts": 4, "channels": 1, "classes": 10, "image_size": 8}
    return vit.named("vit_tiny", router=router, **{**fixed, **CASES[router].model, **more})


def params(config: vit.VitConfig) -> dict[str, Any]:
    """Parameters of which none is 0."""
    rng = np.random.default_rng(0)

    def moved(tree: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: moved(value) if isinstance(value, dict) else value + 0.1 * rng.standard_normal(value.shape)
            for name, value in tree.items()
        }

    return moved(vit.init(config))


def batches() -> Iterator[dict[str, Any]]:
    """The batch of each step."""
    rng = np.random.default_rng(1)
    for step in range(STEPS):
        targets = np.eye(10)[rng.integers(0, 10, BATCH)]
        yield {
            "images": rng.standard_normal((BATCH, 8, 8, 1)),
            "targets": targets,
            "random": of_step(BATCH, seed=0, step=step),
        }


def rows_of(B: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """What this process has of a batch, as arrays of the backend, or of the backend on a mesh."""
    if not hasattr(B, "sizes"):
        return B.from_numpy(batch)
    rows = B.rows(BATCH)
    return B.put({name: value[rows.start : rows.stop] for name, value in batch.items()})


def training(B: Any, router: str, step_of: Any = None) -> dict[str, Any]:
    """The metrics of all steps and the state after them, exported, of one process.

    step_of(step, state, batch): a step as it is to be called.
    """
    case, config = CASES[router], model(router)
    state = B.init_state(params(config), case.optimizer)
    options = {} if B.name == "jax" else {"compiled": False}
    step = B.make_step(
        make_loss(B, config, "softmax", recompute=case.recompute), case.optimizer, accumulate=case.accumulate, **options
    )
    metrics = []
    for batch in batches():
        given = rows_of(B, batch)
        step = step_of(step, state, given) if step_of else step
        state, found = step(state, given, RATE)
        metrics.append(B.to_numpy(found))
    return {"metrics": metrics, "state": B.export_state(state), "params": B.state_params(state)}


def forward(B: Any, router: str, params: Any) -> Any:
    """Logits and statistics of the last batch."""
    *_, batch = batches()
    return B.to_numpy(B.compile(make_forward(B, model(router)))(params, rows_of(B, batch)["images"]))


def together(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The state of which each process exported its pieces. Each entry is in one piece."""
    whole: dict[str, Any] = {"step": parts[0]["step"]}
    for slot in parts[0]:
        if slot != "step":
            trees = [dict(leaves(part[slot])) for part in parts]
            whole[slot] = {path: _joined([tree[path] for tree in trees]) for path in trees[0]}
    return whole


def _joined(all_pieces: list[Pieces]) -> np.ndarray:
    first = all_pieces[0]
    array, times = np.zeros(first.shape, first.dtype), np.zeros(first.shape, int)
    for pieces in all_pieces:
        assert (pieces.shape, pieces.dtype) == (first.shape, first.dtype)
        for start, piece in pieces.pieces:
            assert piece.dtype == first.dtype
            index = tuple(slice(begin, begin + size) for begin, size in zip(start, piece.shape, strict=True))
            array[index], times[index] = piece, times[index] + 1
    assert np.all(times == 1)
    return array


def flat(state: dict[str, Any]) -> dict[str, Any]:
    """An exported state with its leaves by path."""
    return {slot: dict(leaves(tree)) if slot != "step" else tree for slot, tree in state.items()}


def tree(state: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `flat`."""
    made: dict[str, Any] = {"step": state["step"]}
    for slot, found in state.items():
        for path, leaf in found.items() if slot != "step" else ():
            branch = functools.reduce(lambda level, key: level.setdefault(key, {}), (slot, *path[:-1]), made)
            branch[path[-1]] = leaf
    return made


def assert_same(got: Any, want: Any, where: str = "") -> None:
    """Nested dicts and lists of arrays with the same names, shapes and numbers."""
    if isinstance(want, dict):
        assert set(got) == set(want), where
        for name in want:
            assert_same(got[name], want[name], f"{where} {name}")
    elif isinstance(want, list | tuple):
        assert len(got) == len(want), where
        for index, (one, other) in enumerate(zip(got, want, strict=True)):
            assert_same(one, other, f"{where} {index}")
    else:
        assert np.shape(got) == np.shape(want), where
        np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-10, err_msg=where)
