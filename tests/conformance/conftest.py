"""The command line and targets made of text; a copy of a few vectors, with a `suite.json` of their own, to be damaged."""

import shutil
import sys

import pytest
from committed import CASES, commit

from moespec.conformance import suite
from moespec.conformance.__main__ import main

KEPT = ("token_choice/tied", "token_choice/gradient", "z_loss/negative_value", "soft_routing/values")
OVER_NUMPY = "from moespec.backends.numpy import *\nfrom moespec.backends import numpy\n"


def copied(folder, ids):
    """A copy of some vectors, with a `suite.json`."""
    for id in ids:
        (folder / id).parent.mkdir(parents=True, exist_ok=True)
        for path in suite.VECTORS.glob(f"{id}.*"):
            shutil.copy(path, (folder / id).parent)
    commit(folder)
    return folder


@pytest.fixture
def vectors(tmp_path):
    return copied(tmp_path / "vectors", KEPT)


@pytest.fixture(name="commit")
def commit_(vectors):
    return lambda: commit(vectors)


@pytest.fixture(scope="session", name="copied")
def copied_():
    """Copies some vectors, with a `suite.json`, into a folder."""
    return copied


@pytest.fixture
def run(capsys, monkeypatch):
    """Runs the command line; returns the exit status, what it printed, and its errors. It has read the suite already."""

    def load(folder, only=lambda id: True):
        if folder != suite.VECTORS:
            return suite.load(folder, only)
        return [case for case in CASES if only(case.id)]

    monkeypatch.setattr("moespec.conformance.commandline.commands.load", load)

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
        for module in [each for each in sys.modules if each.partition(".")[0] == name]:
            del sys.modules[module]  # of another test
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return target_


@pytest.fixture
def over_numpy(target):
    """Makes a module that is the NumPy backend with what some text replaces, and returns its name."""
    return lambda name, text: target(name, OVER_NUMPY + text)
