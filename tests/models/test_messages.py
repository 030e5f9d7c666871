"""What is wrong with a command line is said in one line, with the name, the value and what is expected, before anything is done."""

import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moespec.models import cli
from moespec.models.commandline.chosen import check_concerns, chosen
from moespec.models.commandline.parsing import parse
from moespec.models.data.datasets import load
from moespec.models.data.options import DataConfig
from moespec.models.study.entries import entries
from moespec.models.training import configfile
from moespec.models.training.concerns import check_share
from moespec.models.training.config import Config
from moespec.spec.errors import ConfigError

ROOT = Path(__file__).parents[2]
RUN = Path(__file__).parent / "runs_0_1" / "jax_soft_moe"

WRONG = {
    "train --training.batch=ten": "training.batch='ten': expected an integer",
    "study --routers switch --out x --data.hue 1,5": "data.hue='1,5': expected a number",
    "plan --chip h100 --devices 1.5": "devices='1.5': expected an integer",
    "count --model.depth 1 2": "'2': not expected here, after 1",
    "count --model.qk-norm maybe": "model.qk_norm='maybe': expected True or False",
    "launch -n two train": "processes='two': expected an integer",
    "scan . --workers 2000": "workers=2000: expected a number from 0 to 1024",
    "evaluate x --fewshot 5 a": "fewshot='5 a': expected integers",
    "inspect x --step": "step: its value is missing",
    "convert x": "convert: target is missing (the file or folder to write)",
    "finetune x.npz --training.seed": "x.npz: cannot be read (No such file or directory)",
    "export x --format y": "format='y': expected one of 'onnx', 'stablehlo', 'pt2', 'safetensors'",
    "hash-table --out x --optimizer.b1 2": "optimizer.b1=2.0: expected a number in [0, 1), below 1 as float32 too",
    "train --training.stepz 5": "--training.stepz: there is no such option; near it: --training.steps, --training.seed, --training.keep",
    "study --out x --routers 'a: --heads 5'":
        "routers='a: --heads 5': --heads: there is no such option; near it: --model.heads",
    "train --data.transform operator:is_": "data.transform='operator:is_': returned bool, expected uint8 (8, 8, 1)",
    "train --data.label-smoothing 1": "data.label_smoothing=1.0: expected less than 1, nothing is left to learn",
    "study --routers 'dense: --router switch' --out x":
        "routers='dense: --router switch': model.moe=None: expected 'none', or another name than 'dense'",
    "study --routers 'a: --training.seed 3' --out x":
        "routers='a: --training.seed 3': training.seed=3: a study has seeds of its own, --seeds N",
    "study --routers switch --out x --training.seed 3": "training.seed=3: a study has seeds of its own, --seeds N",
    "study --routers switch --out ''": "out='': expected the name of a folder",
    f"study --routers switch --out {RUN}": f"out='{RUN}': the folder of a run; a study needs one of its own",
    f"evaluate {RUN} --fewshot 10 100000 --backend numpy":
        "evaluation.few-shot.shots=[10, 100000]: no class has more than 147 training images",
    "inspect /nowhere --image x.png": "run='/nowhere': there is no run, no config.toml in it",
    "evaluate x --seeds 4": "seeds=4 concerns nothing here: there is no fewshot",
    f"finetune {RUN} --init x": f"init='x': the weights are those of the source, '{RUN}'",
    f"finetune {RUN} --model vit_s16":
        "model.name='vit_s16': the model is that of the source, 'vit_tiny'; its fields may be set",
    f"finetune {__file__}":
        f"{__file__}: not a safetensors file: header too large; expected a run, a folder of the hub, a .safetensors or an .npz file",
}  # fmt: skip
USED = (
    *("--data.jitter 0.5 --data.hue 0.3", "--router hash --codes 5", "--training.loss sigmoid --model.head-bias -3"),
    *(f"--config {path}" for path in (*configfile.recipes(), *ROOT.glob("benchmarks/*.toml"), RUN / "config.toml")),
    *("--config study_b16 --model.moe none", "--config soft_moe_s16 --training.loss softmax"),
)


@pytest.mark.parametrize("line", WRONG)
def test_a_command_line_that_is_wrong(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(shlex.split(line)) == 2
    assert capsys.readouterr().err == f"moespec: {WRONG[line]}\n"


@pytest.mark.parametrize("words", USED)
def test_options_that_concern_something_in_recipes_and_what_runs_wrote(words: str) -> None:
    given = words.split()
    default = cli.TrainArguments(settings=chosen(given, Config()))
    check_concerns(given, parse("train", cli.TrainArguments, given, default=default).settings)


def test_an_option_of_a_file_and_of_a_study(tmp_path: Path) -> None:
    """One of a file may concern what the file says, or what the command line does; of a study, one of the entries."""
    file = tmp_path / "mine.toml"
    file.write_text("[data]\nhue = 0.3\n[model]\ncodes = 5\n")
    words = ["--config", str(file)]
    base = chosen(words, Config())
    check_concerns([*words, "--data.jitter", "1"], *entries(["a: --router hash --data.jitter 1"], base).values())
    with pytest.raises(ConfigError, match=r"data\.hue=0\.3 concerns nothing here: data\.jitter is 0"):
        check_concerns(words, base)


def test_the_part_that_is_held_out(tmp_path: Path) -> None:
    arrays = {"images": np.zeros((4, 8, 8), np.uint8), "labels": np.arange(4) % 2}
    np.savez(tmp_path / "all.npz", **arrays)
    config = replace(Config(), data=DataConfig(validation_share=0.5))
    check_share(config, load("npz", str(tmp_path / "all.npz"), validation_share=0.5))
    with pytest.raises(ConfigError, match=r"data\.validation_share=0\.5 concerns nothing here"):
        check_share(config, load("digits"))
