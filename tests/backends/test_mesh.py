"""The description of a mesh, and which of several processes a process is."""

import pytest

from moespec.backends.mesh import MeshSizes, axes_of_slot, mesh_sizes, split_axes
from moespec.backends.processes import Process, process_of
from moespec.spec.errors import ConfigError

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "node", "MASTER_PORT": "1234"}
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_STEP_NODELIST": "gpu[07-09,12],other"}


@pytest.mark.parametrize(
    ("path", "shape", "split"),
    [
        ("blocks/1/moe/experts/w1", (8, 64, 512), ("expert", None, "fsdp")),
        ("blocks/1/moe/experts/w2", (8, 512, 64), ("expert", "fsdp", None)),
        ("blocks/1/moe/experts/b1", (8, 512), ("expert", None)),  # too small for fsdp
        ("blocks/1/moe/experts/b1", (8, 4096), ("expert", "fsdp")),
        ("blocks/1/mlp/w1", (256, 256), ("fsdp", None)),  # the first of equal axes
        ("blocks/1/mlp/w1", (255, 257), (None, None)),  # 2 divides neither
        ("blocks/1/moe/router/kernel", (64, 8), (None, None)),
        ("blocks/1/moe/router/tables", (8, 100_000), (None, None)),  # no parameter that is trained
        ("experts", (8,), (None,)),  # not of experts, but called so
    ],
)
def test_how_a_parameter_is_split(path, shape, split):
    assert split_axes(path.split("/"), shape, MeshSizes(3, 2, 4)) == split
    assert split_axes(path.split("/"), shape, MeshSizes(24)) == (None,) * len(shape)


def test_what_adafactor_keeps_is_split_as_its_parameter_is():
    split = ("expert", None, "fsdp")
    assert axes_of_slot("nu", (8, 64, 256), split, 32) == split
    assert axes_of_slot("row", (8, 64, 256), split, 32) == ("expert", None)
    assert axes_of_slot("column", (8, 64, 256), split, 32) == ("expert", "fsdp")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data": 0}, r"mesh\.data=0: expected an integer >= 1"),
        ({"fsdp": 2.0}, r"mesh\.fsdp=2\.0: expected"),
        ({"expert": True}, r"mesh\.expert=True: expected"),
        ({"expert": 3}, r"mesh\.expert=3: 3 does not divide the 8 devices"),
        ({"data": 3, "expert": 2}, "need 6 devices, but there are 8"),
    ],
)
def test_meshes_that_there_are_not(arguments, message):
    with pytest.raises(ConfigError, match=message):
        mesh_sizes(8, **arguments)


def test_experts_that_a_mesh_does_not_divide():
    with pytest.raises(ConfigError, match=r"mesh\.expert=3 does not divide the 8 experts of blocks/1/moe/experts/w1"):
        split_axes(("blocks", "1", "moe", "experts", "w1"), (8, 4, 4), MeshSizes(expert=3))


def test_processes_of_torchrun_and_of_slurm():
    assert process_of({}) is None
    assert process_of({"WORLD_SIZE": "1"}) is None, "some clusters set it for everyone"
    assert process_of({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}) is None
    script = {name: value for name, value in SLURM.items() if name != "SLURM_STEP_NODELIST"}
    assert process_of(script) is None, "a script of sbatch is no task of srun"
    assert process_of(TORCHRUN) == Process(3, 8, 1, "node:1234")
    assert process_of({**SLURM, **TORCHRUN}) == Process(3, 8, 1, "node:1234")
    assert process_of(SLURM) == Process(5, 8, 1, "gpu07:29500")
    assert process_of({**SLURM, "SLURM_STEP_NODELIST": "one,two"}) == Process(5, 8, 1, "one:29500")
    assert process_of({**SLURM, "MASTER_ADDR": "here", "MASTER_PORT": "1"}) == Process(5, 8, 1, "here:1")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "8"}, "RANK=8: expected a number below WORLD_SIZE=8"),
        ({"RANK": "x"}, "RANK='x': expected a number"),
        ({"WORLD_SIZE": ""}, "WORLD_SIZE='': expected a number"),
        ({"MASTER_PORT": ""}, "MASTER_PORT is not set; the 8 processes need it to connect"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR is not set"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT='70000': expected a number from 1 to 65535"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT='http'"),
        ({"LOCAL_RANK": "-1"}, "LOCAL_RANK='-1': expected a number"),
    ],
)
def test_variables_that_say_no_process(variables, message):
    with pytest.raises(ConfigError, match=message):
        process_of({**TORCHRUN, **variables})
