"""Checkpoints damaged at random: each is noticed and named, none ends in a traceback, and none is used as it is.

`MOESPEC_DAMAGES` says how many there are (500), `MOESPEC_DAMAGES_SEED` which (0). Those that come with right checksums
could come from another version, or from someone who edits.
"""

import hashlib
import json
import os
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from moespec.models.training.resolve import load_backend, load_data
from moespec.models.training.rundirectory import RunDirectory
from moespec.models.training.savestate import begin, trained_params
from moespec.models.trees import flatten
from moespec.spec.errors import SpecError

DAMAGES, SEED = (
    int(os.environ.get(name, value)) for name, value in (("MOESPEC_DAMAGES", "500"), ("MOESPEC_DAMAGES_SEED", "0"))
)

STATE: list[bytes] = [
    *(b"", b"null", b"[]", b"36.0", b"{}", b'{"sha256": 1}', b"\xff\xfe", b"1" * 10_000),
    *(b'"\\ud800"', b'{"sha256": NaN}'),
    *(b"[" * 100_000, b'{"a":' * 100_000, b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 900 + b"1" + b"}" * 900),
]
ENTRIES: dict[str, list[Any]] = {
    "step": ["12", None, 36.0, True, -12, 10**30, 13, [12]],
    "config": [None, [], {}, "vit_tiny", {"model": []}, {"model": {"router": 3}}],
    "random": [None, [], {}, {"seed": 5, "step": 12}],
    "data": [None, 7, {"epoch": 0, "offset": "x"}],
    "backend": [None, 3],
    "seconds": [None, "3", [1.0]],
    "format": [None, "1", 2, 1.5],
    "arrays_sha256": [None, 3, "", "0" * 64],
}
DTYPES = ("F8_E4M3", "F8_E5M2", "BF16", "F16", "F64", "I32", "U8", "BOOL", "C64", "F4", "X9", "", None, 3)


def damaged(content: bytes) -> Iterator[Callable[[random.Random], bytes]]:
    """What may happen to the bytes of a file."""

    def flipped(draw: random.Random) -> bytes:
        changed = bytearray(content)
        for _ in range(draw.randint(1, 8)):
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        return bytes(changed)

    def truncated(draw: random.Random) -> bytes:
        return content[: draw.randrange(len(content))]

    def zeroed(draw: random.Random) -> bytes:
        start = draw.randrange(len(content))
        return content[:start] + bytes(len(content[start : start + draw.randint(1, 4096)])) + content[start + 4096 :]

    def grown(draw: random.Random) -> bytes:
        return content + draw.randbytes(draw.randint(1, 64))

    yield from (flipped, truncated, zeroed, grown)


def signed(record: dict[str, Any]) -> bytes:
    """state.json with the checksum of its content."""
    content = {key: value for key, value in record.items() if key != "sha256"}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return json.dumps({**content, "sha256": digest}).encode()


def forged_state(record: dict[str, Any], draw: random.Random) -> bytes:
    """state.json with an entry that a checkpoint cannot have, or without it, and a right checksum."""
    key = draw.choice(list(ENTRIES))
    value = draw.choice([*ENTRIES[key], ...])
    return signed({name: entry for name, entry in {**record, key: value}.items() if entry is not ...})


def forged_arrays(arrays: bytes, draw: random.Random) -> bytes:
    """The arrays with a header that does not fit them, or the model."""
    (length,) = struct.unpack("<Q", arrays[:8])
    header, rest = json.loads(arrays[8 : 8 + length]), arrays[8 + length :]
    name = draw.choice([name for name in header if name != "__metadata__"])
    entry, kind = header[name], draw.randrange(7)
    if kind == 0:
        entry["dtype"] = draw.choice(DTYPES)
        if draw.random() < 0.5:  # with as many bytes as such numbers take
            entry["dtype"] = draw.choice(("F8_E4M3", "F8_E5M2", "U8", "I8", "BOOL"))
            entry["shape"] = [entry["data_offsets"][1] - entry["data_offsets"][0]]
    elif kind == 1:
        entry["shape"] = draw.choice([[], [-1], [2**63], [2**32, 2**32], [1, *entry["shape"]], ["4"], None, [1.5]])
        if entry["shape"] == []:
            entry["dtype"] = "F8_E4M3"
    elif kind == 2:
        entry["data_offsets"] = draw.choice([[0, 0], [4, 0], [0, 2**63], [-4, 0], [0], None, ["0", "4"], [0, 2**64]])
    elif kind == 3:
        header[f"{name}/{draw.randrange(9)}"] = header.pop(name)
    elif kind == 4:
        del header[name]
    elif kind == 5:
        header = draw.choice([[], {}, None, 3, "", {name: []}, {"__metadata__": {"a": 1}}])
    text = draw.choice(STATE) if kind == 6 else json.dumps(header).encode()
    size = draw.choice([0, 1, length - 1, 2**31, 2**63, 2**64 - 1]) if draw.random() < 0.2 else len(text)
    return struct.pack("<Q", size) + text + rest


def test_damaged_checkpoints(runs, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    run, draw = tmp_path / "run", random.Random(SEED)
    shutil.copytree(runs.whole("torch"), run)
    directory = RunDirectory(run)
    config = directory.config()
    assert config is not None
    newest = run / "checkpoints" / "00000012"
    files = {name: (newest / name).read_bytes() for name in ("arrays.safetensors", "state.json")}
    record = json.loads(files["state.json"])
    plain = {**record, **dict.fromkeys(("sha256", "arrays_sha256"))}

    B, examples = load_backend("torch"), len(load_data(config).train)

    def read() -> dict[str, Any]:
        directory.claim(config, resume=True)
        return B.export_state(begin(B, config, directory, examples=examples, initial=dict).state)

    expected = flatten(read())
    assert expected["step"] == 12
    noticed = 0
    for number in range(DAMAGES):
        name = draw.choice(list(files))
        kind = draw.choice(["bytes", "bytes", "forged"])
        changed = dict(files)
        if kind == "bytes":
            changed[name] = draw.choice(list(damaged(files[name])))(draw)
        elif name == "state.json":
            changed[name] = draw.choice(STATE) if draw.random() < 0.4 else forged_state(record, draw)
        else:
            changed[name] = forged_arrays(files[name], draw)
            changed["state.json"] = signed({**record, "arrays_sha256": hashlib.sha256(changed[name]).hexdigest()})
        for file, content in changed.items():
            (newest / file).write_bytes(content)
        where = f"seed {SEED}, damage {number}: {kind} {name}"
        try:
            found = flatten(read())
        except SpecError as error:
            if str(run) not in str(error):
                raise AssertionError(f"{where}: the file is not named") from error
            noticed += 1
        except BaseException as error:
            raise AssertionError(where) from error
        else:  # a checkpoint that says the same in other words
            assert found.pop("step") == 12, where
            for path, value in found.items():
                assert value.tobytes() == expected[path].tobytes(), f"{where}: {path}"
            again = json.loads((newest / "state.json").read_text())
            assert {**again, **dict.fromkeys(("sha256", "arrays_sha256"))} == plain, where
    assert noticed > 0.95 * DAMAGES
    shutil.rmtree(newest)
    assert trained_params(directory, config)[1] == 8, "the one before it is as it was"
