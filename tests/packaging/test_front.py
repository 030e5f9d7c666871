"""The front door: the package `moespec` itself, and its one command."""

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from absent import run_without

import moespec
from moespec import cli
from moespec.__main__ import main
from moespec.version import version as version_of


def test_the_version_is_that_of_the_installation(capsys):
    assert moespec.__version__ == version("moespec")
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"moespec {version('moespec')}\n"
    assert version_of("moespec-not-installed") == "unknown"


def test_packages_are_imported_when_they_are_used():
    program = """
        import sys, moespec
        assert not {name for name in sys.modules if name.startswith("moespec.")} | {"numpy"} & set(sys.modules)
        assert moespec.spec.expert_capacity(196, 32, 1.0) == 7
        assert "moespec.models" not in sys.modules
        assert moespec.models.list_models() and "moespec.backends.numpy" not in sys.modules
        assert moespec.models.create("vit_tiny").backend.name == "numpy"
    """
    environment = {**os.environ, "MOESPEC_BACKEND": "numpy"}
    subprocess.run([sys.executable, "-c", program.replace("\n        ", "\n")], check=True, env=environment)


@pytest.mark.parametrize("name", [name for name, command in cli.COMMANDS.items() if command.extra])
def test_a_missing_extra_is_one_line_that_names_the_installation(name, monkeypatch, capsys):
    extra = cli.COMMANDS[name].extra
    package = cli.EXTRAS[extra][0]
    monkeypatch.setattr(cli, "find_spec", lambda name: None if name == package else name)
    assert main([name, "--help"]) == 2
    assert capsys.readouterr().err == f"moespec: moespec {name} needs {package}: pip install 'moespec[{extra}]'\n"


def test_the_packages_of_the_extras_are_those_of_the_distribution():
    """By the names under which they are imported, which of three are others."""
    names = {"pillow": "PIL", "tomli-w": "tomli_w", "pytest-xdist": "xdist"}
    extras = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for extra in ("train", "conformance"):
        needed = [line.partition(">")[0] for line in extras[extra]]
        assert {names.get(name, name) for name in needed} == set(cli.EXTRAS[extra])


def test_the_ledger_needs_no_extra():
    absent = [*cli.EXTRAS["train"], *cli.EXTRAS["conformance"], "jax", "torch"]
    program = "from moespec import cli; import sys; sys.exit(cli.main(['ledger', 'gshard']) or cli.main(['--help']))"
    result = run_without(absent, program)
    assert (result.returncode, result.stderr) == (0, "")


def test_loading_a_run_names_the_extra():
    result = run_without(["PIL"], "from moespec import training; training.load('runs/x')")
    assert result.stderr.endswith("ConfigError: load needs PIL: pip install 'moespec[train]'\n")


SCRIPT = "import sys; sys.path.remove(''); from moespec.__main__ import main; sys.exit(main())"  # as it starts


NAMES = ("pytest", "_pytest", "xdist", "execnet", "numpy", "json", "tqdm", "conftest", "sitecustomize")
STARTS = [
    (("-c", SCRIPT, "conformance"), ("-n", "1"), (*NAMES, "contextlib", "signal", "moespec")),
    (("-P", "-m", "moespec.conformance"), (), (*NAMES, "contextlib", "signal", "moespec")),
    (("-m", "moespec.conformance"), (), NAMES),  # before which Python itself imports from there
]
"""How the suite is started, options, and modules that lie beside the target."""


@pytest.mark.parametrize(("start", "more", "names"), STARTS)
def test_a_target_may_lie_in_the_current_folder(start, more, names, tmp_path):
    """The suite imports nothing else from there: what has the name of one of its packages would end it with status 0."""
    target = "from moespec.backends.numpy import *\nfrom moespec.backends.numpy import from_numpy, to_numpy\n"
    (tmp_path / "mine.py").write_text(target)
    for name in names:
        (tmp_path / f"{name}.py").write_text("print('12 passed, 0 failed'); import os; os._exit(0)")
    command = [*start, "run", "--target", "mine", "--dtype", "f64", "--algorithm", "capacity", *more]
    result = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"\n(\d+) passed, 0 failed, 0 skipped; \1 of \1 cases passed\n$", result.stdout)


def test_an_interrupted_check_says_nothing_of_training(monkeypatch, capsys):
    def interrupted(arguments: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("moespec.conformance.__main__.main", interrupted)
    assert main(["conformance", "list"]) == 130
    assert capsys.readouterr().err == "moespec: interrupted\n"


@pytest.mark.parametrize("arguments", ["moespec --help", "moespec ledger", "moespec.conformance list"])
def test_a_reader_that_leaves_is_no_error(arguments):
    """As `moespec ... | head` does."""
    command = [sys.executable, "-m", *arguments.split()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


@pytest.mark.parametrize(
    ("word", "program", "before", "after"),
    [
        ("train", "/bin/moespec", None, "glibc.malloc.hugetlb=1"),
        ("launch", "moespec/__main__.py", "glibc.malloc.check=1", "glibc.malloc.check=1:glibc.malloc.hugetlb=1"),
        ("train", "/bin/moespec", "glibc.malloc.hugetlb=0", None),
        ("train", "/bin/their_program", None, None),
        ("count", "/bin/moespec", None, None),
    ],
)
def test_training_restarts_once_with_large_pages(word, program, before, after, monkeypatch):
    started = []
    monkeypatch.setattr(os, "execv", lambda *arguments: started.append((*arguments, os.environ["GLIBC_TUNABLES"])))
    monkeypatch.setattr(cli, "main", lambda arguments: 0)
    monkeypatch.setattr(sys, "argv", [program, word])
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if before is not None:
        monkeypatch.setenv("GLIBC_TUNABLES", before)
    assert main() == 0
    expected = [] if after is None else [(sys.executable, [sys.executable, *sys.orig_argv[1:]], after)]
    assert started == expected
