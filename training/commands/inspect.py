"""The command `moespec inspect`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from moespec.models.checks import check_output
from moespec.models.errors import DataError
from moespec.models.files import write_atomically
from moespec.models.shown import on_one_line
from moespec.spec.errors import ConfigError, SpecError
from moespec.training.commandline.chosen import OfRun
from moespec.training.commandline.parse import parse
from moespec.training.data.folder import find_pictures
from moespec.training.data.pictures import read_image
from moespec.training.inspection.inspect_run import draw, make_route, png, prediction
from moespec.training.loop.resolve import model_config
from moespec.training.runs import label, left_out, load_run

__all__ = ["inspect_command", "main"]

INSPECTED = 16
"""Maximum number of images in a folder; a folder with more images is an error."""


@dataclass(frozen=True, kw_only=True)
class InspectArguments(OfRun):
    """Draw which experts process each patch of an image, or the weight of each patch in each slot.

    moespec inspect runs/x --image photo.png. moespec inspect runs/x --analysis draws the inputs, outputs and similarity of Soft
    MoE's slots for validation images, and writes the numbers to a .json file.
    The image is routed as a group of one image, even if the model was trained with several images per group.
    Sparse-MLP routes channels and mixed tokens, which have no position in the image and are drawn in index order.
    """

    image: Path | None = None
    """image file, or a folder of images; each image is cropped to a square, resized to the model's size and drawn in its own picture"""
    analysis: bool = False
    """draw the figures of the Soft MoE paper from validation images, and write the numbers to a .json file of the same name"""
    out: Path | None = None
    """picture to write (default: routing.png, or analysis.png with --analysis); a folder gives routing-1.png, routing-2.png, ..."""
    panels: tuple[str, ...] = ()
    """experts to draw, such as 0 5; with Soft MoE, slots such as 0.0 5.1, or 5 for all slots of expert 5 (default: eight panels)"""


def main(words: list[str]) -> None:
    """Runs the command."""
    parsed = parse("inspect", InspectArguments, words)
    if parsed.analysis == (parsed.image is not None):
        raise SpecError("inspect: set either --image FILE or --analysis")
    if parsed.analysis and parsed.panels:
        raise SpecError(f"panels={' '.join(parsed.panels)!r} has no effect with --analysis, which covers all slots")
    how: Any = {"backend": parsed.backend, "step": parsed.step}
    if parsed.image is None:
        from moespec.training.inspection.analysis import analysis_command  # matplotlib is slow to import

        analysis_command(parsed.run, parsed.out or Path("analysis.png"), **how)
    else:
        inspect_command(parsed.run, parsed.image, parsed.out or Path("routing.png"), panels=parsed.panels, **how)


def inspect_command(
    run: Path, image: Path, out: Path, *, panels: Sequence[str], backend: str | None, step: int | str | None
) -> None:
    """Draws how a checkpoint routes an image. For a folder, draws each image into a numbered file.

    Unreadable images of a folder are skipped and listed at the end.
    """
    targets = {image: out}
    if image.is_dir():
        files, notes = find_pictures(image)
        print(*map(on_one_line, notes), sep="\n", end="\n" * len(notes))
        if len(files) > INSPECTED:
            raise ConfigError(f"image={str(image)!r}: the folder has {len(files)} images, expected at most {INSPECTED}")
        targets = {files.open(n): out.with_stem(f"{out.stem}-{n + 1}") for n in range(len(files))}
    for target in targets.values():
        check_output("out", target, [".png"], targets)
    loaded = load_run(run, backend, step)
    model, dataset = model_config(loaded.config.model), loaded.dataset
    data, B = loaded.config.data, loaded.backend
    look: Any = {"channels": model.channels, "resize": data.resize, "background": data.background}
    route, params = make_route(B, model), B.from_numpy(loaded.params)
    wrong: list[str] = []
    for source, target in targets.items():
        try:
            pixels = read_image(source, model.image_size, **look)
        except DataError as error:
            wrong.append(on_one_line(str(error)))
            continue
        logits, routings = route(params, replace(dataset, maximum=255).normalize(pixels))
        guess = prediction(logits, dataset.classes, loaded.config.training.loss)
        title = f"{source.name}{guess}; {label(loaded.config)}, step {loaded.step}"
        write_atomically(target, png(draw(pixels, 255, title, routings, panels)))
        of = f" of {on_one_line(source.name)}" if len(targets) > 1 else ""
        print(f"{target}: {len(routings)} MoE layers{of}{guess}")
    print(*left_out(image, wrong, len(targets)), sep="\n  ", end="\n" * bool(wrong))
