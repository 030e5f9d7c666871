"""`moespec conformance`: what it prints, what it reads, and its exit status."""

import json
import shlex

import pytest
from committed import CASES, commit, counted, of

from moespec.conformance import suite
from moespec.conformance.commandline.arguments import parser, spread

NUMPY = ("--target", "moespec.backends.numpy")
Z_LOSS = ("--dtype", "float64", "--algorithm", "z_loss")


def test_list_has_every_case(run):
    status, printed, _ = run("list")
    lines = printed.splitlines()
    assert status == 0
    assert [line.split()[0] for line in lines] == [case.id for case in CASES]
    assert any(line.split()[:2] == ["token_choice/tied", "tie"] and line.endswith(".") for line in lines)


def test_show_prints_the_vector(run):
    status, printed, _ = run("show", "token_choice/tied")
    assert status == 0
    assert json.loads(printed) == json.loads((suite.VECTORS / "token_choice/tied.json").read_text())


def test_list_and_show_read_only_what_they_show(run, vectors, monkeypatch):
    """No vector of another case is opened, and of `list` no array."""
    opened, read = [], suite.read
    monkeypatch.setattr(suite, "read", lambda path: opened.append(path) or read(path))
    assert run("show", "token_choice/tied", *NUMPY, "--vectors", vectors)[0] == 0
    assert {path for path in opened if path.parent.parent == vectors} == {vectors / "token_choice/tied.json"}
    monkeypatch.setattr(suite, "read", None)
    for path in vectors.rglob("*.safetensors"):
        path.write_bytes(b"not read")
    assert len(run("list", "--vectors", vectors)[1].splitlines()) == 4


RUN = "run --target moespec.backends.numpy "
USAGE = {
    "": "moespec conformance: the following arguments are required: command",
    "show token_choice/nothing": "unknown case 'token_choice/nothing'",
    "show z_loss/values --files . --fresh 7": "--fresh: cannot be combined with --files, which needs the committed",
    "show token_choice/tied --target json": "--target 'json': ",
    "check out --require-suite 99": "suite: version '99' is required, but moespec ",
    "run": "--target",
    "run --target no_such_module": "--target 'no_such_module': ",
    "run --adapter no_such_module": "--adapter 'no_such_module': cannot be imported: ModuleNotFoundError",
    "run --adapter math:nothing": "--adapter 'math:nothing': the module 'math' has no 'nothing'",
    "run --adapter math:pi": "--adapter 'math:pi': expected a method layer(x, params, options)",
    "run --adapter json --size large": "--size large: needs --fresh SEED",
    RUN + "--dtype f8": "moespec conformance run: --dtype: ",
    RUN + "--algorithm hashing": "moespec conformance run: --algorithm: ",
    RUN + "--case z_loss/none*": "--case: no case matches 'z_loss/none*'; `list` prints all cases",
    RUN + "--junit-xml nowhere/x.xml": "--junit-xml='nowhere/x.xml': the folder 'nowhere' does not exist",
    RUN + "--nonsense": "unrecognized arguments: --nonsense",
    RUN + "tests": "unrecognized arguments: tests; use --case to name them",
    RUN + "-n many": "argument -n/--numprocesses: ",
    RUN + "-k '(('": "Wrong expression passed to '-k': ((",
    RUN + "--fresh=-1": "moespec conformance run: --fresh: '-1': expected a non-negative integer",
    RUN + "--waivers none.toml": "none.toml: cannot be read (No such file",
}


@pytest.mark.parametrize("words", USAGE)
def test_wrong_usage_is_one_line(run, words):
    status, printed, error = run(*shlex.split(words))
    assert status == 2
    assert not printed or words.startswith("show")
    assert USAGE[words] in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("run --target x --algorithm z_loss switch -k z", ["z_loss", "switch"]),
        ("run --target x --algorithm z_loss,base --algorithm=switch", ["z_loss", "base", "switch"]),
        ("run --target x --dtype f32 --dtype f32", ["float32"]),
        ("show --mode eager strided z_loss/equal", ["eager", "strided"]),
    ],
)
def test_lists_take_words_after_one_option_commas_and_the_option_again(words, expected):
    assert expected in vars(parser("").parse_known_args([*spread(words.split())])[0]).values()


def test_a_target_that_cannot_be_imported(run, target):
    name = target("broken", "import sys; sys.exit(0)")
    status, printed, said = run("run", "--target", name)
    assert (status, printed) == (2, "")
    assert said.startswith(f"--target {name!r}: cannot be imported: ")


def test_a_target_that_promises_to_check_values_must(run, over_numpy):
    text = (
        "def z_loss(logits):\n"
        "    return numpy.z_loss(numpy.from_numpy(__import__('numpy').nan_to_num(logits), 'float64'))\n"
    )
    assert run("run", "--target", over_numpy("promising", text), *Z_LOSS)[0] == 1
    status, printed, _ = run("run", "--target", over_numpy("silent", text + "checks_values = False\n"), *Z_LOSS)
    assert status == 0
    assert "1 skipped, float64 eager: unchecked" in printed


def test_a_folder_without_vectors_fails(run, tmp_path):
    (tmp_path / "vectors").mkdir()
    commit(tmp_path / "vectors")
    status, printed, _ = run("run", *NUMPY, "--dtype", "f64", "--vectors", tmp_path / "vectors")
    assert status == 1
    assert printed.splitlines() == ["no case was run", "0 passed, 0 failed, 0 skipped; 0 of 0 cases passed"]
    status, _, said = run("run", *NUMPY, "--vectors", tmp_path / "elsewhere/vectors")
    assert status == 2
    assert "suite.json" in said


def test_a_target_that_raises_is_an_error(run, over_numpy):
    name = over_numpy("raising", "def z_loss(logits):\n    raise RuntimeError('no kernel for this')\n")
    status, printed, _ = run("run", "--target", name, *Z_LOSS)
    assert status == 1
    (line,) = [line for line in printed.splitlines() if line.startswith("ERROR z_loss/")]
    count = len(of("z_loss")) - len(of("z_loss", kinds=["negative"]))
    assert line.endswith(f" [float64 eager] first at z_loss and {count - 1} more")
    assert printed.count("    RuntimeError: no kernel for this\n") == 1
    assert printed.count('raising.py", line 4, in z_loss\n') == 1
    assert "target.py" not in printed  # no line of the suite


def test_failures_are_cut_but_for_all(run, over_numpy):
    name = over_numpy(
        "negated", "def token_choice(scores, **options):\n    return numpy.token_choice(-scores, **options)\n"
    )
    options = ("run", "--target", name, "--dtype", "f64", "--algorithm", "token_choice", "--class", "values,ties")
    few, everything = run(*options)[1], run(*options, "--all")[1]
    count = sum(line.startswith("FAIL ") for line in everything.splitlines())
    assert sum(line.startswith("FAIL ") for line in few.splitlines()) == 5 < count
    assert f"token_choice: {count - 5} more failures; print all with --all" in few
    assert "more failures" not in everything


def test_cases_are_chosen_by_class(run):
    printed = run("run", *NUMPY, "--dtype", "f64", "--algorithm", "token_choice", "--class", "ties,errors")[1]
    chosen = of("token_choice", kinds=["negative", "tie", "near_tie"])
    assert counted(printed) == f"{len(chosen)} passed, 0 failed, 0 skipped"
    assert {suite.class_of(case.id) for case in CASES} == {*suite.CLASSES}
    assert {suite.class_of(case.id) for case in of("vit")} == {"models", "training"}


UNSTABLE = """
import numpy as np
def expert_choice(scores, *, capacity, combine_scores=None, drop_zero=False):
    found = numpy.expert_choice(scores, capacity=capacity, combine_scores=combine_scores, drop_zero=drop_zero)
    token = np.argsort(-scores[:, ::-1], axis=1, kind="stable").swapaxes(1, 2)[:, :, :capacity]
    token = scores.shape[1] - 1 - token
    weight = np.take_along_axis((scores if combine_scores is None else combine_scores).swapaxes(1, 2), token, axis=2)
    return found._replace(token=token, weight=weight * FACTOR)
"""


def test_another_order_of_equal_scores_is_a_verdict_and_a_failure(run, over_numpy):
    options = ("--dtype", "f64", "--algorithm", "expert_choice", "--class", "ties", "--all")
    status, printed, _ = run("run", "--target", over_numpy("unstable", UNSTABLE.replace("FACTOR", "1")), *options)
    assert status == 1
    assert "expert_choice: differs only in tie-breaking (expert_choice/" in printed
    (tied,) = [n for n, line in enumerate(printed.splitlines()) if line.startswith("FAIL expert_choice/tied ")]
    assert printed.splitlines()[tied + 1].startswith("    differs only in tie-breaking. ")
    wrong = run("run", "--target", over_numpy("unstable_wrong", UNSTABLE.replace("FACTOR", "1.5")), *options)[1]
    assert "differs only in tie-breaking" not in wrong.split("FAIL ", 1)[1]


SHAKY = """
from itertools import count
calls = count()
def z_loss(logits):
    return numpy.z_loss(logits) * (1 + 2.0**-52 * (next(calls) % 2))
"""


def test_two_calls_must_return_the_same_bits(run, over_numpy):
    options = ("run", "--target", over_numpy("shaky", SHAKY), *Z_LOSS, "--case", "z_loss/values")
    assert run(*options)[0] == 0
    status, printed, _ = run(*options, "--repeat")
    assert status == 1
    assert "    not repeatable: 1 of 1 entries differ in the second call\n" in printed
    assert "--repeat" in next(line for line in printed.splitlines() if "show z_loss/" in line)
    assert run("run", *NUMPY, *Z_LOSS, "--repeat")[0] == 0
