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


def test_a_patch_release_with_another_suite_is_stopped(tmp_path):
    path = tmp_path / "conformance" / "suite.json"
    path.parent.mkdir()
    path.write_text("first")
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", "a"), ("tag", "v0.3.0")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    archive.check_promise(tmp_path, "0.3.1")
    path.write_text("second")
    for release, said in (("0.3.1", "v0.3.0 (a patch release must not"), ("0.4.1", "v0.4.0 (fatal: invalid object")):
        with pytest.raises(VectorError, match=re.escape(said)):
            archive.check_promise(tmp_path, release)
    archive.check_promise(tmp_path, "0.4.0")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Makes the command of an example, of which a part may be replaced."""

    def made(kind, *fault):
        folder = shutil.copytree(ROOT / "conformance/readers", tmp_path_factory.mktemp(kind) / "readers")
        source = folder / PROGRAMS[kind][0]
        assert not fault or fault[0] in source.read_text()
        source.write_text(source.read_text().replace(*fault or ("", "")))
        name = {"c": "cc", "javascript": "node"}[kind]
        tool = shutil.which(name) or pytest.skip(f"there is no {name} on this machine")
        if kind == "javascript":
            return [tool, source]
        options = ["-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover"]
        subprocess.run([tool, "-std=c99", *options, "-o", folder / "program", source], check=True)
        if other := shutil.which("c++"):
            subprocess.run([other, "-std=c++11", *options, "-fsyntax-only", "-x", "c++", source], check=True)
        return [folder / "program"]

    return made


def ran(*words):
    return subprocess.run(words, capture_output=True, text=True, check=False, env={"ASAN_OPTIONS": "detect_leaks=0"})


@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_router_of_each_language_passes_the_archive_and_can_fail(kind, program, unpacked, run, tmp_path):
    _, algorithms, fault = PROGRAMS[kind]
    assert ran(*program(kind), unpacked, tmp_path / "out").returncode == 0
    status, printed, _ = run("check", tmp_path / "out", "--algorithm", *algorithms)
    passed, failed = map(int, re.findall(r"(\d+) (?:passed|failed)", printed.splitlines()[-1]))
    valid = [case for case in of(*algorithms) if case.expect is None and not case.gradients]
    assert (status, failed) == (0, 0)
    assert 0.7 * len(valid) < passed
    assert ran(*program(kind, *fault), unpacked, tmp_path / "wrong").returncode == 0
    status, printed, _ = run("check", tmp_path / "wrong", "--algorithm", *algorithms)
    assert status == 1
    assert "ties_to_the_higher_expert" in printed


M, T = ".json", ".safetensors"


def damage(path, change):
    """Change a file: to other bytes, to what a function makes of it, or in members of its JSON (`...` removes one)."""
    content = path.read_bytes()
    if isinstance(change, dict):
        start = 8 if path.suffix == T else 0
        end = start + int.from_bytes(content[:8], "little") if start else len(content)
        entries = json.loads(content[start:end])
        scores = entries["inputs/scores"] if start else entries["inputs"]["scores"]
        place = entries if change.keys() & {"stages", "inputs"} else scores
        place.update(change)
        for name in [name for name, value in place.items() if value is ...]:
            del place[name]
        text = json.dumps(entries).encode()
        change = (len(text).to_bytes(8, "little") if start else b"") + text + content[end:]
    path.unlink()
    if change is not None:
        path.write_bytes(change(content) if callable(change) else change)


def cut(end):
    return lambda content: content[:end]


def size(number):
    return lambda content: number.to_bytes(8, "little") + content[8:]


DAMAGED = [  # the file, what is done to it, and the file that the error names, if that is another
    *((M, change) for change in (None, b"null", b"[]", b"{} {}", b"\xff\x00", b"nan", b'"' + b"\\" * 9, b"[" * 200_000)),
    *((M, cut(end)) for end in (0, 1, 30, 200, -3)),
    *((M, {"stages": value}) for value in (..., {}, [], [5], [{}])),
    *((M, {"shape": value}) for value in (..., "a", [-1], [1.5], [2**40, 2**40], [1e300], [None], [64] * 9)),
    *((M, {"dtype": value}) for value in (..., 3, "float8")),
    *((M, {"shape": [2, 2], "data": value}) for value in (5, [1], [[1, 2], [3]], [[1, 2], [3, 4], []], [["x", 1], [2, 3]])),
    *((M, {"shape": [1], "data": value}) for value in ([[1]], [None], [{}])),
    *((M, change) for change in ({"tensor": ...}, {"inputs": {}})),
    *((M, change, T) for change in ({"tensor": "inputs/none"}, {"shape": [3, 3]})),
    *((T, change) for change in (None, *map(cut, (0, 7, 8, 40)), *map(size, (0, 2**31, 2**63, 2**64 - 1)))),
    (T, lambda content: content[: 18 + int.from_bytes(content[:8], "little")]),
    (T, {"dtype": "I32"}),
    *((T, {"data_offsets": value}) for value in (..., 5, [], [0], [8, 4], [-4, 0], [0, 2**62], [0.5, 4.5], ["a", "b"])),
    *(("suite.json", change) for change in (None, b'{"algorithms": []}')),
]  # fmt: skip


@pytest.mark.parametrize("kind", PROGRAMS)
def test_damaged_input_is_an_error_that_names_the_file(kind, program, unpacked, tmp_path):
    command = program(kind)
    algorithms = json.loads((unpacked / "suite.json").read_text())["algorithms"]
    for each in algorithms.values():
        each["sha256"] = {}
    algorithms["token_choice"]["sha256"] = {"real_size": ""}
    wrong = {}
    for number, (file, change, *others) in enumerate([(M, cut(None), "right"), *DAMAGED]):
        root = tmp_path / str(number)
        case = root / "vectors/token_choice/real_size"
        case.parent.mkdir(parents=True)
        (root / "suite.json").write_text(json.dumps({"algorithms": algorithms}))
        for suffix in (M, T):
            shutil.copy(unpacked / f"vectors/token_choice/real_size{suffix}", case.parent)
        damage(root / file if file == "suite.json" else case.with_suffix(file), change)
        result = ran(*command, root, tmp_path / "out")
        named = [line.split(": ")[0].endswith((others or [file])[0]) for line in result.stderr.splitlines()]
        if (result.returncode, named) != ((0, []) if others == ["right"] else (1, [True])):
            wrong[number] = (result.returncode, result.stderr)
    assert wrong == {}
