"""The command line and targets made of text; a copy of a few vectors, with a `suite.json` of their own, to be damaged."""

import shutil
import sys

import pytest

from moespec.conformance import suite
from moespec.conformance.__main__ import main

KEPT = ("token_choice/tied", "token_choice/gradient", "token_choice/negative_nan", "soft_routing/values")


@pytest.fixture
def vectors(tmp_path):
    folder = tmp_path / "vectors"
    for id in KEPT:
        for suffix in (".json", ".safetensors"):
            source = suite.VECTORS / f"{id}{suffix}"
            if source.exists():
                (folder / id).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, folder / f"{id}{suffix}")
    commit(folder)
    return folder


def commit(folder):
    """Makes the `suite.json` of the vectors as they are."""
    (folder.parent / "suite.json").write_text(suite.suite_text(folder))


@pytest.fixture(name="commit")
def commit_(vectors):
    return lambda: commit(vectors)


@pytest.fixture(scope="session")
def count():
    """The number of cases of an algorithm, of all kinds or of some."""
    cases = suite.load()

    def count_(algorithm, *kinds):
        return sum(case.algorithm == algorithm and (not kinds or case.kind in kinds) for case in cases)

    return count_


@pytest.fixture
def run(capsys):
    """Runs the command line; returns the exit status, what it printed, and what it said of errors."""

    def run_(*arguments):
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as stopped:
            if isinstance(stopped.code, str):
                print(stopped.code, file=sys.stderr)
            status = stopped.code if isinstance(stopped.code, int) else 1
        printed = capsys.readouterr()
        assert "Traceback" not in printed.out + printed.err
        return status, printed.out, printed.err

    return run_


@pytest.fixture
def target(tmp_path, monkeypatch):
    """Makes a module of some text and returns its name."""
    monkeypatch.syspath_prepend(tmp_path)

    def target_(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return target_
