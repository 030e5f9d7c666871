"""The command `moespec`: what it accepts. What its commands do is in `moespec.training.commands`.

`--help` imports no framework. An error of the user's (`SpecError`, a file that cannot be read, too little memory) is one line
on standard error and exit status 2. What a signal stops ends with 128 and the number of the signal, 130 for Ctrl-C, and
so does output that nobody reads to its end (`moespec ledger | head`), with 141.
"""

import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro
from tyro.conf import FlagCreatePairsOff, Positional, UseAppendAction, arg

from moespec.models.errors import Interrupted
from moespec.models.shown import printable
from moespec.spec.errors import ConfigError, SpecError
from moespec.spec.names import near_it
from moespec.training.commandline.chosen import check_concerns, check_functions, chosen, early
from moespec.training.commandline.parsing import parse
from moespec.training.commandline.streams import open_streams
from moespec.training.configuration.config import BackendName, Config, ModelConfig, TrainingConfig
from moespec.training.configuration.configfile import digits, with_model
from moespec.training.configuration.length import images_seen
from moespec.training.evaluation.options import EvaluationConfig
from moespec.training.loop.watchdog import ended

__all__ = ["TrainArguments", "main"]

Arguments = TypeVar("Arguments")
NOT_PLANNED = r"--(data\.(?!name)|schedule\.|hash\.|init|backend|log\b|training\.(seed|keep|log|checkpoint|evaluate))"
"""Options of train that a plan does not depend on."""


@dataclass(frozen=True, kw_only=True)
class Configured:
    """The arguments of a command that takes the configuration of a run."""

    recipe: Annotated[str | None, arg(name="config")] = None
    """a TOML file, or a recipe of the package (moespec list recipes)"""
    settings: Annotated[Config, arg(name="")] = field(default_factory=Config)


@dataclass(frozen=True, kw_only=True)
class TrainArguments(Configured):
    """Train a vision model with mixture-of-experts layers, and write a report.

    Without options: a Soft MoE ViT on 1 797 images of digits; --model mixer_tiny or sparse_mlp_tiny for another. All
    options can be set in a TOML file (--config); the command line wins. Shown are the options of what is chosen: --help with
    another --model, --router, --data, --optimizer.name or --schedule.name shows those of that one, and with --data.jitter 1 or
    --data.randaugment 2 what these can have. The run's folder holds config.toml, metrics.jsonl, checkpoints/ and report.html.
    """

    run: str | None = None
    """folder of the run (default: runs/DATA-ROUTER-BACKEND, or with the name of a model that is not a ViT)"""
    resume: FlagCreatePairsOff[bool] = False
    """go on from the run's last checkpoint, with the run's own configuration"""
    override: FlagCreatePairsOff[bool] = False
    """with --resume: go on with another configuration than the run's own, and record the change in its checkpoints"""


@dataclass(frozen=True)
class LaunchArguments:
    """Run a command in several processes of this machine: moespec launch -n 4 train --backend torch --mesh.expert 2

    With torch each process has one device; JAX's have those that they see. Options of the command come after it. When a process
    ends with an error the others are ended; with --restarts all start again and go on from the last checkpoint. `torchrun
    --nproc-per-node 4 --no-python -- moespec train ...` and srun start the processes as well.
    """

    processes: Annotated[int, arg(aliases=["-n"])]
    """processes to start"""
    restarts: int = 0
    """starts after the first, when a process ended with an error"""


@dataclass(frozen=True, kw_only=True)
class FinetuneArguments(Configured):
    """Train on from the weights of a run or a file, on the same data or others, at another resolution, or with experts.

    moespec finetune runs/x --data folder --data.path photos --model.image-size 384; moespec finetune runs/dense --model.moe
    every_2 --router softmax_expert_choice --experts 8 upcycles a dense model. The model is the source's. So are, of a run
    and without --data, the section data, the size of the images and the evaluations; with --data, mean and deviation; and its
    backend, where that is installed. A file or a folder of the hub has no data: it needs --data. What is set here takes the
    place of all these; everything else is as in train. `moespec train --init SOURCE` takes the weights alone.
    """

    source: Positional[str]
    """weights to start from: a run, a file of moespec convert, or a folder of the hub"""
    run: str | None = None
    """folder of the new run (default: as in train)"""
    resume: FlagCreatePairsOff[bool] = False
    """go on from the new run's last checkpoint"""


@dataclass(frozen=True, kw_only=True)
class HashTableArguments(Configured):
    """Make the codebook and the tables of the router hash of a data set, and write them to a file.

    `moespec train --router hash --hash.path FILE` trains with them; without a file it makes them itself. The options
    are those of train; what counts is the data, the model, the seed and how the tables are made (--hash.kind).
    """

    out: str
    """the file to write (.safetensors)"""


@dataclass(frozen=True, kw_only=True)
class OfRun:
    """The arguments of a command that reads a run."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """folder of the run"""
    backend: BackendName | None = None
    """framework that computes (default: the run's)"""
    step: int | None = None
    """the checkpoint of this step instead of the newest"""


@dataclass(frozen=True, kw_only=True)
class EvaluateArguments(OfRun):
    """Evaluate the newest checkpoint of a run on its validation images, and as the tables [evaluation.NAME] of its
    config.toml say. Features, for --fewshot and --knn, are what the head sees; training images are those of the run.

    moespec evaluate runs/x --data folder --data.path new evaluates on other images in place of its validation images, and leaves
    those tables out: on the validation part of the new data, or on all if they have none. Their classes are those of the run,
    which are told by name and may be fewer.
    """

    fewshot: UseAppendAction[tuple[tuple[int, ...], ...]] = ()
    """linear classifiers of the features of so many training images a class (10: 10-shot)"""
    l2: tuple[float, ...] = (1024.0,)
    """L2 regularisation of these; of several, that with the best mean rank over the seeds"""
    seeds: int = 3
    """draws of the images of these"""
    knn: UseAppendAction[tuple[tuple[int, ...], ...]] = ()
    """the nearest so many training images vote"""
    data: Annotated[str | None, arg(aliases=["--data.name"])] = None
    """kind of the other images (moespec list datasets; default: that of the run)"""
    path: Annotated[str, arg(name="data.path")] = ""
    """file or folder of the other images"""
    broken: Annotated[Literal["error", "skip"], arg(name="data.broken")] = "error"
    """pictures of these that cannot be read: `error`: stop at the first; `skip`: check all first, drop and count"""


@dataclass(frozen=True, kw_only=True)
class StudyArguments(Configured):
    """Train several routers or models, each with several seeds, and say which of them can be told apart.

    The other options are those of train, for all entries. What stops it loses nothing: the same command goes on. OUT has
    index.html, results.json, results.csv, pareto.png, and each run in runs/.
    """

    routers: UseAppendAction[tuple[tuple[str, ...], ...]]
    """entries: routers, dense, or NAME: OPTIONS of train, as in 'hash2: --router hash --model.router-options.hashes 2'"""
    out: str
    """folder of the study"""
    seeds: int = 5
    """seeds of each entry: 0, 1, ..."""
    measure: str = ""
    """what is compared in place of the accuracy of the head, of an evaluation by schedule: few_shot/shots_10/accuracy"""


@dataclass(frozen=True)
class CountArguments:
    """Count the parameters of a model, and the floating-point operations of one image and of a run, without making the model.

    A multiply-add is two operations. The options are those of train, and so are the MoE blocks, of a ViT by default its last
    half; --model.moe none for a dense model.
    """

    recipe: Annotated[str | None, arg(name="config")] = None
    """a TOML file, or a recipe of the package (moespec list recipes)"""
    images: int | None = None
    """images of a batch, where a model routes a whole batch (default: as few as fill a group)"""
    examples: int | None = None
    """images that a training run sees, with repetitions, for its operations (default: as the configuration says)"""
    model: ModelConfig = field(default_factory=ModelConfig)


@dataclass(frozen=True, kw_only=True)
class PlanArguments(Configured):
    """Say what a training step takes on devices that are not here, and which mesh they should have.

    moespec plan --model vit_l16 --router soft_moe --experts 128 --devices 256 --chip v5p --training.batch 4096. Memory, operations,
    bytes on the links and the least time of a step, for each mesh that divides devices, batch and experts, or the one of --mesh.
    The other options are those of train; what counts is the model, the optimiser, the batch and how it is computed.
    """

    devices: int
    """devices, all along the axes of the mesh"""
    chip: str
    """what they are: v5e, v5p, v6e, h100 or h200"""
    utilisation: float | None = None
    """fraction of the chip's peak that training is assumed to reach, for the device-days of the whole run"""
    sharding: FlagCreatePairsOff[bool] = False
    """print how each parameter is split, on the mesh of --mesh or the best"""
    json: FlagCreatePairsOff[bool] = False
    """print JSON, for programs"""


@dataclass(frozen=True, kw_only=True)
class InspectArguments(OfRun):
    """Draw which experts handle which patch of an image, or with what weight each slot takes it in.

    moespec inspect runs/x --image photo.png. moespec inspect runs/x --analysis looks at validation images instead: what the
    slots of Soft MoE take in, give back and have in common, as a picture and as numbers.
    The image is routed alone, as a group of one image, also by a model trained with several images to a group. Sparse-MLP
    routes channels and mixed tokens, which have no place in the image: they are drawn in the order of their numbers.
    """

    image: str | None = None
    """an image file, or a folder of a few, with a picture for each; it is cropped to a square and resized to the model's image size"""
    analysis: FlagCreatePairsOff[bool] = False
    """draw the paper's figures of Soft MoE over validation images, and write their numbers to a file of that name with the ending .json"""
    out: str | None = None
    """the picture to write (default: routing.png, with --analysis analysis.png); of a folder routing-1.png and so on"""
    panels: UseAppendAction[tuple[tuple[str, ...], ...]] = ()
    """experts that get a panel, 0 5; of Soft MoE slots, 0.0 5.1, or all slots of an expert, 5 (default: eight)"""


@dataclass(frozen=True, kw_only=True)
class PredictArguments(OfRun):
    """Say what the pictures of a folder are: the classes with their probabilities, and which experts handle them.

    moespec predict runs/x new --csv new.csv --html new.html. Pictures are read, resized and normalised as in training; those that
    cannot be read are named and left out. Each is routed alone, so that what is said of it does not depend on the others.
    The page is one file, a gallery with the least certain first, which are those to look at.
    """

    folder: Annotated[Positional[Path], arg(metavar="FOLDER")]
    """a folder of pictures, also in folders below it, or one picture"""
    csv: Path | None = None
    """the table to write: a row for each picture"""
    html: Path | None = None
    """the page to write: a gallery"""
    top: int = 3
    """classes that are named for each picture, the most probable ones"""


@dataclass(frozen=True)
class ConvertArguments:
    """Convert weights: a run, moespec's own file, a folder of the Hugging Face hub, or another project's files.

    moespec convert runs/x weights.safetensors; moespec convert runs/x hub/x --to hub; moespec convert timm.safetensors
    ours.safetensors --model vit_base_patch16_224; moespec convert runs/a runs/b soup.safetensors --average. Formats: run, moespec,
    hub, vmoe, big_vision, vision_transformer, timm, huggingface. Sizes are inferred from the parameters; what cannot be, such as
    heads, is set. Values are copied as they are, so that a file converted there and back has the same numbers.
    """

    paths: Annotated[Positional[tuple[Path, ...]], arg(metavar="SOURCE ... TARGET", help_behavior_hint="(required)")]
    """the file or folder to read, of a checkpoint of vmoe its prefix, and the file or folder to write"""
    average: FlagCreatePairsOff[bool] = False
    """write the mean of the parameters of several sources, which are of the same model"""
    from_format: Annotated[str | None, arg(name="from")] = None
    """format of the source (default: told by what is in it)"""
    to_format: Annotated[str | None, arg(name="to")] = None
    """format of the target (default: moespec, for a name that ends in .safetensors)"""
    model: str | None = None
    """which model the source is: a name of moespec's (moespec list models) or, of timm's weights, of timm's"""
    arguments: Path | None = None
    """a JSON file that describes the source: vmoe's config.model, timm's model_args, transformers' config.json"""
    settings: Annotated[UseAppendAction[tuple[str, ...]], arg(name="set")] = ()
    """a field of the model, as in --set heads=6 --set gelu=tanh"""
    step: int | None = None
    """of a run: the checkpoint of this step instead of the newest"""


@dataclass(frozen=True)
class ExportArguments:
    """Export a model as a program that runs where moespec is not installed.

    moespec export runs/x --format onnx. The input is images of float32 with the axes (images, height, width, channels), for any
    number of images (a multiple of the group where a router takes several together), normalised as in training; the output
    is logits. onnx: for onnxruntime and others, opset 18. pt2: for torch.export.load. stablehlo: for jax.export.deserialize,
    on CPU, CUDA and TPU. safetensors: the parameters alone, as convert writes them.
    """

    source: Positional[Path]
    """a run, a file of moespec convert, a folder of the hub, or other weights that describe themselves"""
    format: Literal["onnx", "stablehlo", "pt2", "safetensors"]
    """what is written"""
    out: Path | None = None
    """the file to write (default: the name of the source with the format as its ending, in the working directory)"""
    step: int | None = None
    """of a run: the checkpoint of this step instead of the newest"""


@dataclass(frozen=True)
class ScanArguments:
    """Decode every picture of a data set and name those that cannot be read; the exit status is then 2."""

    path: Positional[Path]
    """folder of the data set"""
    data: Literal["folder", "webdataset", "huggingface", "pairs"] = "folder"
    """kind of data set"""
    workers: int = 0
    """processes that decode; 0 for a thread of this one"""

    def __post_init__(self) -> None:
        if not 0 <= self.workers <= 1024:
            raise ConfigError(f"workers={self.workers!r}: expected a number from 0 to 1024")


@dataclass(frozen=True)
class ListArguments:
    """List what there is to choose from."""

    what: Positional[Literal["all", "models", "routers", "datasets", "recipes"]] = "all"


@dataclass(frozen=True)
class LedgerArguments:
    """Ask the ambiguity ledger: the questions that implementations answer differently, and who answers how.

    `moespec ledger expert_choice` has what concerns an algorithm, `moespec ledger GS-3` one entry, `moespec ledger --by
    vmoe` what a code base does, `moespec ledger --by vmoe --by mesh` where two differ. Reading a is that of this
    specification. "By" says whose code was read and where; "Measured" says which packages the suite was run on.
    """

    what: Positional[tuple[str, ...]] = ()
    """algorithms (moespec list routers), public functions, entries (GS-3) or readings (GS-3b); without any, everything"""
    by: UseAppendAction[tuple[str, ...]] = ()
    """what this implementation does: a repository, package or part of its name; twice, where two of them differ"""
    json: FlagCreatePairsOff[bool] = False
    """print JSON, for programs"""


Command = tuple[str, Callable[[list[str]], int | None]]
"""What a command does in one line, and the function that does it and may return an exit status."""


def main(arguments: Sequence[str] | None = None, *, more: Mapping[str, Command] | None = None) -> int:
    """Runs the command line, of which `more` are commands of other packages, and returns the exit status."""
    output = open_streams() if arguments is None else None
    words = list(sys.argv[1:] if arguments is None else arguments)
    commands = COMMANDS | dict(more or {})
    name, *rest = words or ["--help"]
    status: int | None = 0
    try:
        if name in ("-h", "--help"):
            print(_usage(commands))
        elif name == "--version":
            from moespec.version import version

            print(f"moespec {version()}")
        elif name in commands:
            status = commands[name][1](rest)
        else:
            near = near_it(name, commands) or "; moespec --help lists them"
            raise SpecError(f"{name!r} is not a command{near}")
        print(end="", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is not written at the exit either
        status = 128 + signal.SIGPIPE
    except (SpecError, OSError) as error:
        print(f"moespec{_which()}: {printable(str(error))}", file=sys.stderr)
        status = 2
    except UnicodeEncodeError as error:
        near = ascii(error.object[max(0, error.start - 40) : error.end + 40])
        print(f"moespec{_which()}: {near}: not UTF-8, which files of text need", file=sys.stderr)
        status = 2
    except (MemoryError, RuntimeError) as error:
        text = str(error).partition("\n")[0]
        if isinstance(error, RuntimeError) and not re.search("allocate|out of memory|RESOURCE_EXHAUSTED", text):
            raise
        print(f"moespec{_which()}: not enough memory ({text})", file=sys.stderr)
        status = 2
    except Interrupted as stop:
        print(f"moespec{_which()}: {stop}", file=sys.stderr)
        status = 128 + stop.signal
    except KeyboardInterrupt:
        way_on = "; `moespec train --run DIR --resume` goes on from the last checkpoint"
        print(f"moespec: interrupted{way_on if name in COMMANDS else ''}", file=sys.stderr)
        status = 130
    if output is not None and output.failed is not None:
        print(f"moespec: standard output: {output.failed.strerror}; what did not fit is lost", file=sys.stderr)
        status = status or (0 if name in ("train", "finetune", "launch", "study") else 2)  # a run is a folder
    return ended(status or 0)


def _configured(name: str, kind: type[Any], arguments: list[str], base: Config, words: list[str] | None = None) -> Any:
    """The arguments of a command with the configuration that they make of `base`; `words` are those about it, if not all."""
    required = {
        each.name: tyro.MISSING for each in fields(kind) if (each.default, each.default_factory) == (MISSING, MISSING)
    }
    settings = chosen(arguments if words is None else words, base)
    return _parse(name, kind, arguments, default=kind(**required, settings=settings))


def _train(arguments: list[str]) -> None:
    parsed = _configured("train", TrainArguments, arguments, digits())
    check_concerns(arguments, parsed.settings)
    check_functions(arguments, parsed.settings)
    from moespec.training import commands

    commands.train_command(parsed.settings, run=parsed.run, resume=parsed.resume, override=parsed.override)


def _launch(arguments: list[str]) -> None:
    own = next((place for place, word in enumerate(arguments) if word in COMMANDS), len(arguments))
    parsed = _parse("launch", LaunchArguments, arguments[:own])
    if arguments[own:][:1] not in (["train"], ["finetune"]):
        raise SpecError("launch: expected a command to run, train or finetune, as in: moespec launch -n 4 train")
    from moespec.training.launch import launch_command

    launch_command(arguments[own:], processes=parsed.processes, restarts=parsed.restarts)


def _finetune(arguments: list[str]) -> None:
    if not arguments or arguments[0].startswith("-"):
        _parse("finetune", FinetuneArguments, arguments or ["--help"])
        raise SpecError("finetune: the source comes first: moespec finetune runs/x --data ...")
    from moespec.training import commands
    from moespec.training.transfer.start import finetuned, sized, taken

    source, *rest = arguments
    named = any(word.partition("=")[0] in ("--data", "--data.name") for word in rest)
    base = finetuned(digits(), source, other_data=named)
    _check_model(early(rest)["model"] or base.model.name, base)
    parsed = _configured("finetune", FinetuneArguments, arguments, base, rest)
    _check_model(parsed.settings.model.name, base)  # of a file
    if parsed.settings.init != source:
        raise ConfigError(f"init={parsed.settings.init!r}: the weights are those of the source, {source!r}")
    check_concerns(rest, parsed.settings)
    check_functions(rest, parsed.settings)
    settings, note = sized(parsed.settings), taken(parsed.settings, given=named or parsed.resume)
    commands.train_command(settings, run=parsed.run, resume=parsed.resume, override=False, note=note)


def _check_model(name: str, base: Config) -> None:
    """ConfigError for another model than that of the weights that fine-tuning starts from."""
    if name != base.model.name:
        raise ConfigError(
            f"model.name={name!r}: the model is that of the source, {base.model.name!r}; its fields may be set"
        )


def _hash_table(arguments: list[str]) -> None:
    parsed = _configured("hash-table", HashTableArguments, arguments, with_model(digits(), None, "hash"))
    check_concerns(arguments, parsed.settings)
    from moespec.training import commands

    commands.hash_table_command(parsed.settings, Path(parsed.out))


def _evaluate(arguments: list[str]) -> None:
    parsed = _parse("evaluate", EvaluateArguments, arguments)
    from moespec.training import commands

    for name in ("l2", "seeds"):
        if not parsed.fewshot and getattr(parsed, name) != getattr(EvaluateArguments, name):
            raise ConfigError(f"{name}={getattr(parsed, name)!r} has no effect here: there is no fewshot")
    sets: dict[str, EvaluationConfig] = {}
    if parsed.fewshot:
        sets["few-shot"] = EvaluationConfig("few_shot", shots=sum(parsed.fewshot, ()), l2=parsed.l2, seeds=parsed.seeds)
    if parsed.knn:
        sets["nearest neighbours"] = EvaluationConfig("neighbours", neighbours=sum(parsed.knn, ()))
    images = {"name": parsed.data, "path": parsed.path, "broken": parsed.broken}
    others = None if list(images.values()) == [None, "", "error"] else images
    commands.evaluate_command(parsed.run, backend=parsed.backend, step=parsed.step, sets=sets, others=others)


def _study(arguments: list[str]) -> None:
    parsed = _configured("study", StudyArguments, arguments, digits())
    from moespec.training.study.command import study_command
    from moespec.training.study.entries import entries

    if (seed := parsed.settings.training.seed) != chosen(arguments, digits()).training.seed:
        raise ConfigError(f"training.seed={seed!r}: a study has seeds of its own, --seeds N")
    configs = entries(sum(parsed.routers, ()), parsed.settings)
    check_concerns(arguments, parsed.settings, *configs.values())
    study_command(configs, seeds=parsed.seeds, out=Path(parsed.out), measure=parsed.measure)


def _count(arguments: list[str]) -> None:
    base = chosen(arguments, digits())
    parsed = _parse("count", CountArguments, arguments, default=CountArguments(model=base.model))
    check_concerns(arguments, Config(model=parsed.model, training=TrainingConfig(loss="sigmoid")))
    from moespec.training.reports.cost import count_command

    if parsed.examples is not None and parsed.examples < 1:
        raise ConfigError(f"examples={parsed.examples!r}: expected an integer >= 1")
    seen = images_seen(base.training) if parsed.recipe and parsed.examples is None else parsed.examples
    count_command(replace(base, model=parsed.model), images=parsed.images, seen=seen)


def _plan(arguments: list[str]) -> None:
    parsed = _configured("plan", PlanArguments, arguments, digits())
    check_concerns(arguments, parsed.settings)
    if other := next(filter(re.compile(NOT_PLANNED).match, arguments), None):
        raise ConfigError(f"{other} has no effect here: a plan reads and trains nothing")
    from moespec.training.planning.command import plan_command

    how: Any = {name: getattr(parsed, name) for name in ("devices", "chip", "utilisation", "sharding")}
    plan_command(parsed.settings, **how, as_json=parsed.json)


def _inspect(arguments: list[str]) -> None:
    parsed = _parse("inspect", InspectArguments, arguments)
    if parsed.analysis == (parsed.image is not None):
        raise SpecError("inspect: expected either --image FILE or --analysis")
    panels: tuple[str, ...] = sum(parsed.panels, ())
    if parsed.analysis and panels:
        raise SpecError(f"panels={' '.join(panels)!r}: --analysis looks at all slots")
    run, out = parsed.run, ("routing.png", "analysis.png")[parsed.analysis] if parsed.out is None else parsed.out
    from moespec.training import analysis, commands

    how: Any = {"backend": parsed.backend, "step": parsed.step}
    if parsed.image is None:
        analysis.analysis_command(run, Path(out), **how)
    else:
        commands.inspect_command(run, Path(parsed.image), Path(out), panels=panels, **how)


def _convert(arguments: list[str]) -> None:
    """Paths may stand between options, all of which but --average have a value; tyro takes them in one row."""
    alone = ("--average", "--help", "-h")
    pairs = pairwise(["", *arguments])
    of_option = [w[:1] == "-" or (b[:1] == "-" and "=" not in b and b not in alone) for b, w in pairs]
    order = sorted(range(len(arguments)), key=of_option.__getitem__)
    _of("convert", ConvertArguments, "weights.command:convert_command")([arguments[place] for place in order])


def _of(name: str, kind: type[Any], place: str) -> Callable[[list[str]], None]:
    """A command that is a call with its arguments. place: the function and its module, which is imported then."""

    def command(arguments: list[str]) -> None:
        module, _, function = place.partition(":")
        parsed = _parse(name, kind, arguments)
        getattr(import_module(f"moespec.training.{module}"), function)(**vars(parsed))

    return command


COMMANDS: dict[str, Command] = {
    "train": ("train a model and write a report", _train),
    "launch": ("train in several processes of this machine", _launch),
    "finetune": ("train on from the weights of a run or a file", _finetune),
    "hash-table": ("make the codebook and tables of the router hash", _hash_table),
    "evaluate": ("evaluate a run's checkpoint on the validation images", _evaluate),
    "study": ("compare routers or models with several seeds each", _study),
    "count": ("count the parameters and operations of a model", _count),
    "plan": ("what training takes on devices that are not here, and which mesh", _plan),
    "inspect": ("draw which experts handle which patch of an image", _inspect),
    "predict": (
        "say what the pictures of a folder are",
        _of("predict", PredictArguments, "prediction.predict:predict_command"),
    ),
    "convert": ("convert weights from and to other projects' files", _convert),
    "export": (
        "write a model as a program: ONNX, StableHLO or torch's",
        _of("export", ExportArguments, "export.command:export_command"),
    ),
    "scan": (
        "name the pictures of a data set that cannot be read",
        _of("scan", ScanArguments, "commands:scan_command"),
    ),
    "list": (
        "list models, routers, data sets and recipes",
        _of("list", ListArguments, "commandline.listing:list_command"),
    ),
    "ledger": (
        "who reads the papers how: the ambiguity ledger",
        _of("ledger", LedgerArguments, "ledger.command:ledger_command"),
    ),
}


def _parse(name: str, kind: type[Arguments], arguments: list[str], **options: Any) -> Arguments:
    """The arguments of a command as a dataclass."""
    return parse(f"moespec {name}", kind, arguments, **options)


def _which() -> str:
    """Which of several processes this is, for a message of its own."""
    rank = os.environ.get("RANK") or os.environ.get("SLURM_PROCID")
    return f" (process {rank})" if rank else ""


def _usage(commands: Mapping[str, Command]) -> str:
    lines = [f"  {name:{max(map(len, commands))}}  {text}" for name, (text, _) in commands.items()]
    usage = ["usage: moespec COMMAND [options]", "       moespec --version"]
    return "\n".join([*usage, "", *lines, "", "moespec COMMAND --help shows the options."])
