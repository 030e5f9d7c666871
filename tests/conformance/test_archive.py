"""The archive is what its index and the tree say, the same twice; programs in C and JavaScript pass its vectors, and can fail."""

import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from committed import BY_ID, of

from moespec.conformance import archive, suite
from moespec.conformance.format import VectorError

ROOT = Path(__file__).parents[2]
PROGRAMS = {  # the example, its algorithms, and ties to the higher expert in place of the lower
    "c": ("allocations.c", ("token_choice", "expert_choice"), ("other < e)", "other > e)")),
    "javascript": ("routers.mjs", ("softmax_affinity", "token_choice"), ("|| a - b", "|| b - a")),
}


@pytest.fixture(scope="module")
def packed():
    return archive.archive(ROOT)


@pytest.fixture(scope="module")
def unpacked(packed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("archive")
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        assert all((entry.mtime, entry.uid, entry.gid, entry.uname) == (0, 0, 0, "") for entry in tar)
        tar.extractall(folder, filter="data")
    (root,) = folder.iterdir()
    return root


def test_the_same_tree_makes_the_same_bytes(packed, tmp_path):
    path = archive.write(ROOT, tmp_path / "new")
    assert path.read_bytes() == packed
    assert [each.name for each in path.parent.iterdir()] == [f"vectors-{archive.version()}.tar.gz"]


def test_index_and_archive_are_those_of_the_tree(unpacked):
    index, suite_ = (json.loads((unpacked / name).read_text()) for name in ("index.json", "suite.json"))
    assert (index["suite"], index["version"]) == (suite.digest(), archive.version())
    assert [entry["id"] for entry in index["cases"]] == sorted(suite.ids(), key=lambda id: id.split("/"))
    listed = set()
    for entry in index["cases"]:
        case = BY_ID[entry["id"]]
        revision = suite_["algorithms"][case.algorithm]["revision"]
        assert (entry["class"], entry["flags"], entry["revision"]) == (case.kind, list(case.flags), revision)
        for file in filter(None, (entry["manifest"], entry["tensors"])):
            listed.add(file["file"])
            assert hashlib.sha256((unpacked / file["file"]).read_bytes()).hexdigest() == file["sha256"]
    found = {path.relative_to(unpacked).as_posix(): path for path in unpacked.rglob("*") if path.is_file()}
    assert {name for name in found if name.startswith("vectors/")} == listed
    source = {"LICENSE": ROOT / "LICENSE", "README.md": ROOT / "conformance/readers/README.md"}
    for name in found.keys() - {"index.json"}:
        assert found[name].read_bytes() == source.get(name, ROOT / "conformance" / name).read_bytes()
    assert {*source, "schema.json", "flags.json", "readers/moespec_vectors.h", "readers/routers.mjs"} <= found.keys()


def test_a_tree_with_another_vector_makes_no_archive(vectors):
    shutil.copytree(ROOT / "conformance/readers", vectors.parent / "conformance/readers")
    shutil.copytree(vectors, vectors.parent / "conformance/vectors")
    shutil.copy(vectors.parent / "suite.json", vectors.parent / "conformance")
    (vectors.parent / "conformance/vectors/token_choice/tied.json").write_text("{}")
    with pytest.raises(VectorError, match=r"tied\.json: changed"):
        archive.write(vectors.parent, vectors.parent / "build")
    assert list((vectors.parent / "build").iterdir()) == []


def test_a_patch_release_with_another_suite_is_stopped(tmp_path):
    path = tmp_path / "conformance" / "suite.json"
    path.parent.mkdir()
    path.write_text("first")
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", "a"), ("tag", "v0.3.0")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    archive.check_promise(tmp_path, "0.3.1")
    path.write_text("second")
    for release, said in (("0.3.1", "the suite is not that of v0.3.0"), ("0.4.1", "v0.4.0 cannot be read")):
        with pytest.raises(VectorError, match=said):
            archive.check_promise(tmp_path, release)
    archive.check_promise(tmp_path, "0.4.0")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Makes the command of an example, of which a part may be replaced."""

    def made(kind, *fault):
        folder = shutil.copytree(ROOT / "conformance/readers", tmp_path_factory.mktemp(kind) / "readers")
        source = folder / PROGRAMS[kind][0]
        assert not fault or fault[0] in source.read_text()
        source.write_text(source.read_text().replace(*fault) if fault else source.read_text())
        tool = shutil.which({"c": "cc", "javascript": "node"}[kind])
        if tool is None:
            pytest.skip({"c": "there is no C compiler: install gcc or clang", "javascript": "there is no node"}[kind])
        if kind == "javascript":
            return [tool, str(source)]
        options = (
            "-std=c99",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-O1",
            "-fsanitize=address,undefined",
            "-fno-sanitize-recover",
        )
        subprocess.run([tool, *options, "-o", str(folder / "program"), str(source)], check=True)
        return [str(folder / "program")]

    return made


def ran(command, *arguments):
    words = [*command, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False, env={"ASAN_OPTIONS": "detect_leaks=0"})


@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_router_of_each_language_passes_the_vectors_of_the_archive_and_can_fail(
    kind, program, unpacked, run, tmp_path
):
    _, algorithms, fault = PROGRAMS[kind]
    assert ran(program(kind), unpacked, tmp_path / "out").returncode == 0
    status, printed, _ = run("check", tmp_path / "out", "--algorithm", *algorithms)
    passed, failed = map(int, re.findall(r"(\d+) (?:passed|failed)", printed.splitlines()[-1]))
    valid = [case for case in of(*algorithms) if case.expect is None]
    assert (status, failed) == (0, 0)
    assert 0.7 * len(valid) < passed <= len(valid)
    assert ran(program(kind, *fault), unpacked, tmp_path / "wrong").returncode == 0
    status, printed, _ = run("check", tmp_path / "wrong", "--algorithm", *algorithms)
    assert status == 1
    assert "ties_to_the_higher_expert" in printed


def manifest(**changes):
    """A change of the manifest: of its scores, or of members of it (`...` removes one)."""

    def change(case):
        content = json.loads(case.with_suffix(".json").read_text())
        scores = content["inputs"]["scores"]
        for name, value in changes.items():
            place = scores if name in ("dtype", "shape", "data", "tensor") else content
            place.pop(name, None) if value is ... else place.update({name: value})
        case.with_suffix(".json").write_text(json.dumps(content))

    return change


def header(**changes):
    """A change of the header of the tensors, of the entry of the scores."""

    def change(case):
        path = case.with_suffix(".safetensors")
        content = path.read_bytes()
        size = int.from_bytes(content[:8], "little")
        entries = json.loads(content[8 : 8 + size])
        entries["inputs/scores"].update(changes)
        text = json.dumps({key: value for key, value in entries.items() if changes or key != "inputs/scores"}).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])

    return change


def file(suffix, changed):
    return lambda case: case.with_suffix(suffix).write_bytes(changed(case.with_suffix(suffix).read_bytes()))


M, T = ".json", ".safetensors"
DAMAGED = [
    *((M, file(M, lambda content, end=end: content[:end])) for end in (0, 1, 30, 200, -3)),
    *((M, file(M, lambda _, text=text: text)) for text in (b"null", b"[]", b"{} {}", b"\xff\x00", b"nan", b'"' + b"\\" * 9)),
    (M, file(M, lambda content: b"[" * 200_000)),
    *((M, manifest(stages=value)) for value in (..., {}, [], [5], [{}])),
    *((M, manifest(shape=value)) for value in (..., "a", [-1], [1.5], [2**40, 2**40], [1e300], [None], [64] * 9)),
    *((M, manifest(dtype=value)) for value in (..., 3, "float8")),
    *((M, manifest(shape=[2, 2], data=value)) for value in (5, [1], [[1, 2], [3]], [[1, 2], [3, 4], []], [["x", 1], [2, 3]])),
    *((M, manifest(shape=[1], data=value)) for value in ([[1]], [None], [{}])),
    (M, manifest(tensor=...)),
    (M, manifest(inputs={})),
    *((T, file(T, lambda content, end=end: content[:end])) for end in (0, 7, 8, 40)),
    (T, file(T, lambda content: content[: 18 + int.from_bytes(content[:8], "little")])),
    *((T, file(T, lambda content, size=size: size.to_bytes(8, "little") + content[8:])) for size in (0, 2**31, 2**63, 2**64 - 1)),
    (T, lambda case: case.with_suffix(T).unlink()),
    (T, header()),
    (T, manifest(tensor="inputs/none")),
    (T, manifest(shape=[3, 3])),
    (T, header(dtype="I32")),
    *((T, header(data_offsets=value)) for value in (5, [], [0], [8, 4], [-4, 0], [0, 2**62], [0.5, 4.5], ["a", "b"])),
    ("suite.json", lambda case: (case.parents[2] / "suite.json").unlink()),
    ("suite.json", lambda case: (case.parents[2] / "suite.json").write_text('{"algorithms": []}')),
]  # fmt: skip


@pytest.mark.parametrize("kind", PROGRAMS)
def test_damaged_input_is_an_error_that_names_the_file(kind, program, unpacked, tmp_path):
    command = program(kind)
    algorithms = json.loads((unpacked / "suite.json").read_text())["algorithms"]
    for each in algorithms.values():
        each["sha256"] = {}
    algorithms["token_choice"]["sha256"] = {"real_size": ""}
    wrong = {}
    for number, (named, damage) in enumerate([("", lambda case: None), *DAMAGED]):
        case = tmp_path / str(number) / "vectors/token_choice/real_size"
        case.parent.mkdir(parents=True)
        (case.parents[2] / "suite.json").write_text(json.dumps({"algorithms": algorithms}))
        for suffix in (M, T):
            shutil.copy(unpacked / f"vectors/token_choice/real_size{suffix}", case.parent)
        damage(case)
        result = ran(command, case.parents[2], tmp_path / "out")
        lines = result.stderr.splitlines()
        right = (1, 1) if named else (0, 0)
        if (result.returncode, len(lines)) != right or not all(line.split(": ")[0].endswith(named) for line in lines):
            wrong[number] = (result.returncode, lines)
    assert wrong == {}
