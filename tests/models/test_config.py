"""Configurations: every field in TOML and on the command line, the command line wins, and mistakes are named."""

import subprocess
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest

from moespec.models import cli, configfile
from moespec.models.config import Config, ModelConfig, RouterOptions, ScheduleConfig, TrainingConfig
from moespec.models.configfile import differences, dump, find_recipe, read, recipes
from moespec.models.datasets import load
from moespec.models.mixer import MixerConfig
from moespec.models.resolve import choose_backend, model_config, resolve, schedule
from moespec.models.sparse_mlp import SparseMlpConfig
from moespec.models.vit import VitConfig
from moespec.spec.errors import ConfigError
from moespec.spec.routers import ROUTERS
from moespec.spec.routing import RouterConfig


def names(kind: type) -> set[str]:
    return {field.name for field in fields(kind)}


def parse(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Config:
    """The configuration that `moespec train` with these arguments would run."""
    seen: list[Config] = []
    from moespec.models import commands

    monkeypatch.setattr(commands, "train_command", lambda config, run, resume: seen.append(config))
    assert cli.main(["train", *arguments]) == 0
    return seen[0]


def test_every_field_of_the_model_and_the_router_can_be_set() -> None:
    assert names(ModelConfig) - {"name"} == names(VitConfig) | names(MixerConfig) | names(SparseMlpConfig)
    assert names(RouterOptions) == names(RouterConfig) - {"width", "experts", "tokens", "ids"}


def test_toml_round_trip(tmp_path: Path) -> None:
    config = replace(Config(), backend="torch", schedule=ScheduleConfig(name="rsqrt", cooldown=5, timescale=7.5))
    config = replace(config, optimizer=replace(config.optimizer, clip=None), model=ModelConfig(qk_norm=True, depth=3))
    config = replace(
        config, model=replace(config.model, router_options=RouterOptions(batch_priority="none", choices=2))
    )
    (tmp_path / "c.toml").write_text(dump(config))
    assert read(tmp_path / "c.toml") == config
    assert Config().optimizer.clip is not None, "so that the None above had to be written"


@pytest.mark.parametrize(
    ("name", "kind"),
    [("vit_tiny", VitConfig), ("mixer_tiny", MixerConfig), ("sparse_mlp_tiny", SparseMlpConfig)],
)
def test_a_resolved_configuration_says_everything(tmp_path: Path, name: str, kind: type) -> None:
    resolved = resolve(replace(Config(), model=ModelConfig(name=name)), load("digits"), "jax")
    left = {key for key, value in configfile._flat(asdict(resolved)).items() if value is None}
    others = {f"model.{key}" for key in names(ModelConfig) - names(kind) - {"name"}}
    others |= {f"model.router_options.{key}" for key in ("slots_per_expert", "eval_capacity_factor")}  # None is a value
    if "model.router_options" in others:
        others |= {f"model.router_options.{key}" for key in names(RouterOptions)} - {"model.router_options"}
    if kind is SparseMlpConfig:
        others.add("model.router_options.choices")  # a field of the model, one for each kind of layer
    assert left == {"schedule.cooldown", "schedule.timescale", "schedule.end", *others} - {"model.router_options"}
    assert isinstance(model_config(resolved.model), kind)
    (tmp_path / "c.toml").write_text(dump(resolved))
    assert resolve(read(tmp_path / "c.toml"), load("digits"), "jax") == resolved
    assert model_config(resolved.model).image_size == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[optimizer]\nweight_decy = 1", r"unknown key 'optimizer\.weight_decy'; near it: optimizer\.weight_decay"),
        ("[modle]\ndepth = 1", "unknown key 'modle'; near it: model"),
        ("[model.router_options]\ncapacity = 1", r"near it: model\.router_options\.capacity_factor"),
        ("[training]\nsteps = 1.5", r"training\.steps=1\.5: expected int"),
        ("[training]\nsteps = true", r"training\.steps=True: expected int"),
        ("[schedule]\npeak = 'high'", r"schedule\.peak='high': expected float"),
        ("[model]\npool = 'max'", r"model\.pool='max': expected one of 'gap', 'token', 'map' or 'none'"),
        ("data = 'digits'", r"data='digits': expected a table, \[data\]"),
        ("[data", "not a TOML file"),
        ("[training]\nbatch = 0", r"training\.batch=0: expected at least 1"),
        ("[training]\nbatch = 6\naccumulate = 4", r"accumulate=4 does not divide training\.batch=6"),
    ],
)
def test_mistakes_in_toml(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "wrong.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read(tmp_path / "wrong.toml")


def test_the_command_line_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.toml").write_text("[training]\nsteps = 7\nbatch = 16\n[model]\nrouter = 'sinkhorn_expert_choice'")
    config = parse(
        monkeypatch, "--training.steps", "9", "--config", str(tmp_path / "c.toml"), "--optimizer.clip", "None"
    )
    assert (config.training.steps, config.training.batch) == (9, 16)
    assert config.model.router == "sinkhorn_expert_choice"
    assert config.optimizer.clip is None
    assert parse(monkeypatch) == Config()
    assert parse(monkeypatch, "--router", "softmax_token_choice").model.router == "softmax_token_choice"


def test_every_field_is_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["train", "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    for key in configfile._flat(asdict(Config())):
        assert f"--{key.replace('_', '-')}" in shown, key
    assert f"default: {TrainingConfig().steps}" in shown


def test_resume_takes_the_configuration_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = replace(Config(), training=TrainingConfig(steps=3))
    (tmp_path / "config.toml").write_text(dump(saved))
    assert parse(monkeypatch, "--run", str(tmp_path), "--resume") == saved
    assert parse(monkeypatch, "--run", str(tmp_path)) == Config()


def test_recipes() -> None:
    assert {"digits", "fashion_mnist"} <= set(recipes())
    for name, comment in recipes().items():
        read(find_recipe(name))
        assert len(comment) > 20
    assert read(find_recipe("digits")) == Config(), "the defaults are this recipe"
    with pytest.raises(ConfigError, match="neither a file nor one of the recipes digits"):
        find_recipe("cifar")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (replace(Config(), model=ModelConfig(image_size=16)), r"model\.image_size=16: the data set 'digits' has 8"),
        (replace(Config(), model=ModelConfig(classes=11)), r"model\.classes=11: the data set 'digits' has 10"),
        (replace(Config(), model=ModelConfig(patch_size=3)), "patch_size=3 does not divide"),
        (replace(Config(), model=ModelConfig(name="vit_xl")), "vit_xl"),
        (replace(Config(), model=ModelConfig(name="mixer_xl16")), "mixer_xl16"),
        (replace(Config(), model=ModelConfig(name="resnet50")), "name='resnet50': expected one of vit_<size>"),
        (
            replace(Config(), model=ModelConfig(name="mixer_tiny", router="soft_moe")),
            "router='soft_moe' is not a field",
        ),
        (
            replace(Config(), model=ModelConfig(name="mixer_tiny", router_options=RouterOptions(choices=2))),
            r"router_options=\{'choices': 2\} is not a field",
        ),
        (
            replace(Config(), model=ModelConfig(name="sparse_mlp_tiny", router="soft_moe")),
            "router='soft_moe': expected one of importance_score, softmax_token_choice",
        ),
        (
            replace(Config(), model=ModelConfig(name="sparse_mlp_tiny", router_options=RouterOptions(choices=2))),
            r"router_options\['choices'\]=2",
        ),
        (replace(Config(), model=ModelConfig(name="sparse_mlp_tiny", group_size=100)), "group_size=100"),
        (replace(Config(), model=ModelConfig(router="soft")), "'soft'"),
        (replace(Config(), model=ModelConfig(group_images=3)), "group_images=3"),
        (replace(Config(), schedule=ScheduleConfig(cooldown=3)), "cooldown=3 does not concern the schedule 'cosine'"),
        (replace(Config(), schedule=ScheduleConfig(warmup=1500)), "warmup=1500"),
    ],
)
def test_configurations_without_meaning(config: Config, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(config, load("digits"), "jax")


def test_schedule() -> None:
    rate = schedule(replace(Config(), schedule=ScheduleConfig(name="linear", peak=1.0, warmup=2, end=0.5)))
    assert [rate(0), rate(1), rate(2)] == [0.0, 0.5, 1.0]


def test_differences() -> None:
    other = replace(Config(), model=ModelConfig(depth=3))
    assert differences(Config(), other) == {"model.depth": (None, 3)}


def test_choice_of_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"jax", "torch"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name if name in installed else None)
    monkeypatch.delenv("MOESPEC_BACKEND", raising=False)
    assert choose_backend("torch") == ("torch", "")
    assert choose_backend("auto")[0] == "jax"
    installed.remove("jax")
    assert choose_backend("auto") == ("torch", "the only framework installed")
    with pytest.raises(ConfigError, match=r"backend='jax'.*pip install 'moespec\[jax\]'"):
        choose_backend("jax")
    monkeypatch.setenv("MOESPEC_BACKEND", "numpy")
    assert choose_backend("auto") == ("numpy", "MOESPEC_BACKEND")
    assert choose_backend("torch") == ("torch", "")
    monkeypatch.setenv("MOESPEC_BACKEND", "tensorflow")
    with pytest.raises(ConfigError, match="MOESPEC_BACKEND='tensorflow'"):
        choose_backend("auto")
    monkeypatch.delenv("MOESPEC_BACKEND")
    installed.clear()
    with pytest.raises(ConfigError, match="neither jax nor torch is installed"):
        choose_backend("auto")


def test_help_imports_no_framework() -> None:
    program = (
        "import sys; from moespec.models import cli\n"
        "try: cli.main(['train', '--help'])\nexcept SystemExit: pass\n"
        "print({'jax', 'torch', 'matplotlib'} & set(sys.modules))"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert output.stdout.strip().endswith("set()")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--config", "nowhere.toml"], "nowhere.toml"),
        (["train", "--data", "idx"], "data.path is not set"),
        (["train", "--data", "idx", "--data.path", "/nowhere"], "/nowhere: there is no such folder"),
        (["train", "--router", "nobody"], "nobody"),
        (["evaluate", "/nowhere"], "there is no run"),
        (["inspect", "/nowhere", "--image", "x.png"], "there is no run"),
        (["trian"], "'trian' is not a command"),
    ],
)
def test_one_clear_line_and_status_2(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown
    assert not list(tmp_path.iterdir()), "nothing was written"


def test_a_value_out_of_range_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["train", "--data.crop-padding", "-1"])
    assert end.value.code == 2
    assert "data.crop_padding=-1: expected at least 0" in capsys.readouterr().err


TITLES = ("source", "balances", "cost", "drops")


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    shown = capsys.readouterr().out
    for name in ("vit_tiny", "vit_s16", "sparsity_constrained_expert_choice", "digits", "fashion_mnist"):
        assert name in shown
    assert cli.main(["list", "routers"]) == 0
    shown = capsys.readouterr().out
    for router in ROUTERS.values():
        facts = (router.source, router.balances, router.cost, router.drops)
        described = "".join(f"  {title:9} {text}\n" for title, text in zip(TITLES, facts, strict=True))
        assert all(facts)
        assert f"{router.name}\n{described}" in shown
