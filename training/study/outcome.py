"""The outcome of a run in a study: which validation images are classified correctly, and the costs of the run."""

import base64
import os
import platform
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.models import counts
from moespec.models.errors import RunError
from moespec.models.families import family
from moespec.models.files import read_record, signed, write_atomically
from moespec.models.pytrees import flatten
from moespec.spec.own import is_own
from moespec.training.compilation import compile_if, pays
from moespec.training.configuration.config import Config
from moespec.training.evaluation.evaluate import evaluation_size, features
from moespec.training.evaluation.metrics import make_forward
from moespec.training.evaluation.zero_shot import RECALLS
from moespec.training.loop.resolve import model_config
from moespec.training.loop.runlog import read_log
from moespec.training.objectives.table import objective_of, training_flops
from moespec.training.reports.cost import timed
from moespec.training.runs import LoadedRun
from moespec.version import UNKNOWN, version

__all__ = ["TIMES", "make", "measures", "read", "right_of"]

PACKAGES = ("numpy", "scipy", "jax", "jaxlib", "torch")
TIMES = ("training_milliseconds", "milliseconds")
NUMBERS = "step accuracy loss seconds training_milliseconds milliseconds operations parameters dropped imbalance"
OTHERS = {"images": int, "right": str | None, "backend": str, "config": dict, "machine": dict}  # besides these numbers


def make(loaded: LoadedRun, run: Path, path: Path) -> None:
    """Measures a finished run and writes its outcome to `path` as JSON.

    "right": a bit for each validation image, 1 if its label has the largest logit; None without a head. "accuracy", "loss": from the
    last evaluation; without a head, the loss comes from the last training step. "training_milliseconds": the time per image, from the
    median speed in the log, without compilation and evaluation. "training_operations": operations of the complete run
    (`objectives.table.training_flops`). "milliseconds": the time of a forward pass per image. "quartiles": the first and third quartile
    of both times. "evaluations": the last results of the scheduled evaluations. "dropped", "imbalance": the fraction of validation tokens
    without an expert, and the busiest expert's load divided by the mean load, averaged over MoE layers.
    """
    config, B, training = loaded.config, loaded.backend, loaded.config.training
    part, seen = training.batch // training.accumulate, loaded.step * training.batch
    model, most = model_config(config.model), config.training.evaluation_batch
    batch = evaluation_size(B.sizes, model, most, min(most, len(loaded.dataset.validation)))
    params = B.from_numpy(loaded.params)
    held, right = loaded.dataset.validation, None
    if objective_of(config).head:
        forward = compile_if(B, pays(B, len(held) // batch), make_forward(B, model))
        logits = features(B, lambda *inputs: forward(*inputs)[0], params, loaded.dataset, held, batch=batch)
        right = np.asarray(logits.argmax(axis=1) == held.labels)
    versions = {name: number for name in PACKAGES if (number := version(name)) != UNKNOWN}
    processor = platform.processor() or platform.machine()
    machine = {"processor": processor, "cores": os.cpu_count(), "python": platform.python_version(), **versions}
    trained, (*_, last) = (read_log(run, kind, some=True) for kind in ("train", "evaluation"))
    rates = [line["images_per_second"] for line in trained[1:] or trained]  # the first interval includes compilation
    times = dict(zip(TIMES, ([1e3 / rate for rate in rates], timed(B, model, params, batch=batch)), strict=True))
    by_name = {name: read_log(run, f"evaluation/{name}", some=True)[-1] for name in config.evaluation}
    own = "|".join(re.escape(name) for name, of in config.evaluation.items() if is_own(of.kind))
    blocks = list(last.get("moe", {}).values())
    busiest = [max(load) * len(load) / sum(load) for load in (block["load"] for block in blocks)]
    kept = {
        "step": loaded.step,
        "accuracy": last["accuracy"] if right is None else float(right.mean()),
        "loss": last.get("loss", trained[-1]["loss"]),
        "images": len(held),
        "right": None if right is None else base64.b64encode(np.packbits(right).tobytes()).decode(),
        "seconds": last["seconds"],
        "training_milliseconds": 1e3 / statistics.median(rates),
        "milliseconds": statistics.median(times["milliseconds"]),
        "quartiles": {name: np.quantile(of, (0.25, 0.75)).tolist() for name, of in times.items()},
        "training_operations": training_flops(config, model, seen, batch=part),
        "operations": sum(counts.flops(model, batch).values()),
        "parameters": family(model).parameter_count(model),
        "evaluations": {
            path: float(value)
            for path, value in flatten(by_name).items()
            if re.fullmatch(rf"(.*/)?(accuracy|recall_\d+)|({own})/(?!kind$|step$).*", path)
        },
        "dropped": statistics.mean(block["dropped"] for block in blocks) if blocks else 0.0,
        "imbalance": statistics.mean(busiest) if blocks else 1.0,
        "backend": B.name,
        "config": asdict(config),
        "machine": machine,
        "version": version(),
    }
    write_atomically(path, signed(kept))


def read(path: Path, measure: str = "") -> dict[str, Any]:
    """Reads an outcome that `make` wrote. Raises RunError, naming the file, if the outcome is damaged or lacks the measure."""
    try:
        outcome = read_record(path, always=False)  # version 0.1 wrote no checksum
        for name, kind in {**dict.fromkeys(NUMBERS.split(), int | float), **OTHERS}.items():
            if not isinstance(outcome.get(name), kind):
                raise ValueError(f"damaged: {name}={outcome.get(name)!r} is invalid")
        pairs = outcome.get("quartiles", {}).values()
        if any([isinstance(one, int | float) for one in pair] != [True, True] for pair in pairs):
            raise ValueError(f"damaged: quartiles={outcome['quartiles']!r} is invalid")
        if measure and measure not in outcome.get("evaluations", {}):
            raise ValueError(f"the measure {measure} is missing")
        bits = outcome["right"]
        if bits is not None and len(base64.b64decode(bits, validate=True)) != -(-outcome["images"] // 8):
            raise ValueError(f"damaged: 'right' does not match {outcome['images']} images")
        if "training_operations" not in outcome:  # version 0.1 did not write this value
            training = outcome["config"]["training"]
            images = (4 if training.get("recompute") else 3) * outcome["step"] * training["batch"]
            outcome["training_operations"] = images * outcome["operations"]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise RunError(f"{path}: {error}. Delete this file; the same command rebuilds it from the run") from error
    return outcome


def right_of(outcome: dict[str, Any]) -> NDArray[np.bool_]:
    """Returns an array `(images,)` of booleans: whether each image is classified correctly."""
    packed = np.frombuffer(base64.b64decode(outcome["right"]), np.uint8)
    return np.unpackbits(packed, count=outcome["images"]).astype(bool)


def measures(config: Config, own: Mapping[str, Sequence[str]]) -> list[str]:
    """The names of results of scheduled evaluations, such as `few_shot/shots_10/accuracy`. own: result names of user-defined metrics."""
    ways = [f"{way}/recall_{k}" for way in ("image_to_text", "text_to_image") for k in RECALLS]
    found: list[str] = []
    for name, of in config.evaluation.items():
        few, near = [f"shots_{n}/accuracy" for n in of.shots], [f"neighbours_{n}/accuracy" for n in of.neighbours]
        each = own.get(name) or {"few_shot": few, "neighbours": near, "retrieval": ways}.get(of.kind, ["accuracy"])
        found += [f"{name}/{one}" for one in each]
    return found
