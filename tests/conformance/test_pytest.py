"""The suite as tests of pytest: what fails, what is skipped and why, and what is expected to fail."""

import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from committed import BY_ID

from moespec.conformance import pytest as conformance
from moespec.conformance import suite
from moespec.spec import ConfigError

NUMPY = {"target": "moespec.backends.numpy", "dtypes": ["float64"]}

TARGET = """
from moespec.backends.numpy import *
from moespec.backends import numpy

not_offered = {"token_choice/keep*": "every choice is made"}


def z_loss(logits):
    return 2 * numpy.z_loss(logits)


def token_choice(scores, **options):
    if scores.shape[1] == 1:
        raise RuntimeError("a token is alone")
    return numpy.token_choice(scores, **options)
"""

TESTS = """
import moespec.conformance.pytest as conformance

reasons = {"z_loss/l*": "twice", "token_choice/tied-float64": "another order", "z_loss/*-bfloat16": "none", "z_loss/values": "second"}


@conformance.parametrize(
    target="double", algorithms=["z_loss", "token_choice"], dtypes=["f64", "bf16"], expected_failures=reasons, require_suite="0",
    classes=["values", "ties", "overflow"],
)
def test_double(case):
    case.check()
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What came of each test of a target that is wrong in z_loss: its state, and the text of it."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "double.py").write_text(TARGET)
    (folder / "test_double.py").write_text(TESTS)
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--junit-xml", "junit.xml", "test_double.py")
    process = subprocess.run((sys.executable, *command), cwd=folder, capture_output=True, text=True, check=False)
    assert process.returncode == 1, process.stdout + process.stderr
    assert "Traceback" not in process.stdout
    states = {}
    for test in ElementTree.parse(folder / "junit.xml").iter("testcase"):
        inner = next(iter(test), None)
        state = "passed" if inner is None else inner.get("type", inner.tag).removeprefix("pytest.")
        text = "" if inner is None else f"{inner.get('message')}\n{inner.text}"
        states[test.get("name").removeprefix("test_double[").removesuffix("]")] = (state, text)
    return states


def test_there_is_a_test_for_each_case_and_dtype_in_one_order(outcomes):
    ids = [id for id in sorted(suite.ids()) if id.split("/")[0] in ("z_loss", "token_choice")]
    names = [f"{id}-{dtype}" for id in ids for dtype in ("float64", "bfloat16")]
    smooth = {id for id in ids if BY_ID[id].gradients}
    chosen = [name for name in names if name.rpartition("-")[0] not in smooth and "negative_" not in name]
    chosen += [name for name in names if name.startswith("token_choice/negative_scores")]
    assert [name for name in names if name in outcomes] == list(outcomes)
    assert set(chosen) == set(outcomes)


SHOW = "moespec conformance show z_loss/one_expert --target double --dtype float64"
OUTCOMES = {
    "token_choice/combine_scores-float64": ("passed", ""),
    "z_loss/one_expert-float64": ("failure", rf"(?s)first at z_loss/loss.*{SHOW}"),
    "token_choice/one_token-float64": ("failure", r"(?s)RuntimeError: a token is alone.*double\.py"),
    "token_choice/tied-float64": ("failure", "passes, and token_choice/tied-float64 is waived: another order"),
    "z_loss/large-float64": ("xfail", r"^twice \(first at z_loss/loss: "),
    "token_choice/keep-float64": ("skip", "not implemented: declared as not offered: every choice is made"),
    "token_choice/tied-bfloat16": ("skip", "bfloat16 is not supported: ConfigError"),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_an_outcome_is_the_diagnosis_of_the_suite(outcomes, name):
    assert outcomes[name][0] == OUTCOMES[name][0]
    assert re.search(OUTCOMES[name][1], outcomes[name][1])


def test_an_adapter(target):
    name = target("kernel", "def layer(x, params, options):\n    raise NotImplementedError('nothing')\n")
    mark = conformance.parametrize(adapter=name, algorithms=["switch"], classes=["values"], dtypes=["f32"])
    case = mark.args[1][0].values[0]
    with pytest.raises(pytest.skip.Exception, match="not implemented"):
        case.check()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "target=None, adapter=None: expected exactly one of them"),
        ({"target": "no_such_module"}, "target 'no_such_module': cannot be imported"),
        ({"adapter": "json"}, "adapter 'json': expected a method layer(x, params, options)"),
        ({**NUMPY, "algorithms": ["token_choices"]}, "algorithms: unknown 'token_choices'"),
        ({**NUMPY, "algorithms": "token_choice"}, "algorithms='token_choice': expected a list"),
        ({**NUMPY, "algorithms": ["z_loss"], "classes": ["models"]}, "no case matches all of them"),
        ({**NUMPY, "expected_failures": {"z_loss/none*": "x"}}, "expected_failures: no case matches 'z_loss/none*'"),
        ({**NUMPY, "require_suite": "99.1"}, "suite: version '99.1' is required, but moespec "),
    ],
)
def test_what_is_wrong_is_named(options, said):
    with pytest.raises(ConfigError) as raised:
        conformance.parametrize(**options)
    assert said in str(raised.value)
