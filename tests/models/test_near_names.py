"""Whatever is looked up by name: a name that is nearly right is answered with the right one."""

import pickle

import pytest

from moespec import backends, models, spec
from moespec.__main__ import main
from moespec.backends import jax, numpy, torch
from moespec.backends.torch import nn
from moespec.spec import routers

TABLES = {
    **{
        f"ROUTERS of {B.__name__}": (B.ROUTERS, "softmax", "softmax_token_choice")
        for B in (spec, routers, numpy, jax, torch)
    },
    "LEDGER": (spec.LEDGER, "TC4", "TC-4"),
    "ALGORITHMS": (spec.ALGORITHMS, "expert-choice", "expert_choice"),
}


@pytest.mark.parametrize("table", TABLES)
def test_a_table_is_a_dictionary_and_its_error_says_what_is_near(table):
    names, wrong, right = TABLES[table]
    with pytest.raises(KeyError, match=f"'{wrong}': there is no such .*; near it: .*{right}"):
        names[wrong]
    assert right in names
    assert wrong not in names
    assert names.get(wrong) is None
    assert type(pickle.loads(pickle.dumps(type(names)("thing", {"one": 1})))) is type(names)


@pytest.mark.parametrize("module", [spec, backends, numpy, jax, torch])
def test_python_can_suggest_an_attribute(module):
    """It does so where an exception ends a program, from these two."""
    with pytest.raises(AttributeError) as caught:
        module.token_choise  # noqa: B018
    assert caught.value.name == "token_choise"
    assert "token_choice" in dir(caught.value.obj)


def test_the_functions_that_take_a_name():
    with pytest.raises(spec.ConfigError, match="The nearest: vit_s16"):
        models.create("vits16")
    with pytest.raises(spec.ConfigError, match=r"near it: soft_moe$"):
        nn.MoE(4, 8, experts=2, tokens=4, router="sotf_moe")


@pytest.mark.parametrize(
    ("line", "near"),
    [
        ("trian", "train"),
        ("train --router sotf_moe", "soft_moe"),
        ("train --model vit_tin", "vit_tiny"),
        ("train --config digit", "digits"),
        ("train --trainig.steps 2", "--training.steps"),
        ("ledger expert-choise", "expert_choice"),
        ("ledger softmx", "softmax_affinity"),
        ("study --routers soft_moe --routers dens switch --out x", "dense"),
        ("conformance rnu", "run"),
        ("conformance new torhc x", "torch"),
        ("conformance run --target moespec.backends.numpy --algorithm token_choise", "token_choice"),
        ("conformance run --target moespec.backends.numpy --case token_choice/tide", "token_choice/tied"),
        ("conformance show token_choice/tide", "token_choice/tied"),
    ],
)
def test_the_command_line_says_what_is_near(line, near, capsys):
    try:
        status = main(line.split())
    except SystemExit as stop:
        status = stop.code
    (text,) = capsys.readouterr().err.splitlines()
    assert status == 2
    assert near in text.partition("near it: ")[2].split(", ")
