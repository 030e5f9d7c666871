"""Commands that mean nothing: each ends in one clear message that names the argument and its value.

The status is not 0, there is no traceback, nothing is written, and no training begins. Tables are gone through; wrong fields
are drawn.
"""

import random
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
from PIL import Image

from moespec import cli
from moespec.conformance import __main__ as conformance
from moespec.models import memory
from moespec.spec.errors import ConfigError
from moespec.training.commandline.chosen import check_written, chosen
from moespec.training.commandline.parse import parse
from moespec.training.commands import train
from moespec.training.commands.study import entries
from moespec.training.commands.train import TrainArguments
from moespec.training.configuration import configfile
from moespec.training.configuration.config import Config
from moespec.training.data.datasets import check_share, load
from moespec.training.data.options import DataConfig

OLD_RUN = Path(__file__).parent / "runs_0_1" / "jax_soft_moe"
Nonsense = tuple[list[str], tuple[str, ...]]
"""A command line, and what its message must have: names of arguments and values, without regard to spaces."""


INTEGERS = ("-1", "1.5", "ten", "nan", "inf", "1e3", "", "²", "9" * 30, "0x10", "None!")
FLOATS = ("nan", "inf", "-inf", "-1", "-1e-9", "x", "", "1e400", "²")
WORDS = ("nonsense", "", "²", "NONE ")


def wrong_value(draw: random.Random, hint: Any) -> str:
    """A value that no field of such a type can have."""
    if int in kinds(hint):
        return draw.choice(INTEGERS)
    if float in kinds(hint):
        return draw.choice(FLOATS)
    return draw.choice(WORDS)


def kinds(hint: Any) -> tuple[Any, ...]:
    return (hint, *get_args(hint))


def shown(value: str) -> str:
    """The value of a float as Python writes it; what is no float as it is."""
    try:
        return repr(float(value))
    except ValueError:
        return value


def field(draw: random.Random) -> Nonsense:
    """A field of the configuration with a value that it cannot have."""
    section = draw.choice([each for each in fields(Config) if is_dataclass(getattr(Config(), each.name))])
    kind: Any = type(getattr(Config(), section.name))
    free = {"path", "router_options", "classes", "transform"}  # texts, of which most may be
    name = draw.choice([each.name for each in fields(kind) if each.name not in free])
    hint = get_type_hints(kind)[name]
    value = wrong_value(draw, hint)
    while name == "head_bias" and value in ("-1", "-1e-9"):  # which it may be
        value = wrong_value(draw, hint)
    command = ["train", "--run", "run"]
    if section.name == "schedule" and name in ("timescale", "end"):
        command = [*command, "--schedule.name", {"timescale": "rsqrt", "end": "linear"}[name]]
    flag = f"--{section.name}.{name.replace('_', '-')}={value}"
    # A flag that has a value is a flag, and a word too many; a float is shown as Python writes it.
    return [*command, flag], (value,) if hint is bool else (name, shown(value) if float in kinds(hint) else value)


RELATIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("--model.image-size 1000000000", ("model.image_size=1000000000",)),
    ("--model.classes 11", ("model.classes=11", "digits")),
    ("--model.width 4294967296", ("model.width=4294967296",)),
    ("--model.hidden 2000000000", ("model.name='vit_tiny'", "GiB")),
    ("--experts 2000000000", ("capacity_factor", "2000000000 experts")),
    ("--model.moe last_9", ("model.moe='last_9'", "depth=4")),
    ("--model.moe last_" + "9" * 5000, ("model.moe", "last_9999")),
    ("--model mixer_tiny --router soft_moe", ("model.router='soft_moe'",)),
    ("--model sparse_mlp_tiny --model.group-size 100", ("group_size=100", "training.batch")),
    ("--model.group-images 3", ("group_images=3", "training.batch")),
    ("--router base --experts 3", ("model.experts=3", "16 tokens")),
    ("--router noisy_top_k --experts 1", ("choices", "2 of 1")),
    ("--router soft_moe --model.router-options.capacity-factor 1e-9", ("capacity_factor: 1e-09",)),
    ("--router gshard --model.router-options.multiple-of 2147483647", ("capacity of 2147483647", "GiB")),
    ("--training.seed 340282366920938463463374607431768211456", ("training.seed=340282366920938463463374607431768211456",)),
    ("--training.batch 6 --training.accumulate 4", ("training.accumulate=4", "training.batch=6")),
    ("--schedule.cooldown 3", ("schedule.cooldown=3", "cosine")),
    ("--optimizer.name sgd --optimizer.b1 0.5", ("b1=0.5", "'sgd'", "momentum, nesterov")),
    ("--optimizer.rates .*=0", ("optimizer.rates=", "frozen")),
    ("--data.crop-padding 8", ("data.crop_padding=8", "8 pixels")),
    ("--data.path nowhere", ("data.path='nowhere'", "digits")),
    ("--data.mean 1,2", ("data.mean='1,2'", "1 channels")),
    ("--data.jitter 1", ("data.jitter=1.0", "white at 16")),
    ("--data.background nonsense", ("data.background='nonsense'",)),
    ("--data.broken skip", ("data.broken='skip'", "digits")),
    ("--training.loss nonsense", ("training.loss='nonsense'", "'sigmoid' or package.module:object")),
    ("--objective nonsense", ("objective='nonsense'", "package.module:object")),
    ("--data.transform nonsense", ("data.transform='nonsense'", "package.module:function")),
    ("--data folder --data.path .", ("model.image_size is not set", "vit_tiny")),
    ("--data folder --data.path nowhere --model.image-size 8", ("nowhere: no such folder",)),
    ("--router hash --codes 4 --hash.kind clustered", ("model.codes=4", "needs at least 8 codewords")),
    ("--router hash --hash.kind clustered --model.token-ids position", ("hash.kind='clustered'", "position")),
    ("--router hash --model.token-ids bigram --codes 1000000", ("model.token_ids", "entries of tables")),
    ("--model.moe none --router switch", ("model.router='switch' has no effect",)),
    ("--data.workers 2", ("data.workers=2 has no effect",)),
    ("--mesh.transport bfloat16", ("mesh.transport='bfloat16' has no effect with mesh.expert=1",)),
    ("--objective moco --training.batch 1", ("training.batch=1, training.accumulate=1: the others of a batch",)),
    ("--objective moco --data.mixup 0.2", ("data.mixup=0.2 has no effect here: the objective has no targets",)),
    ("--objective moco --data.crop-padding 0", ("data: without augmentation both views of an image are equal",)),
    ("--objective lit --lit.no-locked", ("data.name='digits': objective='lit' needs images with captions, as in",)),
    ("--config nowhere.toml", ("config='nowhere.toml'",)),
    ("--run", ("run",)),
)  # fmt: skip


CONTENTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "deep lists": ("a = " + "[" * 3000 + "]" * 3000, ("not a TOML file",)),
    "deep tables": ("[" + ".".join(["a"] * 3000) + "]\nb = 1", ("nested deeper",)),
    "many bits": (f"[training]\nsteps = 0x{'f' * 5000}", ("training.steps", "20001 bits")),
    "many digits": (f"[training]\nsteps = {'9' * 5000}", ("4300",)),
    "no TOML": ("[training\n", ("not a TOML file", "line 1")),
    "section": ("[trainig]\nsteps = 1", ("trainig", "training")),
    "key": ("[training]\nstepsx = 1", ("training.stepsx", "training.steps")),
    "no table": ("model = 'vit_tiny'", ("model='vit_tiny'",)),
    "name": ("[model]\nname = 7", ("model.name=7",)),
    "truth": ("[training]\nsteps = true", ("training.steps=True: expected an integer",)),
    "format": ("format = 3", ("format=3: expected 2",)),
    # Options of all routers, which a file of version 0.1, without a format, has; see test_old_runs.
    "all routers": (
        f"format = 2\n{(OLD_RUN / 'config.toml').read_text()}",
        ("router_options.choices=1: soft_moe does not have this option",),
    ),
}
"""What a configuration file cannot have."""


COMMANDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    # Folders and files to write that cannot be.
    ("train --run {}/letter.txt", ("run=", "letter.txt")),
    ("train --run {}/no_val", ("run=", "'train'")),
    ("train --run bad\udcff", ("run='bad\\udcff'", "expected UTF-8 text")),
    *((f"{words} ", ("expected a path",)) for words in ("predict {}/run", "train --run", "inspect {}/run --image")),
    ("train --run a\0b", ("run='a\\x00b'",)),
    ("train --run " + "a" * 300, ("run='aaaa",)),
    # Evaluating or inspecting what is not there.
    *((f"evaluate {{}}/run --step={step}", ("step", step)) for step in ("99", "-1", "0", str(10**30))),
    ("inspect {}/run --image nowhere.png", ("nowhere.png",)),
    ("inspect {}/run --image {}/float.tif", ("float.tif", "floating-point")),
    ("inspect {}/run --image {}/photo.png --out {}/no/x.png", ("out=", "no")),
    ("train --run {}/run --model.depth 3", ("depth",)),
    # Commands and things to list that there are not.
    ("", ("''",)),
    # Files of data, of which test_datasets and test_sources have what else may be wrong with them.
    ("train --run run --data npz --data.path {}/wide.npz", ("data.path", "8 x 9 pixels")),
)  # fmt: skip

SUITE: tuple[tuple[str, tuple[str, ...]], ...] = (  # besides those of tests/conformance
    ("golden --algorithm ²", ("algorithm", "²")),
    ("golden --check --vectors nope", ("vectors='nope': no vectors in this folder",)),
    ("golden --vectors {}/vectors", ("there/vectors", "suite.json is not a suite of vectors")),
    ("golden --vectors {}/folder", ("there/folder", "contains '9²'")),
    ("new torch class", ("name='class'", "not a keyword")),
)


def write_files(folder: Path) -> None:
    """What the commands name."""
    for name, content in (("letter.txt", "Dear"), ("suite.json", "{}")):
        (folder / name).write_text(content)
    shutil.copytree(OLD_RUN, folder / "run")
    Image.new("RGB", (9, 7)).save(folder / "photo.png")
    Image.fromarray(np.ones((4, 4), np.float32)).save(folder / "float.tif")
    np.savez(folder / "wide.npz", images=np.zeros((10, 8, 9), np.uint8), labels=np.arange(10) % 2)
    for name in ("no_val/train", "folder/9²"):
        (folder / name).mkdir(parents=True)


def squeezed(text: str) -> str:
    """Without spaces, capitals and the difference of hyphen and underscore."""
    return re.sub(r"\s", "", text).replace("-", "_").lower()


def paths(folder: Path) -> list[Path]:
    """All files and folders, but for the lock of a run, with which no other process trains there meanwhile."""
    return sorted(path for path in folder.rglob("*") if path.name != ".lock")


Ends = Callable[..., None]


class Begun(BaseException):
    """A training began."""


@pytest.fixture
def ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ends:
    """The command ends as it should; `{}` in it is a folder with the files of `write_files`."""

    def begun(*arguments: object, **options: object) -> None:
        raise Begun(arguments)

    def run(arguments: list[str], named: tuple[str, ...], main: Callable[[list[str]], Any] = cli.main) -> None:
        if any("{}" in argument for argument in arguments):
            write_files(folder)
        arguments = [argument.replace("{}", str(folder)) for argument in arguments]
        before = paths(tmp_path)
        capsys.readouterr()
        try:
            status: Any = main(arguments)
        except SystemExit as end:  # of the suite's parser
            status = end.code
        text = capsys.readouterr().err
        assert status not in (0, None), text
        assert "Traceback" not in text
        assert main is not cli.main or text.count("moespec: ") == 1, text
        assert "\n" not in text.rpartition("moespec: ")[2].strip(), text
        assert [name for name in named if squeezed(name) not in squeezed(text)] == [], text
        assert len(text) < 6000, "a message is not longer than a screen"
        assert paths(tmp_path) == before, "something was written"

    monkeypatch.setattr(train, "train", begun)
    monkeypatch.setattr(memory, "of_machine", lambda: 8 * 2**30)
    monkeypatch.setenv("MOESPEC_BACKEND", "numpy")
    (folder := tmp_path / "there").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return run


@pytest.mark.parametrize("seed", range(30))
def test_fields(ends: Ends, seed: int) -> None:
    ends(*field(random.Random(seed)))


@pytest.mark.parametrize(("flags", "named"), RELATIONS, ids=[flags[:60] for flags, _ in RELATIONS])
def test_values_that_are_not_possible_together(ends: Ends, flags: str, named: tuple[str, ...]) -> None:
    ends(["train", *([] if flags == "--run" else ["--run", "run"]), *flags.split()], named)


@pytest.mark.parametrize(
    ("command", "named"), [*COMMANDS, *SUITE], ids=[command[:60] for command, _ in [*COMMANDS, *SUITE]]
)
def test_commands(ends: Ends, command: str, named: tuple[str, ...]) -> None:
    ends(command.split(" "), named, conformance.main if (command, named) in SUITE else cli.main)


@pytest.mark.parametrize("kind", CONTENTS)
def test_configuration_files(ends: Ends, tmp_path: Path, kind: str) -> None:
    content, named = CONTENTS[kind]
    file = tmp_path / "wrong.toml"
    file.write_text(content)
    ends(["train", "--run", "run", "--config", str(file)], ("wrong.toml", *named))


# Whole messages, and options that concern something.


ROOT = Path(__file__).parents[2]

WRONG = {
    "train --training.batch=ten": "training.batch='ten': expected an integer",
    "plan --chip h100 --devices 8 --init=x": "--init=x has no effect: plan does not read data or train",
    "plan --chip v9 --devices 8": "chip='v9': expected one of v4, v5e, v5p, v6e, h100, h200, a100-40, a100-80, l40s, "
    "rtx4090, or figures such as flops=312e12,",
    "plan --chip flops=1e12,memory=8e9 --devices 8": "chip='flops=1e12,memory=8e9': the figures bandwidth, link are missing",
    "plan --chip flop=1e12 --devices 8": "chip.flop='1e12': expected each of flops, memory, bandwidth, link, torus, float32 at most",
    "plan --chip link=1,link=2 --devices 8": "chip.link='2': expected each of flops, memory, bandwidth, link, torus, float32 at most",
    "plan --chip memory=80GB --devices 8": "chip.memory='80GB': expected a finite number greater than 0, such as 312e12",
    "plan --chip link=0 --devices 8": "chip.link='0': expected a finite number greater than 0, such as 312e12",
    "plan --chip torus=2.5 --devices 8": "chip.torus='2.5': expected 0, 1, 2 or 3",
    "plan --chip v5e --devices 7 --training.batch 512": "training.batch=512 cannot be split evenly among 7 devices",
    "plan --chip v5e --devices 8 --utilisation 1.5": "utilisation=1.5: expected a finite number greater than 0 and at most 1",
    "plan --chip v5e --devices 8 --utilisation 0.4 --sharding": "utilisation=0.4 has no effect with --sharding",
    "plan --chip v5e --devices 8 --utilisation 0.4 --training.epochs 9": "utilisation=0.4: training.epochs=9.0 needs the",
    "convert x y.safetensors --to vmoe": "target='y.safetensors': remove the suffix; vmoe writes NAME.index and",
    f"convert {OLD_RUN} . --to hub": "target='.' is or contains the working directory; choose a folder inside it",
    f"inspect {OLD_RUN} --image x --out x.docx": "out='x.docx': expected a name ending in .png",
    "count --model.depth 1 2": "'2': unexpected argument after 1",
    "list router": "what='router': expected one of 'all', 'models', 'routers', 'datasets', 'recipes'",
    "evaluate x --fewshot 5 a": "fewshot='5 a': expected integers",
    "inspect x --step": "step: its value is missing; expected an integer or a text",
    "train --model.latent-norm": "model.latent_norm: its value is missing; expected True or False",
    "train --routre hash": "--routre: unknown option; did you mean --router, --text.router, --model.router",
    "evaluate -- x": "run='x': not a run (no config.toml)",
    "evaluate x -- --step": "'--step': unexpected argument after --",
    "convert x": "convert: target is missing (file or folder to write)",
    "export x --format y": "format='y': expected one of 'onnx', 'stablehlo', 'pt2', 'safetensors'",
    "train --training.stepz 5": "--training.stepz: unknown option; did you mean --training.steps, --training.seed, --training.keep",
    "study --out x --routers 'a: --heads 5'": "routers='a: --heads 5': --heads: unknown option; did you mean ",
    "study --routers 'a: --training.seed 3' --out x": "routers='a: --training.seed 3': training.seed=3: a study sets its",
    "study --routers soft --out x": "routers='soft': expected dense, one of ",
    "study --routers switch switch --out x": "routers='switch': duplicate entry 'switch'",
    "study --routers '../up: --router switch' --out x": "routers='../up: --router switch': expected a router or NAME: OPTIONS",
    "study --routers \"a: --router 'switch\" --out x": "routers=\"a: --router 'switch\": No closing quotation",
    "study --routers switch --out ''": "--out: expected a path, got ''; is a shell variable empty?",
    f"study --routers switch --out {OLD_RUN}": f"out='{OLD_RUN}' is a run's folder; choose another folder for the",
    f"evaluate {OLD_RUN} --fewshot 10 100000 --backend numpy": "evaluation.few-shot.shots=[10, 100000]: expected at most ",
    "evaluate x --seeds 4": "seeds=4 has no effect without --fewshot",
    f"finetune {OLD_RUN} --init x": f"init='x': conflicts with the source '{OLD_RUN}'",
    f"finetune {OLD_RUN} --model vit_s16": "model.name='vit_s16': expected the source's model 'vit_tiny';",
}  # fmt: skip
USED = (
    *("--data.jitter 0.5 --data.hue 0.3", "--router hash --codes 5", "--training.loss sigmoid --model.head-bias -3"),
    *(f"--config {path}" for path in (*configfile.recipes(), *ROOT.glob("benchmarks/*.toml"), OLD_RUN / "config.toml")),
    *("--config study_b16 --model.moe none", "--config soft_moe_s16 --training.loss softmax"),
)


@pytest.mark.parametrize("line", WRONG)
def test_a_command_line_that_is_wrong(line: str, said: Any) -> None:
    message = said(shlex.split(line), 2)
    assert message.startswith(f"moespec: {WRONG[line]}")
    assert message.count("\n") == 1


def test_limits_of_the_process(monkeypatch: pytest.MonkeyPatch, said: Any) -> None:
    resource = pytest.importorskip("resource")
    limits = {resource.RLIMIT_NOFILE: 24, resource.RLIMIT_AS: 2**30}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limits[kind], -1))
    monkeypatch.setattr(memory, "cores", lambda: 4)
    assert "moespec: workers=4: needs 56 open files, but the limit of this" in said(["scan", ".", "--workers", "4"], 2)
    assert "moespec: backend='numpy': needs 1.3 GiB of address" in said(["train", "--backend", "numpy"], 2)


@pytest.mark.parametrize("words", USED)
def test_options_that_concern_something_in_recipes_and_what_runs_wrote(words: str) -> None:
    given = words.split()
    check_written(given, parse("train", TrainArguments, given, settings=chosen(given, Config())).settings)


def test_an_option_of_a_file_and_of_a_study(tmp_path: Path) -> None:
    """One of a file may concern what the file says, or what the command line does; of a study, one of the entries."""
    file = tmp_path / "mine.toml"
    file.write_text("[data]\nhue = 0.3\n[model]\ncodes = 5\n")
    words = ["--config", str(file)]
    base = chosen(words, Config())
    check_written([*words, "--data.jitter", "1"], *entries(["a: --router hash --data.jitter 1"], base).values())
    with pytest.raises(ConfigError, match=r"data\.hue=0\.3 has no effect here: data\.jitter is 0"):
        check_written(words, base)


def test_the_part_that_is_held_out(tmp_path: Path) -> None:
    arrays = {"images": np.zeros((4, 8, 8), np.uint8), "labels": np.arange(4) % 2}
    np.savez(tmp_path / "all.npz", **arrays)
    config = replace(Config(), data=DataConfig(validation_share=0.5))
    check_share(config.data, load("npz", str(tmp_path / "all.npz"), validation_share=0.5))
    with pytest.raises(ConfigError, match=r"data\.validation_share=0\.5 has no effect here"):
        check_share(config.data, load("digits"))
