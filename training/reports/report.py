"""The report of a run: a self-contained page, report.html.

The report shows mistakes (confused classes, accuracy per class, the most confident mistakes), loss and accuracy, load per expert, and the
routing of a few validation images. The report draws curves as SVG and grids as small images, since matplotlib would take seconds.
"""

import io
import platform
import shlex
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.backends.contract import Backend
from moespec.models.families import family
from moespec.models.files import write_atomically
from moespec.training.compilation import compile_if, pays
from moespec.training.configuration.config import Config
from moespec.training.configuration.configfile import dump
from moespec.training.data.dataset import Dataset, as_picture
from moespec.training.evaluation.classes import always, class_tables, confusion
from moespec.training.evaluation.evaluate import evaluation_size
from moespec.training.evaluation.metrics import line, make_forward
from moespec.training.inspection.inspect_run import (
    BlockRouting,
    colours_of,
    explanation,
    main_experts,
    make_route,
    panels,
    prediction,
    shaded,
    weights_of,
)
from moespec.training.loop.best import sentences
from moespec.training.loop.progress import called, told
from moespec.training.loop.resolve import model_config
from moespec.training.loop.rundirectory import RunDirectory
from moespec.training.loop.runlog import read_log
from moespec.training.objectives.table import objective_of
from moespec.training.reports.cost import described, milliseconds, of_run
from moespec.training.reports.curves import constant, curves, in_order, loads, plotted
from moespec.training.reports.predictions import Prediction, predicted, shown
from moespec.training.reports.templates import render
from moespec.version import version

__all__ = ["write_report"]

IMAGES, MISTAKES = 4, 48
"""Maximum number of validation images whose routing is shown, and maximum number of mistakes shown."""
MOST = 2000
"""Maximum number of predicted images."""
SIDE = 112
"""Longer side of a small picture, in pixels."""
MEASURED = (
    *("accuracy", "balanced_accuracy", "largest_class", "top5", "loss", "spread"),
    *("image_to_text", "text_to_image"),
)
"""A report shows these results of the last evaluation."""


def write_report(
    B: Backend, config: Config, dataset: Dataset, run: Path, params: dict[str, Any], *, devices: int | None = 1
) -> Path:
    """Writes report.html into the folder `run` and returns its path. `params` are NumPy arrays.

    devices: the number of devices of the run, or None if unknown. From this number, the report computes device-days, including evaluations.
    """
    model, arrays = model_config(config.model), B.from_numpy(params)
    training, evaluations = (read_log(run, kind, some=True) for kind in ("train", "evaluation"))
    measure, mixes = objective_of(config).measure, bool(config.data.mixup or config.data.cutmix)
    steps, last, held = config.training, evaluations[-1], len(dataset.validation)
    routed = bool(family(model).moe_layers(model, steps.batch))
    batch = evaluation_size(B.sizes, model, steps.evaluation_batch, held)
    forward = compile_if(B, pays(B, held // batch), make_forward(B, model))
    measured = milliseconds(B, model, arrays, batch=batch, forward=forward)
    cost = f"{described(model, batch=batch)}, {measured:.3f} ms in batches of {batch} (forward pass)"
    spent = of_run(config, model, last["step"] * steps.batch, batch=steps.batch // steps.accumulate)
    if devices is not None:
        spent += f"; {last['seconds'] * devices / 86_400:.4g} device-days (number of devices: {devices})"
    facts = _facts(config, dataset, last, cost, spent)
    rates = [record["images_per_second"] for record in training[1:] or training]  # the first value includes compilation
    facts["training speed"] = f"{statistics.median(rates):.4g} images per second"
    if found := sentences(config, RunDirectory(run).best(steps.keep_best), last["step"]):
        facts["best checkpoint"] = "; ".join(found)
    facts |= _machine(B.name)
    routers = {f"block {block}, each training step": words for block, words in constant(training).items()}
    for block in sorted(last.get("moe", {}), key=in_order):
        routers[f"block {block}, validation"] = line(last["moe"][block])
    for name in config.evaluation:
        if lines := read_log(run, f"evaluation/{name}"):
            facts[f"evaluation {name}"] = told({k: v for k, v in lines[-1].items() if k not in ("kind", "step")})
    tables, wrong = None, list[Prediction]()
    if "loss" in last:  # the model has a head
        rows, alone = chosen(held), lambda *inputs: (forward(*inputs)[0], ())
        how: Any = {"batch": batch, "kind": steps.loss, "rows": rows}
        read = [*predicted(B, alone, model, arrays, dataset, **how)]
        counts = confusion(dataset.validation.labels[rows], np.array([one.read for one in read]), len(dataset.classes))
        tables, wrong = class_tables(counts, dataset.classes), shown(read)
    page = render(
        "run.html.jinja",
        title=f"Report of {run.resolve().name}",
        results=last,
        always=always(dataset) if dataset.classes else None,
        called=called(last),
        facts=facts,
        routers=routers,
        tables=tables,
        mistakes=[one.drawn(dataset, run / "report.html") for one in wrong[:MISTAKES]],
        wrong=len(wrong),
        command=f"moespec evaluate {shlex.quote(str(run))} --csv mistakes.csv --html mistakes.html",
        curves=[plotted(c) for c in curves(training, evaluations, measure=measure, called=called(last), mixes=mixes)],
        loads=[plotted(chart) for chart in loads(training)],
        routing=_routing(B, config, dataset, arrays) if routed else [],
        configuration=dump(config),
    )
    write_atomically(run / "report.html", page.encode())
    return run / "report.html"


def _routing(B: Backend, config: Config, dataset: Dataset, params: Any) -> list[dict[str, Any]]:
    """Shows how each MoE layer routes a few evenly spaced validation images; `params` are arrays of `B`."""
    route, split, shown = make_route(B, model_config(config.model)), dataset.validation, []
    for index in np.unique(np.linspace(0, len(split) - 1, IMAGES).round().astype(int)):
        pixels = split.read(np.array([index]))
        logits, routings = route(params, dataset.normalize(pixels)[0])
        label = dataset.classes[split.labels[index]] if split.captions is None else split.captions[index]
        title = f"{split.name(index)}: {label}{prediction(logits, dataset.classes, config.training.loss)}"
        blocks, words = [_block(routing, routings) for routing in routings], explanation(routings, on_image=False)
        shown.append({"title": title, "picture": _png(pixels[0] / dataset.maximum), "blocks": blocks, "words": words})
    return shown


def _block(routing: BlockRouting, routings: Sequence[BlockRouting]) -> dict[str, Any]:
    """Returns the pictures of a layer: the main expert of each patch, and a panel for each expert or slot."""
    tiles = [("main expert", _png(main_experts(routing, colours_of(routings))))]
    tiles += [(panel.name, _png(shaded(routing, panel))) for panel in panels(routing)]
    items = "" if routing.items == "patches" else f": {routing.items}"
    return {"name": f"block {routing.block.split('_')[0]}{items}", "weights": weights_of(routing), "tiles": tiles}


def _png(image: NDArray[np.float64]) -> bytes:
    """Encodes an image of numbers from 0 to 1 as PNG, scaled down to at most `SIDE`."""
    picture, buffer = as_picture((255 * image).round().astype(np.uint8)), io.BytesIO()
    picture.thumbnail((SIDE, SIDE))
    picture.save(buffer, format="PNG")
    return buffer.getvalue()


def _facts(config: Config, dataset: Dataset, evaluation: dict[str, Any], cost: str, spent: str) -> dict[str, str]:
    blocks = getattr(config.model, "block", {}).values()
    names = dict.fromkeys([getattr(config.model, "router", None), *(own.get("router") for own in blocks)])
    router = [f"router {' and '.join(filter(None, names))}"] if hasattr(config.model, "router") else []
    balance = f"; sampling weight n^-{config.data.balance:g} in a class of n images" if config.data.balance else ""
    return {
        "model": ", ".join([config.model.name, *router]),
        "cost": cost,
        "data": f"{dataset.name}, {len(dataset.train)} training and {len(dataset.validation)} validation images{balance}",
        "training": f"{evaluation['step']} steps of {config.training.batch} images in {evaluation['seconds']:.0f} s",
        "cost of the run": spent,
        "backend": config.backend,
        "validation": told({name: evaluation[name] for name in MEASURED if name in evaluation}),
    }


def _machine(backend: str) -> dict[str, str]:
    """The versions, the device and the peak memory of this process: host memory and, if the framework counts it, accelerator memory."""
    device, taken = {"torch": _torch, "jax": _jax}.get(backend, lambda: ("", None))()
    named = {"moespec": version(), "Python": platform.python_version(), backend: version(backend)}
    words = ", ".join(f"{name} {of}" for name, of in named.items())
    peaks = {"host": _host(), "accelerator": taken}
    memory = ", ".join(f"{size / 2**30:.2f} GiB ({where})" for where, size in peaks.items() if size)
    return {
        "versions": f"{words}; on {device or f'a CPU ({platform.machine()})'}",
        **({"peak memory of the process": memory} if memory else {}),
    }


def _host() -> int | None:
    try:
        import resource
    except ImportError:  # absent on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _torch() -> tuple[str, int | None]:
    torch: Any = sys.modules["torch"]  # the backend has imported the framework
    if not torch.cuda.is_available():
        return "", None
    return torch.cuda.get_device_name(), torch.cuda.max_memory_allocated()


def _jax() -> tuple[str, int | None]:
    device: Any = sys.modules["jax"].local_devices()[0]
    name = "" if device.platform == "cpu" else device.device_kind
    return name, (device.memory_stats() or {}).get("peak_bytes_in_use")


def chosen(images: int) -> NDArray[np.int64]:
    """Returns the indices of all images or, if there are more than `MOST`, of evenly spaced images."""
    return np.linspace(0, images - 1, min(images, MOST)).round().astype(np.int64)
