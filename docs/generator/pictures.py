"""Draws figures in one style: dispatch and combine of six tokens and three experts, and the routing of one image."""

import io
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from moespec.models import vit
from moespec.training.data.datasets import load
from moespec.training.inspection.inspect_run import draw, make_route
from moespec.training.loop.resolve import load_backend

STYLE: Any = {"svg.hashsalt": "moespec", "font.size": 9, "axes.titlesize": 10, "font.family": "sans-serif"}
IMAGE = 11
"""Index of the validation digit whose routing is drawn."""


def draw_routing(routing: Any, path: Path) -> None:
    """Draw dispatch and combine of one group side by side: tokens as rows, each expert's slots as columns."""
    tokens, experts, capacity = routing.dispatch.shape
    names = [f"{expert}.{slot}" for expert in range(experts) for slot in range(capacity)]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 3.1), layout="constrained")
        axes = figure.subplots(1, 2)
        for axis, (name, values) in zip(axes, routing._asdict().items(), strict=True):
            flat = np.asarray(values, float).reshape(tokens, -1)
            axis.imshow(flat, vmin=0, vmax=1, cmap="Blues", aspect="auto")
            for (token, slot), value in np.ndenumerate(flat):
                if value:
                    colour = "white" if value > 0.6 else "black"
                    axis.text(slot, token, f"{value:.2g}", ha="center", va="center", color=colour, fontsize=7)
            for expert in range(1, experts):
                axis.axvline(expert * capacity - 0.5, color="tab:orange", lw=1.5)
            axis.set(title=name, xlabel="expert.slot", ylabel="token", yticks=range(tokens))
            axis.set_xticks(range(len(names)), names, fontsize=7)
        _save(figure, path)


def draw_image(router: str, path: Path) -> None:
    """Draw the routing of a handwritten digit by the first MoE block of a small ViT with initial parameters."""
    model = vit.named("vit_tiny", moe="last_half", router=router, experts=4)
    dataset, B = load("digits", ""), load_backend("numpy")
    pixels = dataset.validation.read(np.array([IMAGE]))
    params = B.from_numpy(vit.init(model, seed=0))
    _, routings = make_route(B, model)(params, dataset.normalize(pixels)[0])
    with mpl.rc_context(STYLE):
        _save(draw(pixels[0], dataset.maximum, "", routings[:1]), path)


def _save(figure: Figure, path: Path) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    path.write_bytes(buffer.getvalue())
