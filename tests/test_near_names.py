"""Whatever is looked up by name: a name that is nearly right is answered with the right one."""

import pytest

from moespec import backends, spec
from moespec.__main__ import main
from moespec.backends import numpy

TABLES = [(B.ROUTERS, "softmax", "softmax_token_choice") for B in (spec, backends, numpy)]
TABLES += [(spec.LEDGER, "TC4", "TC-4"), (spec.ALGORITHMS, "expert-choice", "expert_choice")]
LINES = {
    "trian": "train",
    "train --router sotf_moe": "soft_moe",
    "train --config digit": "digits",
    "study --routers soft_moe --routers dens switch --out x": "dense",
    "ledger expert-choise": "expert_choice",
    "ledger softmx": "softmax_affinity",
    "conformance rnu": "run",
    "conformance new torhc x": "torch",
    "conformance run --target moespec.backends.numpy --algorithm z_loss token_choise": "token_choice",
    "conformance show token_choice/tide": "token_choice/tied",
}


@pytest.mark.parametrize(("table", "wrong", "right"), TABLES)
def test_a_table_stays_a_dictionary(table, wrong, right):
    with pytest.raises(KeyError, match=f"'{wrong}' is not in this table; did you mean .*{right}"):
        table[wrong]
    assert (wrong in table, table.get(wrong), right in table) == (False, None, True)


@pytest.mark.parametrize("line", LINES)
def test_the_command_line(line, capsys):
    try:
        status = main(line.split())
    except SystemExit as stop:  # of the suite's parser
        status = stop.code
    (text,) = capsys.readouterr().err.splitlines()
    assert (status, LINES[line] in text.partition("did you mean ")[2].strip("?").split(", ")) == (2, True)
