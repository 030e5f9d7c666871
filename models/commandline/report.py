"""The report of a run: loss and accuracy, load per expert, and the routing of a few validation images.

One page, report.html, with its pictures inside, and the same pictures as PNG files next to it.
"""

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from moespec.backends.contract import Backend
from moespec.models.commandline.cost import described, milliseconds, of_run
from moespec.models.commandline.curves import constant, curves, in_order, loads
from moespec.models.commandline.inspection import draw, make_route, prediction
from moespec.models.data.dataset import Dataset
from moespec.models.evaluation.evaluate import evaluation_size
from moespec.models.evaluation.metrics import line
from moespec.models.families import family
from moespec.models.files import write_atomically
from moespec.models.templates import render
from moespec.models.training.config import Config
from moespec.models.training.configfile import dump
from moespec.models.training.objectives.table import objective_of
from moespec.models.training.progress import called, told
from moespec.models.training.resolve import model_config
from moespec.models.training.runlog import read_log

__all__ = ["png", "write_report"]

IMAGES = 4
MEASURED = ("accuracy", "top5", "loss", "spread", "image_to_text", "text_to_image")
"""What a report says of the last evaluation."""


def write_report(
    B: Backend, config: Config, dataset: Dataset, run: Path, params: dict[str, Any], *, devices: int = 1
) -> Path:
    """Writes report.html and its pictures into the folder `run`, and returns its path. `params` are NumPy arrays.

    devices: on which the run was trained, for its device-days: the seconds of all sittings, evaluations included, times these.
    """
    model = model_config(config.model)
    training, evaluations = (read_log(run, kind, some=True) for kind in ("train", "evaluation"))
    measure, mixes = objective_of(config).measure, bool(config.data.mixup or config.data.cutmix)
    figures = {"curves": curves(training, evaluations, measure=measure, mixes=mixes)}
    same: dict[str, str] = {}
    if family(model).moe_layers(model, config.training.batch):
        same, load = constant(training), loads(training)
        if load is not None:
            figures["load"] = load
        arrays, route = B.from_numpy(params), make_route(B, model)
        for index in np.linspace(0, len(dataset.validation) - 1, IMAGES).round().astype(int):
            pixels = dataset.validation.read(np.array([index]))
            logits, routings = route(arrays, dataset.normalize(pixels)[0])
            split = dataset.validation
            label = dataset.classes[split.labels[index]] if split.captions is None else split.captions[index]
            title = f"validation image {index}: is {label}{prediction(logits, dataset.classes, config.training.loss)}"
            figures[f"routing_{index}"] = draw(pixels[0], dataset.maximum, title, routings)
    pictures = {name: png(figure) for name, figure in figures.items()}
    for name, content in pictures.items():
        write_atomically(run / f"{name}.png", content)
    most = config.training.evaluation_batch
    batch = evaluation_size(B.sizes, model, most, min(most, len(dataset.validation)))
    measured = milliseconds(B, model, B.from_numpy(params), batch=batch)
    cost = f"{described(model, batch=batch)}, {measured:.3f} ms in batches of {batch} (forward pass)"
    steps, last = config.training, evaluations[-1]
    spent = of_run(config, model, last["step"] * steps.batch, batch=steps.batch // steps.accumulate)
    spent += f"; {last['seconds'] * devices / 86_400:.4g} device-days, devices: {devices}"
    facts = _facts(config, dataset, last, cost, spent)
    facts |= {f"block {block}, each training step": words for block, words in same.items()}
    for block in sorted(last.get("moe", {}), key=in_order):
        facts[f"block {block}, validation"] = line(last["moe"][block])
    for name in config.evaluation:
        if lines := read_log(run, f"evaluation/{name}"):
            facts[f"evaluation {name}"] = told({k: v for k, v in lines[-1].items() if k not in ("kind", "step")})
    captions = {
        "curves": f"Loss and {called(last)}",
        "load": "Load of each expert (filled slots per token), tokens that no expert handles, and entropy of the experts' "
        "weights in a token (dotted: all weights equal), as far as they vary",
    }
    shown = [
        {"name": name, "caption": captions.get(name, "Routing"), "content": base64.b64encode(content).decode()}
        for name, content in pictures.items()
    ]
    page = render("run.html.jinja", title="Report of a run", facts=facts, pictures=shown, configuration=dump(config))
    write_atomically(run / "report.html", page.encode())
    return run / "report.html"


def png(figure: Figure) -> bytes:
    """A figure as PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()


def _facts(config: Config, dataset: Dataset, evaluation: dict[str, Any], cost: str, spent: str) -> dict[str, str]:
    router = [f"router {config.model.router}"] if hasattr(config.model, "router") else []
    return {
        "model": ", ".join([config.model.name, *router]),
        "cost": cost,
        "data": f"{dataset.name}, {len(dataset.train)} training and {len(dataset.validation)} validation images",
        "training": f"{evaluation['step']} steps of {config.training.batch} images in {evaluation['seconds']:.0f} s",
        "cost of the run": spent,
        "backend": config.backend,
        "validation": told({name: evaluation[name] for name in MEASURED if name in evaluation}),
    }
