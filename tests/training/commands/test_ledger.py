"""The command `moespec ledger`: what concerns an algorithm, who does what, where two implementations differ."""

import json
import textwrap

import pytest

from moespec.spec.errors import ConfigError
from moespec.spec.implementations import places, positions, table
from moespec.spec.implementations.entries import algorithm_of, entries_of
from moespec.spec.implementations.positions import Measured, find, seen
from moespec.spec.ledger import entries
from moespec.training.commands import ledger as command

FEW = """
XX-1: Is it round?
    Reading: yes.
        By: the paper, section 2; google-research/vmoe, vmoe/moe.py, round.
    Alternative b: no.
        By: tensorflow/mesh, moe.py, _square.

XX-2: Is it green?
    Reading: yes.
        By: tensorflow/mesh, moe.py, _green.
    Alternative b: no.

Often done differently

XX-3: Is it heavy?
    Reading: yes.
        By: the paper, section 3; tensorflow/mesh, moe.py, _heavy.
    Alternative b: no.
        By: google-research/vmoe, vmoe/moe.py, light; google-research/vmoe, vmoe/other.py, lighter.
    Alternative c: half.
        By: google-research/vmoe, vmoe/half.py, half.
"""
PLACES = {"google-research/vmoe": {"commit": "c0ffee", "lines": {"vmoe/moe.py": {"round": 7, "light": 12}}}}
PACKAGES = (Measured("vmoe-jax", "1.0", "google-research/vmoe", {"XX-1a": "`vmoe.round`", "XX-2b": "`vmoe.green`"}),)


@pytest.fixture
def few(monkeypatch):
    """A ledger of three entries, and one package that was measured."""
    ledger = {entry.id: entry for entry in entries(FEW, "moespec.spec.algorithms.gshard")}
    for module in (command, positions, table):
        monkeypatch.setattr(module, "LEDGER", ledger)
    for module in (positions, command):
        monkeypatch.setattr(module, "measured", lambda: PACKAGES)
    monkeypatch.setattr(places, "places", lambda: PLACES)
    monkeypatch.setenv("COLUMNS", "110")  # lines are as long as the terminal that runs the tests is wide, if it has one
    return ledger


def prefixes(name):
    return {entry.id.split("-")[0] for entry in entries_of(name)}


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("switch", {"SW", "TC", "SA", "AL", "CA"}),
        ("softmax_token_choice", {"BP"}),  # batch_priority is none by default
        ("soft_moe", {"CA"}),  # by a method of its options
        ("sparse_transport_affinity", {"ST", "SI"}),  # which a function calls in other modules
    ],
)
def test_an_algorithm_has_the_entries_of_what_it_calls(name, least):
    assert prefixes(name) >= least
    assert [entry.id for entry in entries_of("gshard")][:2] == ["GS-1", "GS-2"], "its own come first"
    assert not prefixes("switch") & {"GS", "EC", "SK", "SM", "HL", "BL"}
    assert prefixes("expert_choice") == {"EC"}


def test_an_entry_in_full(said, few):
    assert said(["ledger", "xx3"]) == textwrap.dedent("""\
        XX-3: Is it heavy?
            The paper states this explicitly, but implementations often differ.
            Reading: yes.
                By: the paper, section 3; tensorflow/mesh, moe.py, _heavy.
                    https://arxiv.org/abs/2006.16668
            Alternative b: no.
                By: google-research/vmoe, vmoe/moe.py, light; google-research/vmoe, vmoe/other.py, lighter.
                    https://github.com/google-research/vmoe/blob/c0ffee/vmoe/moe.py#L12
            Alternative c: half.
                By: google-research/vmoe, vmoe/half.py, half.
        """)
    assert "    Reading: yes.\n        By: the paper, section 2;" in said(["ledger", "XX-1b"])


def test_what_one_implementation_does(said, few):
    shown, same = said(["ledger", "--by", "vmoe"]).split("\nAs in this specification:\n")
    counts = "the ledger lists its answers to 3 of 3 questions: 1 as in this specification, 2 with a\n    different answer or with several."
    assert shown.startswith(
        f"google-research/vmoe: {counts}\n\nDifferent answer, or several answers:\n\nXX-2: Is it green?\n    moespec: yes.\n"
    )
    assert "    XX-2b: no.\n        Measured: vmoe-jax 1.0, `vmoe.green`.\n" in shown
    assert same.startswith("\nXX-1: Is it round?\n    XX-1a: yes.\n        In: vmoe/moe.py, round.\n")


def test_where_two_implementations_differ(said, few):
    assert said(["ledger", "--by", "the paper", "--by", "mesh"]) == textwrap.dedent("""\
        the paper and tensorflow/mesh: the ledger lists the answers of both to 2 questions; 1 differ.

        XX-1: Is it round?
            the paper, XX-1a: yes.
                In: section 2.
                    https://arxiv.org/abs/2006.16668
            tensorflow/mesh, XX-1b: no.
                In: moe.py, _square.

        The same: XX-3a.

        Known only for tensorflow/mesh: XX-2.
        """)
    assert "google-research/vmoe, XX-2b: no.\n        Measured: v" in said(["ledger", "--by", "vmoe", "--by", "mesh"])


def test_json(said, few):
    assert [each["id"] for each in json.loads(said(["ledger", "--json"]))] == list(few)
    first, _ = json.loads(said(["ledger", "--by", "paper", "--json"]))
    yes, no = first["readings"]
    assert yes["by"] == [{"who": "the paper", "where": "section 2", "addresses": ["https://arxiv.org/abs/2006.16668"]}]
    assert [yes["measured"], no["by"], no["measured"]] == [[], [], []]
    (one,) = json.loads(said(["ledger", "XX-2", "--by", "vmoe", "--json"]))
    assert one["readings"][1]["measured"] == [
        {"who": "google-research/vmoe", "where": "`vmoe.green`", "package": "vmoe-jax", "version": "1.0"}
        | {"addresses": ["https://pypi.org/project/vmoe-jax/1.0/"]}
    ]


def test_an_implementation_is_found_by_a_part_of_its_name_or_a_package(few):
    for name in ("google-research/vmoe", "vmoe", "VMoE", "google_research/vmoe", "vmoe-jax"):
        assert find(name) == "google-research/vmoe"
    assert find("tensorflow") == "tensorflow/mesh"
    assert set(seen(find("paper"))) == {"XX-1", "XX-3"}


def test_a_whole_name_is_taken_before_a_part_of_others():
    assert find("jax") == "jax-ml/jax"  # not ott-jax/ott, google/jaxopt
    assert find("soft-moe") == "bwconrad/soft-moe"  # not lucidrains/soft-moe-pytorch


def test_an_owner_or_a_file_that_no_repository_is_called_by_is_all_of_it():
    places = {
        name: {each.where.partition("/")[0] for all in seen(find(name)).values() for each in all if not each.measured}
        for name in ("lucidrains", "dselect_k", "Llama 4")
    }
    assert places["lucidrains"] >= {"st_moe_pytorch", "mixture_of_experts"}
    assert (places["dselect_k"], places["Llama 4"]) == ({"dselect_k_moe"}, {"src"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--by", "e"], "by='e' is ambiguous: the paper, google-research/vmoe, tensorflow/mesh"),
        (["--by", "nobody"], "by='nobody': not in the ledger; expected one of the paper, google-research/vmoe"),
        (["XX-9"], "'XX-9' is not in the ledger; expected one of XX-1, XX-2, XX-3"),
        (["XX-1z"], "'XX-1z': XX-1 has only the readings XX-1a, XX-1b"),
        (["transport"], "'transport' is neither a ledger entry, such as GS-3 or GS-3b, nor an algorithm"),
    ],
)
def test_a_name_that_means_nothing_is_an_error(few, said, arguments, message):
    assert message in said(["ledger", *arguments], 2)


def test_the_spelling_of_a_name_is_forgiven_and_what_is_close_to_a_wrong_one_named():
    assert [algorithm_of(name) for name in ("Soft-MoE", "soft moe", "SoftMoE")] == ["soft_moe"] * 3
    with pytest.raises(ConfigError, match=r"did you mean normalize_selected\?$"):
        algorithm_of("normalize")


def test_the_page_marks_what_was_measured(few):
    page = table.page(PACKAGES)
    assert "| google-research/vmoe | **a** | **b** | b, c |" in page
    assert "measured: [vmoe-jax 1.0](https://pypi.org/project/vmoe-jax/1.0/), `vmoe.round`\n" in page


def test_a_model_is_shown_with_its_readings(capsys):
    command.main(["--model", "deepseek-v3"])
    shown = capsys.readouterr().out
    assert "Router: sigmoid_token_choice(choices=8" in " ".join(shown.split())
    assert "GL-1: What is the score of a group of experts?" in shown
    command.main(["--model", "hy4"])
    assert "Not expressed: the shared expert does not clamp" in capsys.readouterr().out
    command.main(["--model", "phi-3.5-moe"])
    assert "no router computes the same" in capsys.readouterr().out
    command.main(["--model", "gpt-oss-20b"])
    assert "Sizes: num_local_experts=32 (https://" in " ".join(capsys.readouterr().out.split())


def test_a_model_as_json(capsys):
    command.main(["--model", "mixtral", "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert (shown["router"], shown["options"]["choices"]) == ("softmax_token_choice", 2)
    assert shown["options"]["capacity_factor"] == "inf"
    assert {"id", "question", "text"} == shown["readings"][0].keys()


def test_a_model_that_does_not_exist_or_with_entries():
    with pytest.raises(ConfigError, match="did you mean qwen3-moe"):
        command.main(["--model", "qwen3-mo"])
    with pytest.raises(ConfigError, match="model='mixtral': cannot be combined"):
        command.main(["GS-3", "--model", "mixtral"])
