"""Configurations: every field in TOML and on the command line, the command line wins, and mistakes are named."""

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moespec import cli
from moespec.models import vit
from moespec.models.mixer import MixerConfig
from moespec.models.options import marks, no_effect
from moespec.models.sparse_mlp import SparseMlpConfig
from moespec.models.vit import VitConfig
from moespec.spec.errors import ConfigError
from moespec.spec.routers import ROUTERS
from moespec.training.commandline.parse import options_of
from moespec.training.commands import train
from moespec.training.configuration import configfile
from moespec.training.configuration.config import Config, ModelConfig, ScheduleConfig, TrainingConfig
from moespec.training.configuration.configfile import digits, dump, read
from moespec.training.configuration.modelconfig import SHORT
from moespec.training.loop.resolve import choose_backend, model_config


def names(kind: type) -> set[str]:
    return {field.name for field in fields(kind)}


def parse(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Config:
    """The configuration that `moespec train` with these arguments would run."""
    seen: list[Config] = []
    monkeypatch.setattr(train, "train_command", lambda config, **options: seen.append(config))
    assert cli.main(["train", *arguments]) == 0
    return seen[0]


FAMILIES = [("vit_s16", VitConfig), ("mixer_b16", MixerConfig), ("sparse_mlp_b", SparseMlpConfig)]


@pytest.mark.parametrize(("name", "kind"), FAMILIES)
def test_the_section_of_a_model_has_the_fields_of_its_family_and_no_others(name: str, kind: type) -> None:
    more = {"name", "group_images_sparse"} if kind is VitConfig else {"name"}
    assert names(type(ModelConfig(name))) == names(kind) | more
    assert type(model_config(ModelConfig(name))) is kind


@pytest.mark.parametrize("router", ROUTERS)
def test_the_options_of_a_router_are_those_that_no_model_decides(router: str) -> None:
    section = ModelConfig(router=router).router_options
    assert names(type(section)) == names(ROUTERS[router].Options) - {"width", "experts", "tokens", "ids", "images"}
    chosen = model_config(ModelConfig(router=router, experts=2))
    assert isinstance(chosen, VitConfig)
    plain = vit.router_config(replace(chosen, router_options={}))
    assert vit.router_config(chosen) == plain, "the defaults of the section are those of the router"


def test_a_change_of_the_router_changes_the_options() -> None:
    first = ModelConfig(router="softmax_token_choice", router_options={"capacity_factor": 2.0})
    second = first.but(router="softmax_expert_choice")
    assert replace(first, router="softmax_expert_choice") == second
    assert names(type(second.router_options)) != names(type(first.router_options))
    assert asdict(second.router_options)["capacity_factor"] == 2.0
    with pytest.raises(ConfigError, match=r"model\.router_options\.capacity_factor=2\.0: dselect_k does not have"):
        first.but(router="dselect_k")


def test_a_change_of_the_model_keeps_what_is_set() -> None:
    first = ModelConfig(depth=3, classes=7)
    assert first.but(name="mixer_b16") == ModelConfig("mixer_b16", depth=3, classes=7)
    with pytest.raises(ConfigError, match=r"model\.heads=2: mixer_b16 does not have this option; it has name, width, "):
        first.but(heads=2).but(name="mixer_b16")


WRONG_OPTIONS = [
    ("soft_moe", "choices", "7", r"=7: soft_moe does not have this option; it has capacity_factor, rounding, "),
    ("switch", "jitter", "-1", "=-1(.0)?: expected a finite number of at least 0"),
    ("softmax_token_choice", "multiple_of", "1.5", r"='?1\.5'?: expected an integer"),
    ("softmax_token_choice", "batch_priority", "mean", "='mean': expected one of 'none', 'max', 'sum'"),
    ("soft_moe", "normalize", "3", "='?3'?: expected True or False"),
]


@pytest.mark.parametrize(("router", "name", "value", "message"), WRONG_OPTIONS)
def test_wrong_options(tmp_path: Path, router: str, name: str, value: str, message: str) -> None:
    """In Python and in a TOML file; test_nonsense has those of the command line."""
    message = rf"model\.router_options\.{name}{message}"
    text = f"'{value}'" if value.isalpha() else value
    with pytest.raises(ConfigError, match=message):
        ModelConfig(router=router, router_options={name: ast.literal_eval(text)})
    file = tmp_path / "wrong.toml"
    file.write_text(f"[model]\nrouter = '{router}'\n[model.router_options]\n{name} = {text}")
    with pytest.raises(ConfigError, match=rf"wrong\.toml: {message}"):
        read(file)


def test_the_command_line_wins_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the file sets is taken over; options in a file that names no router are those of the router of the command line."""
    assert parse(monkeypatch) == digits()
    file = tmp_path / "c.toml"
    options = "router = 'softmax_token_choice'\n[model.router_options]\nchoices = 2\nrounding = 'round'"
    file.write_text(f"[training]\nsteps = 7\nbatch = 16\n[model]\n{options}")
    words = ("--training.steps", "9", "--optimizer.clip", "None", "--model.router-options.choices", "3")
    config = parse(monkeypatch, *words, "--config", str(file))
    assert (config.training.steps, config.training.batch, config.optimizer.clip) == (9, 16, None)
    assert asdict(config.model.router_options)["choices"] == 3
    assert asdict(config.model.router_options)["rounding"] == "round"
    config = parse(monkeypatch, "--config", str(file), "--router=sinkhorn_token_choice")
    assert config.model.router == "sinkhorn_token_choice"
    assert asdict(config.model.router_options)["choices"] == 2
    assert asdict(config.model.router_options)["importance_weight"] == 0.0, "a default of the other router is not taken"
    assert cli.main(["train", "--config", str(file), "--router", "soft_moe"]) == 2
    file.write_text("[model.router_options]\nchoices = 2")
    config = parse(monkeypatch, "--config", str(file), "--router", "softmax_token_choice")
    assert asdict(config.model.router_options)["choices"] == 2


def test_toml_round_trip(tmp_path: Path) -> None:
    config = replace(Config(), backend="torch", schedule=ScheduleConfig(name="rsqrt", cooldown=5, timescale=7.5))
    config = replace(config, training=TrainingConfig(epochs=2.0), model=ModelConfig(qk_norm=True, depth=3))
    options = {"batch_priority": "none", "choices": 2, "eval_capacity_factor": 2.0}
    config = replace(config, model=replace(config.model, router="softmax_token_choice", router_options=options))
    (tmp_path / "c.toml").write_text(dump(config))
    assert read(tmp_path / "c.toml") == config
    text = dump(replace(config, optimizer=replace(config.optimizer, momentum_dtype=None, decay="head/kernel=3.0")))
    (tmp_path / "c.toml").write_text(f"{text}\n[evaluation.x]\ncapacity_factor = 'none'")
    config = read(tmp_path / "c.toml")
    assert (config.evaluation["x"].capacity_factor, config.optimizer.decay_of(["head", "kernel"])) == (None, 3.0)


def help_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> set[str]:
    """The options, by dotted name, that the help of a command line shows."""
    with pytest.raises(SystemExit) as end:
        cli.main([*arguments, "--help"])
    assert end.value.code == 0
    flags = re.findall(r"^  (?:-h, )?(--.*)$", capsys.readouterr().out, re.MULTILINE)
    words = {word[2:] for flag in flags for word in re.findall(r"--[a-z][\w.-]*", flag)}
    return {word.replace("-", "_") for word in words if ".no-" not in word}


@pytest.mark.parametrize("command", [name for name, command in cli.COMMANDS.items() if "training" in command.module])
def test_every_option_of_a_command_is_described(command: str) -> None:
    module = importlib.import_module(cli.COMMANDS[command].module)
    (kind,) = [each for name, each in vars(module).items() if name == f"{command.title().replace('-', '')}Arguments"]
    sections: Any = {"settings": digits(), "model": digits().model}
    options = list(
        options_of(kind, SimpleNamespace(**{name: sections[name] for name in sections if name in names(kind)}))
    )
    assert options
    assert [option.name for option in options if not (isinstance(option.text, str) and option.text)] == []


def rare(name: str) -> bool:
    """Whether an option is marked as rarely set."""
    section, _, field = name.rpartition(".")
    kind = type(getattr(digits(), section, digits()) if "." not in section else None)
    return bool(getattr(kind, "__dataclass_fields__", {}).get(field) and marks(kind, field).get("rare"))


def test_fields_that_are_gone_are_left_out_of_a_run_with_a_warning(tmp_path: Path) -> None:
    (file := tmp_path / "config.toml").write_text(
        "format = 2\nlog = 'mlflow,a:b'\n[hash]\npath = 'x'\n[data]\ncache = ''"
    )
    with pytest.warns(UserWarning, match="no longer has any effect; remove it") as warned:
        assert read(file).log == "a:b"
    assert [str(each.message).split()[1] for each in warned] == ["log='mlflow'", "hash.path='x'"]


JITTER = "data.brightness data.contrast data.hue data.saturation"
FILES = "data.background data.broken data.path data.resize data.workers"
TARGETS = "data.balance data.cutmix data.label_smoothing data.mixup training.loss"
MOE = "experts router shared_experts round_experts group_images group_tokens expert_init expert_hidden expert_activation expert_bias"


@pytest.mark.parametrize(
    ("change", "on", "off"),
    [
        ({"data.name": "folder"}, FILES, ""),
        ({"data.jitter": 0.5}, JITTER, ""),
        ({"data.randaugment": 2}, "data.magnitude", ""),
        ({"data.crop": "inception"}, "data.crop_area", ""),
        ({"model.moe": "none"}, "", " ".join(f"model.{name}" for name in MOE.split())),
        ({"model.router": "hash"}, "hash.images hash.kind model.codes model.token_ids", ""),
        ({"model.stem": (8,)}, "model.stem_depth", ""),
        ({"model.dtype": "bfloat16"}, "", "model.round_experts"),
        ({"training.loss": "sigmoid", "training.keep_best": "loss"}, "model.head_bias training.patience", ""),
        ({"schedule.name": "rsqrt"}, "schedule.cooldown schedule.timescale", "schedule.end"),
        ({"mesh.expert": 2}, "mesh.transport", ""),
        ({"init": "runs/x"}, "init_skip", ""),
        (
            {"objective": "moco"},
            "moco.blur moco.cosine moco.hidden moco.output moco.solarise moco.temperature",
            TARGETS,
        ),
        ({"objective": "lit", "lit.loss": "sigmoid"}, "lit.bias lit.locked text.width", TARGETS),
        ({"objective": "lit", "lit.tokenizer": "x"}, "lit.end text.depth", TARGETS),
        ({"objective": "lit", "text.moe": "last"}, "text.router text.experts text.group_texts", TARGETS),
    ],
)
def test_which_option_has_an_effect_when(change: dict[str, Any], on: str, off: str) -> None:
    """Each row: what is changed in the default configuration, and options that gain and lose their effect by it."""
    config = digits()
    for name, value in change.items():
        section, _, field = name.rpartition(".")
        part = replace(getattr(config, section), **{field: value}) if section else value
        config = replace(config, **{section or field: part})
    for listed, before in ((on.split(), False), (off.split(), True)):
        assert {name: not no_effect(digits(), name) for name in listed} == dict.fromkeys(listed, before)
        assert {name: not no_effect(config, name) for name in listed} == dict.fromkeys(listed, not before)


def test_help_shows_every_option_but_those_without_effect(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    shown, every = help_of(capsys, "train"), set(configfile.flat(asdict(Config())))
    hidden = {name for name in every if no_effect(digits(), name)}
    hidden |= {f"optimizer.{name}" for name in ("momentum", "nesterov", "decay_rate", "decay_cap", "factored_from")}
    hidden |= {name for name in every if rare(name)}
    assert {"moco.hidden", "lit.scale", "text.width", "data.hue", "schedule.timescale"} < hidden
    assert every - shown == hidden
    for flags in ((), ("--model", "mixer_b16", "--router", "switch"), ("--model", "sparse_mlp_b")):
        found = help_of(capsys, "train", *flags)
        assert len(found - set(SHORT)) <= 97, flags
        assert found <= shown or flags
    assert "model.heads" in shown - help_of(capsys, "train", "--model", "mixer_b16")
    assert "data.hue" in help_of(capsys, "train", "--data.jitter", "1") - shown
    assert "data.resize" in help_of(capsys, "study", "--data", "folder") - shown
    assert "optimizer.nesterov" in help_of(capsys, "train", "--optimizer.name", "sgd") - shown
    for router in ("hash", "dselect_k"):
        options = {f"model.router_options.{name}" for name in names(type(ModelConfig(router=router).router_options))}
        found = help_of(capsys, "train", "--router", router)
        assert {name for name in found if name.startswith("model.router_options.")} == options
        assert ("model.codes" in found) == (router == "hash")


def test_a_backend_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name if name == "torch" else None)
    monkeypatch.delenv("MOESPEC_BACKEND", raising=False)
    assert choose_backend("torch") == ("torch", "")
    assert choose_backend("auto") == ("torch", "the only framework installed")
    with pytest.raises(ConfigError, match=r"backend='jax'.*pip install 'moespec\[jax\]'"):
        choose_backend("jax")
    monkeypatch.setenv("MOESPEC_BACKEND", "numpy")
    assert choose_backend("auto") == ("numpy", "MOESPEC_BACKEND")
    assert choose_backend("torch") == ("torch", "")


SLOW = "jax torch scipy matplotlib jinja2 grain tensorboard moespec.conformance"
"""What takes longer to import than all that the help needs."""


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        ("from moespec import cli\ntry: cli.main(['train', '--help'])\nexcept SystemExit: pass", "jax torch matplotlib scipy"),
        ("import moespec.spec", SLOW),
        ("from moespec.__main__ import main\nmain(['--help'])", SLOW),
        ("import moespec.training.commands.train", "jax torch matplotlib"),
    ],
    ids=["help", "the specification", "the help of all", "training and its report"],
)  # fmt: skip
def test_what_is_not_used_is_not_imported(program: str, absent: str) -> None:
    program += f"\nimport sys; sys.exit(not set({absent.split()}).isdisjoint(sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False).returncode == 0


def test_a_file_says_how_it_is_written() -> None:
    text = dump(Config())
    assert tomllib.loads(text)["format"] == 2
    assert set(tomllib.loads(text)["model"]["router_options"]) <= names(type(Config().model.router_options))


def test_a_file_of_a_model_without_a_router_may_have_a_table_of_no_options(tmp_path: Path) -> None:
    """Which runs wrote when every model had that table."""
    (tmp_path / "c.toml").write_text("format = 2\n[model]\nname = 'mixer_tiny'\ndepth = 3\n[model.router_options]\n")
    assert read(tmp_path / "c.toml").model == ModelConfig("mixer_tiny", depth=3)


def test_list(said: Any) -> None:
    shown = said(["list"])
    assert all(name in shown for name in ("vit_tiny", "sparsity_constrained_expert_choice", "fashion_mnist"))
    shown = said(["list", "routers"])
    for router in ROUTERS.values():
        facts = (router.name, router.source, ", ".join(router.models), router.balances, router.cost, router.drops)
        assert all(fact in shown for fact in facts)
