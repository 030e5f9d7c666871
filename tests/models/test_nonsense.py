"""Commands that mean nothing, drawn by a seed: each ends in one clear message that names the argument and its value.

The status is not 0, there is no traceback, nothing is written, and no training begins. Some tables are gone through, and
commands are drawn: `MOESPEC_NONSENSE` says how many (60), `MOESPEC_NONSENSE_SEED` the seed of the first (0); each next one
has the next seed.
"""

import gzip
import io
import os
import random
import re
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

import numpy as np
import pytest
import safetensors.numpy
from PIL import Image

from moespec.conformance import __main__ as conformance
from moespec.models import cli, memory
from moespec.models.commandline import commands
from moespec.models.router_options import options_of
from moespec.models.training.config import Config
from moespec.spec.routers import ROUTERS

NUMBER, SEED = (
    int(os.environ.get(name, value)) for name, value in (("MOESPEC_NONSENSE", "60"), ("MOESPEC_NONSENSE_SEED", "0"))
)
SEEDS = range(SEED, SEED + NUMBER)
OLD_RUN = Path(__file__).parent / "runs_0_1" / "jax_soft_moe"


def files(folder: Path) -> list[Path]:
    """All files and folders below `folder`, but for the lock of a run, with which no other process trains there meanwhile."""
    return sorted(path for path in folder.rglob("*") if path.name != ".lock")


class Nonsense(NamedTuple):
    """A command line, and what its message must have: names of arguments and values, without regard to spaces."""

    arguments: list[str]
    named: tuple[str, ...]
    suite: bool = False
    """whether the command is one of `moespec conformance`"""


Draw = random.Random

INTEGERS = ("-1", "1.5", "ten", "nan", "inf", "1e3", "", "²", "9" * 30, "0x10", "None!")
FLOATS = ("nan", "inf", "-inf", "-1", "-1e-9", "x", "", "1e400", "²")
WORDS = ("nonsense", "", "²", "NONE ")


def wrong_value(draw: Draw, hint: Any) -> str:
    """A value that no field of such a type can have."""
    if int in kinds(hint):
        return draw.choice(INTEGERS)
    if float in kinds(hint):
        return draw.choice(FLOATS)
    return draw.choice(WORDS)


def kinds(hint: Any) -> tuple[Any, ...]:
    return (hint, *get_args(hint))


def shown(value: str) -> str:
    """The value of a float as Python writes it; what is no float as it is."""
    try:
        return repr(float(value))
    except ValueError:
        return value


def field(draw: Draw, folder: Path) -> Nonsense:
    """A field of the configuration with a value that it cannot have."""
    section = draw.choice([each for each in fields(Config) if is_dataclass(getattr(Config(), each.name))])
    kind: Any = type(getattr(Config(), section.name))
    free = {"path", "router_options", "classes", "cache", "transform"}  # texts, of which most may be
    name = draw.choice([each.name for each in fields(kind) if each.name not in free])
    hint = get_type_hints(kind)[name]
    value = wrong_value(draw, hint)
    while name == "head_bias" and value in ("-1", "-1e-9"):  # which it may be
        value = wrong_value(draw, hint)
    command = draw.choice((["train", "--run", "run"], ["hash-table", "--out", "out.safetensors"]))
    if section.name == "schedule" and name in ("timescale", "end"):
        command = [*command, "--schedule.name", {"timescale": "rsqrt", "end": "linear"}[name]]
    flag = f"--{section.name}.{name.replace('_', '-')}={value}"
    # A flag that has a value is a flag, and a word too many; a float is shown as Python writes it.
    return Nonsense(
        [*command, flag], (value,) if hint is bool else (name, shown(value) if float in kinds(hint) else value)
    )


def option(draw: Draw, folder: Path) -> Nonsense:
    """An option of a router that it does not have, or with a value that it cannot have."""
    router = draw.choice(list(ROUTERS))
    types = {
        name: hint for name, hint in options_of(router).items() if name not in ("width", "experts", "tokens", "ids")
    }
    others = {name for other in ROUTERS for name in options_of(other)} - {*types, "width", "experts", "tokens", "ids"}
    if not types or draw.random() < 0.3:
        name, value = draw.choice(sorted(others)), "1"
    else:
        name = draw.choice(sorted(types))
        value = draw.choice(("nan", "-1", "nonsense", "-inf", "1e400!", "²", "9" * 400))
    flag = f"--model.router-options.{name.replace('_', '-')}"
    flags = draw.choice(([flag, value], [f"{flag}={value}"])) if not value.startswith("-") else [f"{flag}={value}"]
    return Nonsense(["train", "--run", "run", "--router", router, *flags], (name, value[:30]))


RELATIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("--model.heads 3", ("model.heads=3", "width=64")),
    ("--model.patch-size 3", ("model.patch_size=3", "image_size=8")),
    ("--model.image-size 9", ("model.patch_size=2", "image_size=9")),
    ("--model.image-size 0", ("model.image_size=0",)),
    ("--model.image-size 1000000000", ("model.image_size=1000000000",)),
    ("--model.stem 1 --model.stem-depth 1000000000", ("model.stem_depth=1000000000",)),
    ("--model.classes 11", ("model.classes=11", "digits")),
    ("--model.channels 3", ("model.channels=3", "digits")),
    ("--model.depth 1000000000", ("model.depth=1000000000",)),
    ("--model.width 4294967296", ("model.width=4294967296",)),
    ("--model.width 2000000000 --model.heads 1 --model.positions learned", ("model.experts=8", "GiB")),
    ("--model.hidden 2000000000", ("model.name='vit_tiny'", "GiB")),
    ("--experts 99999999999999", ("experts", "99999999999999")),
    ("--experts 2000000000", ("capacity_factor", "2000000000 experts")),
    ("--experts 2000000000 --router switch", ("model.experts=2000000000", "GiB")),
    ("--experts 0", ("model.experts=0",)),
    ("--model.moe last_9", ("model.moe='last_9'", "depth=4")),
    ("--model.moe last_" + "9" * 5000, ("model.moe", "last_9999")),
    ("--model.moe sometimes", ("model.moe='sometimes'",)),
    ("--model vit_xl", ("vit_xl",)),
    ("--model mixer_xl16", ("mixer_xl16",)),
    ("--router soft", ("model.router='soft': expected one of",)),
    ("--model vit_s" + "9" * 5000, ("name", "vit_s9999")),
    ("--model resnet50", ("resnet50",)),
    ("--model mixer_tiny --router soft_moe", ("model.router='soft_moe'",)),
    ("--model mixer_tiny --experts 4", ("model.experts=4",)),
    ("--model sparse_mlp_tiny --router soft_moe", ("model.router='soft_moe'", "importance_score")),
    ("--model sparse_mlp_tiny --model.group-size 100", ("group_size=100", "training.batch")),
    ("--model sparse_mlp_tiny --model.token-choices 5", ("token_choices=5", "token_experts=4")),
    ("--model.group-images 3", ("group_images=3", "training.batch")),
    ("--model.qk-norm-bias True --model.qk-norm False", ("qk_norm_bias=True", "qk_norm=True")),
    ("--model.head-bias 1e39", ("model.head_bias=1e+39",)),
    ("--router base --experts 3", ("model.experts=3", "16 tokens")),
    ("--router noisy_top_k --experts 1", ("choices", "2 of 1")),
    ("--router softmax_token_choice --model.router-options.choices 9", ("choices", "9")),
    ("--router switch --model.router-options.capacity-factor 1e300", ("capacity", "GiB")),
    ("--router soft_moe --model.router-options.capacity-factor 1e-9", ("capacity_factor: 1e-09",)),
    ("--router gshard --model.router-options.multiple-of 2147483647", ("capacity of 2147483647", "GiB")),
    ("--router dselect_k --model.router-options.choices 2000000000", ("model.name='vit_tiny'", "TiB")),
    ("--router dselect_k --model.router-options.selector-gamma 1e30", ("selector_gamma=1e+30",)),
    ("--router dselect_k --model.router-options.selector-gamma nan", ("selector_gamma=nan",)),
    ("--router switch --model.router-options.z-weight 1e39", ("z_weight=1e+39",)),
    ("--training.seed 340282366920938463463374607431768211456", ("training.seed=340282366920938463463374607431768211456",)),
    ("--training.steps 99999999999999999999", ("training.steps=99999999999999999999",)),
    ("--training.batch 6 --training.accumulate 4", ("training.accumulate=4", "training.batch=6")),
    ("--training.batch 1000000000000", ("training.batch=1000000000000", "GiB")),
    ("--training.evaluation-batch 1000000000000", ("training.evaluation_batch=1000000000000", "GiB")),
    ("--schedule.warmup -1", ("schedule.warmup=-1", "1500")),
    ("--schedule.cooldown 3", ("schedule.cooldown=3", "cosine")),
    ("--schedule.peak 1e39", ("schedule.peak=1e+39",)),
    ("--schedule.name linear --schedule.end 1e39", ("schedule.end=1e+39",)),
    ("--schedule.name rsqrt --schedule.cooldown -1", ("schedule.cooldown=-1",)),
    ("--optimizer.b1 0.9999999999", ("b1=0.9999999999",)),
    ("--optimizer.b2 1", ("b2=1",)),
    ("--optimizer.epsilon 1e-300", ("epsilon=1e-300",)),
    ("--optimizer.clip 0", ("clip=0",)),
    ("--optimizer.weight-decay 1e39", ("weight_decay=1e+39",)),
    ("--optimizer.name adagrad", ("name", "adagrad")),
    ("--optimizer.name sgd --optimizer.b1 0.5", ("b1=0.5", "'sgd'", "momentum, nesterov")),
    ("--optimizer.momentum 0.5", ("momentum=0.5", "'adamw'")),
    ("--optimizer.name adafactor --optimizer.factored-from 0", ("factored_from=0",)),
    ("--optimizer.rates haed=0", ("optimizer.rates=", "haed")),
    ("--optimizer.rates .*=0", ("optimizer.rates=", "frozen")),
    ("--optimizer.ema 1", ("ema=1",)),
    ("--training.steps 5 --training.epochs 2", ("training.steps=5", "training.epochs=2", "one of them")),
    ("--training.epochs 0", ("training.epochs=0",)),
    ("--training.examples 0", ("training.examples=0",)),
    ("--training.epochs nan", ("training.epochs=nan",)),
    ("--optimizer.decay kernel", ("decay='kernel'", "pattern=rate")),
    ("--optimizer.decay haed/kernel=3", ("optimizer.decay=", "haed/kernel")),
    ("--model.moe 3,1", ("model.moe=", "ascending")),
    ("--data.crop-padding 8", ("data.crop_padding=8", "8 pixels")),
    ("--data.mixup 1e300", ("data.mixup=1e+300",)),
    ("--data.validation-share 1", ("data.validation_share=1.0",)),
    ("--data.validation-share nan", ("data.validation_share=nan",)),
    ("--data.path nowhere", ("data.path='nowhere'", "digits")),
    ("--data.workers 2000", ("data.workers=2000",)),
    ("--data.hue 0.6", ("data.hue=0.6", "0.5")),
    ("--data.erase 1.5", ("data.erase=1.5",)),
    ("--data.crop-area 0", ("data.crop_area=0.0",)),
    ("--data.crop tensorflow", ("data.crop", "tensorflow")),
    ("--data.label-smoothing 2", ("data.label_smoothing=2.0",)),
    ("--data.magnitude 1e9", ("data.magnitude=1000000000.0",)),
    ("--data.mean 1,2", ("data.mean='1,2'", "1 channels")),
    ("--data.std 0", ("data.std='0'", "above 0")),
    ("--data.mean x", ("data.mean='x'",)),
    ("--data.jitter 1", ("data.jitter=1.0", "white at 16")),
    ("--data.randaugment 2", ("data.randaugment=2", "white at 16")),
    ("--data.background nonsense", ("data.background='nonsense'",)),
    ("--data.background red", ("data.background='red'", "digits")),
    ("--data.cache somewhere", ("data.cache='somewhere'", "digits")),
    ("--data.broken skip", ("data.broken='skip'", "digits")),
    ("--data.resize 9", ("data.resize=9", "digits")),
    ("--data.classes nowhere", ("data.classes='nowhere'",)),
    ("--data.transform nonsense", ("data.transform='nonsense'", "package.module:function")),
    ("--data.transform os:system", ("data.transform='os:system': raised TypeError",)),
    ("--data.transform nowhere:f", ("data.transform='nowhere:f'", "cannot be imported")),
    ("--data.transform json:nothing", ("data.transform='json:nothing'", "cannot be imported")),
    ("--data webdataset", ("data.path is not set", "webdataset")),
    ("--data webdataset --data.path nowhere --model.image-size 8", ("nowhere",)),
    ("--data huggingface --data.path nowhere --model.image-size 8", ("nowhere",)),
    ("--data folder --data.path .", ("model.image_size is not set", "vit_tiny")),
    ("--data folder", ("data.path is not set", "folder")),
    ("--data idx", ("data.path is not set", "idx")),
    ("--data idx --data.path nowhere", ("nowhere: there is no such folder",)),
    ("--data.crop-padding -1", ("data.crop_padding=-1: expected at least 0",)),
    ("--hash.path nowhere.safetensors", ("hash.path='nowhere.safetensors'",)),
    ("--hash.kind random", ("hash.kind='random'",)),
    ("--router hash --hash.path nowhere.safetensors", ("hash.path='nowhere.safetensors'",)),
    ("--router hash --codes 30000", ("model.codes=30000", "different patches")),
    ("--router hash --codes 2000000000", ("model.codes", "2000000000 entries")),
    ("--router hash --codes 4 --hash.kind clustered", ("model.codes=4", "8 clusters")),
    ("--router hash --hash.kind clustered --model.token-ids position", ("hash.kind='clustered'", "position")),
    ("--router hash --hash.kind balanced --model.router-options.hashes 2", ("hash.kind='balanced'",)),
    ("--router hash --model.router-options.hashes 3", ("hashes", "3")),
    ("--router hash --model.token-ids bigram --codes 1000000", ("model.token_ids", "entries of tables")),
    ("--model.moe none --router switch", ("model.router='switch' concerns nothing",)),
    ("--model.moe none --experts 7", ("model.experts=7 concerns nothing",)),
    ("--router switch --model.moe none --model.router-options.z-weight 1", ("model.router='switch' concerns nothing",)),
    ("--model.dtype bfloat16 --model.round-experts True", ("model.round_experts=True concerns nothing",)),
    ("--codes 5", ("model.codes=5 concerns nothing",)),
    ("--model.token-ids position", ("model.token_ids='position' concerns nothing",)),
    ("--hash.kind random", ("hash.kind='random' concerns nothing",)),
    ("--model.head-bias -3", ("model.head_bias=-3.0 concerns nothing",)),
    ("--data.brightness 0.4", ("data.brightness=0.4 concerns nothing",)),
    ("--data.hue=0.3", ("data.hue=0.3 concerns nothing",)),
    ("--data.magnitude 5", ("data.magnitude=5.0 concerns nothing",)),
    ("--data.crop-area 0.5", ("data.crop_area=0.5 concerns nothing",)),
    ("--data.workers 2", ("data.workers=2 concerns nothing",)),
    ("--init-skip head", ("init_skip='head' concerns nothing",)),
    ("--backend cuda", ("backend", "cuda")),
    ("--config nowhere.toml", ("config='nowhere.toml'",)),
    ("--config .", ("config='.'",)),
    ("--run", ("run",)),
    ("--no-such-option 1", ("no_such_option",)),
)  # fmt: skip


def of_relation(flags: str, named: tuple[str, ...]) -> Nonsense:
    return Nonsense(["train", *([] if flags == "--run" else ["--run", "run"]), *flags.split()], named)


def relation(draw: Draw, folder: Path) -> Nonsense:
    """Values that are possible each by itself, but not together, not for the data, or not on a machine."""
    return of_relation(*draw.choice(RELATIONS))


def contents(key: str) -> dict[str, tuple[str | bytes, tuple[str, ...]]]:
    """What a configuration file cannot have, about a number of the section `training` if it is about one."""
    deep = 3000
    return {
        "deep lists": ("a = " + "[" * deep + "]" * deep, ("not a TOML file",)),
        "deep tables": ("[" + ".".join(["a"] * deep) + "]\nb = 1", ("nested deeper",)),
        "deep options": ("[model.router_options." + ".".join(["a"] * deep) + "]\nb = 1", ("nested deeper",)),
        "many bits": (f"[training]\n{key} = 0x{'f' * 5000}", (f"training.{key}", "20001 bits")),
        "many digits": (f"[training]\n{key} = {'9' * 5000}", ("4300",)),
        "large": (f"[training]\n{key} = {2**128}", (f"training.{key}", "130 bits")),
        "type": (f"[training]\n{key} = '{2**70}'", (f"training.{key}='{2**70}'",)),
        "nan": (f"[training]\n{key} = nan", (f"training.{key}=nan",)),
        "no UTF-8": (b"\xff\xfe[training]", ("not a TOML file",)),
        "no TOML": ("[training\n", ("not a TOML file", "line 1")),
        "section": ("[trainig]\nsteps = 1", ("trainig", "training")),
        "key": (f"[training]\n{key}x = 1", (f"training.{key}x", f"training.{key}")),
        "no table": ("model = 'vit_tiny'", ("model='vit_tiny'",)),
        "format": ("format = 99", ("format=99",)),
        "list": (f"[training]\n{key} = [1]", (f"training.{key}=[1]",)),
        "date": (f"[training]\n{key} = 2020-01-01", (f"training.{key}=", "2020")),
        "router": ("[model]\nrouter = '²'", ("model.router='²'",)),
        "name": ("[model]\nname = 7", ("model.name=7",)),
        "fraction": (f"[training]\n{key} = 1.5", (f"training.{key}=1.5",)),
        "truth": (f"[training]\n{key} = true", (f"training.{key}=True: expected an integer",)),
        "word": ("[schedule]\npeak = 'high'", ("schedule.peak='high': expected a number",)),
        "choice": ("[model]\npool = 'max'", ("model.pool='max': expected one of 'gap', 'gap_norm', 'token'",)),
        "near": ("[optimizer]\nweight_decy = 1", ("'optimizer.weight_decy'; near it: optimizer.weight_decay",)),
        "none": ("[training]\nbatch = 0", ("training.batch=0: expected at least 1",)),
        "option": ("[model.router_options]\ncodes = nan", ("model.router_options.codes=nan",)),
        "beta": ("[optimizer]\nb1 = nan", ("optimizer.b1=nan",)),
    }


def of_toml(kind: str, key: str, folder: Path) -> Nonsense:
    content, named = contents(key)[kind]
    file = folder / "wrong.toml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return Nonsense(["train", "--run", "run", "--config", str(file)], ("wrong.toml", *named))


def toml(draw: Draw, folder: Path) -> Nonsense:
    """A configuration file that is none."""
    key = draw.choice(["steps", "batch", "seed", "keep", "log_every"])
    return of_toml(draw.choice(sorted(contents(key))), key, folder)


def npy_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """An .npy file that says to have such an array, and has nothing."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": dtype, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def npz(draw: Draw, folder: Path) -> Nonsense:
    """A NumPy file that is damaged, lies, or has what no data set has."""
    images, labels = np.zeros((10, 8, 8), np.uint8), np.arange(10) % 2
    path = folder / "wrong.npz"
    changes: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
        "label": ({"labels": labels * 2**62}, ("label 4611686018427387904",)),
        "unsigned label": ({"labels": labels.astype(np.uint64) * np.uint64(2**63)}, ("label 9223372036854775808",)),
        "negative": ({"labels": labels - 1}, ("labels has the label -1",)),
        "text as maximum": ({"maximum": np.array("white")}, ("maximum='white'",)),
        "NaN as maximum": ({"maximum": np.array(np.nan)}, ("maximum=nan",)),
        "huge maximum": ({"maximum": np.array(1e300)}, ("maximum=1e+300",)),
        "part of a maximum": ({"maximum": np.array(1.5)}, ("maximum=1.5",)),
        "maxima": ({"maximum": np.array([16, 16])}, ("maximum=", "(2,)")),
        "one image": ({"images": images[:1], "labels": labels[:1]}, ("1 images", "cannot be held out")),
        "no image": ({"images": images[:0], "labels": labels[:0]}, ("images has shape (0, 8, 8, 1)",)),
        "objects": ({"labels": np.array([None] * 10, object)}, ("not a readable .npz", "objects")),
        "text as labels": ({"labels": np.array(["a"] * 10)}, ("labels has dtype <U1",)),
        "times as labels": ({"labels": labels.astype("m8[s]")}, ("labels has dtype timedelta64",)),
        "floats": ({"images": images / 255}, ("images has dtype float64",)),
        "not square": ({"images": np.zeros((10, 8, 9), np.uint8)}, ("data.path", "8 x 9 pixels")),
    }
    headers: dict[str, tuple[bytes, tuple[str, ...]]] = {
        "57 TB": (npy_header("|u1", (57, 10**6, 10**6)), ("images has 57,000,000,000,000 bytes by its header",)),
        "beyond 64 bits": (npy_header("|u1", (10**30, 8, 8)), ("images has", "bytes by its header")),
        "negative axis": (npy_header("|u1", (-1, 8, 8)), ("not a readable .npz",)),
        "code": (b"\x93NUMPY\x01\x00\x20\x00__import__('os').abort()########", ("not a readable .npz",)),
        "no array": (b"GIF89a", ("not a readable .npz",)),
        "nothing": (b"", ("not a readable .npz",)),
        "cut header": (npy_header("|u1", (10, 8, 8))[:20], ("not a readable .npz",)),
    }
    kind = draw.choice([*changes, *headers, "cut", "flipped", "empty", "folder", "tail"])
    if kind in changes:
        given, named = changes[kind]
        np.savez(path, **{"images": images, "labels": labels, **given})
    elif kind in headers:
        content, named = headers[kind]
        with zipfile.ZipFile(path, "w", draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as file:
            file.writestr("images.npy", content)
    elif kind == "folder":
        path.mkdir()
        named = ("there is no such file",)
    else:
        np.savez(path, images=images, labels=labels)
        whole, named = path.read_bytes(), ("not a readable .npz",)
        if kind == "flipped":
            at = whole.index(b"NUMPY") + 200  # in the pixels, where only the checksum tells
            whole = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        path.write_bytes({"cut": whole[:-30], "empty": b"", "tail": whole[50:]}.get(kind, whole))
    return Nonsense(["train", "--run", "run", "--data", "npz", "--data.path", str(path)], ("wrong.npz", *named))


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def idx(draw: Draw, folder: Path) -> Nonsense:
    """IDX files of which one is damaged or lies."""
    for part in ("train", "t10k"):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx_bytes(np.zeros((4, 8, 8), np.uint8)))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx_bytes(np.arange(4, dtype=np.uint8) % 2))
    name = draw.choice([path.name for path in sorted(folder.iterdir())])
    whole, rank = (folder / name).read_bytes(), 3 if "images" in name else 1
    contents: dict[str, tuple[bytes, str]] = {
        "large": (bytes([0, 0, 8, rank]) + b"\xff" * 4 * rank, "0 values, but the header says"),
        "large and compressed": (gzip.compress(bytes([0, 0, 8, rank]) + b"\xff" * 4 * rank), "0 values"),
        "cut": (whole[:-1], "values, but the header says"),
        "more": (whole + b"\0", "more than"),
        "no header": (whole[:5], "truncated in the header"),
        "axes": (b"\0\0\x08\xff" + whole[4:], "truncated in the header"),
        "floats": (b"\0\0\x0d" + whole[3:], "IDX type 0x0d"),
        "empty": (b"", "not an IDX file"),
        "cut gzip": (gzip.compress(whole)[:-5], "cannot be read"),
        "damaged gzip": (gzip.compress(whole)[:10] + b"\xff" * 30, "cannot be read"),
        "text": (b"label,image\n", "not an IDX file"),
    }
    content, message = contents[draw.choice(sorted(contents))]
    (folder / name).write_bytes(content)
    return Nonsense(["train", "--run", "run", "--data", "idx", "--data.path", str(folder)], (name, message))


def photos(draw: Draw, folder: Path) -> Nonsense:
    """A folder of images that lacks something, or has a file that is not an image, as its header says."""
    for name in ("cat", "9²"):
        (folder / name).mkdir()
        for number in range(5):
            Image.new("RGB", (9, 7), (40 * number, 0, 0)).save(folder / name / f"{number}.png")
    one = folder / "9²" / "3.png"
    floats = Image.fromarray(np.ones((4, 4), np.float32))
    kinds: dict[str, tuple[Callable[[], object], tuple[str, ...]]] = {
        "header": (lambda: one.write_bytes(b"\x89PNG and no more"), ("3.png", "not a readable image")),
        "nothing": (lambda: one.write_bytes(b""), ("3.png", "not a readable image")),
        "text": (lambda: one.write_text("a cat"), ("3.png", "not a readable image")),
        "floats": (lambda: floats.save(folder / "cat" / "x.tif"), ("x.tif", "floating-point")),
        "integers": (
            lambda: Image.fromarray(np.full((4, 4), 70000, np.int32)).save(folder / "cat" / "x.tif"),
            ("x.tif", "32 bits"),
        ),
        "bomb": (lambda: one.write_bytes(png_of(2**31 - 1, 2**31 - 1)), ("3.png", "not a readable image")),
        "no class": (lambda: [shutil.rmtree(folder / name) for name in ("cat", "9²")], ("no folders of classes",)),
        "no image": (lambda: [file.unlink() for file in (folder / "cat").iterdir()], ("cat", "no images")),
        "no val": (lambda: (folder / "cat").rename(folder / "train"), ("val",)),
        "folder as image": (lambda: (folder / "cat" / "y.png").mkdir(), ("y.png", "not a readable image")),
    }
    make, named = kinds[draw.choice(sorted(kinds))]
    make()
    size = ["--model.image-size", "8", "--model.channels", "3"]
    return Nonsense(["train", "--run", "run", "--data", "folder", "--data.path", str(folder), *size], named)


def png_of(width: int, height: int) -> bytes:
    """The header of a PNG of such a size."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))


def hash_file(draw: Draw, folder: Path) -> Nonsense:
    """A file for `--hash.path` that is not one of hash-table, or for another model."""
    file, kind = folder / "hash.safetensors", draw.choice(["text", "empty", "other", "large", "folder"])
    if kind == "folder":
        file.mkdir()
    elif kind == "other":
        file.write_bytes(safetensors.numpy.save({"tables": np.zeros((1, 64), np.int32)}, metadata={"format": "1"}))
    else:
        file.write_bytes({"text": b"tables", "empty": b"", "large": struct.pack("<Q", 2**62) + b"{}"}[kind])
    return Nonsense(["train", "--run", "run", "--router", "hash", "--hash.path", str(file)], ("hash.safetensors",))


def place(draw: Draw, folder: Path) -> Nonsense:
    """A folder or file to write that cannot be."""
    (folder / "letter.txt").write_text("Dear")
    run, hashed = ["train", "--run"], ["hash-table", "--out"]
    tables: dict[str, tuple[list[str], tuple[str, ...]]] = {
        "file": ([*run, str(folder / "letter.txt")], ("run=", "letter.txt")),
        "under a file": ([*run, str(folder / "letter.txt" / "run")], ("run=", "letter.txt")),
        "other things": ([*run, str(folder)], ("run=", "letter.txt")),
        "NUL": ([*run, "a\0b"], ("run='a\\x00b'",)),
        "long": ([*run, "a" * 300], ("run='aaaa",)),
        "no folder": ([*hashed, str(folder / "no" / "x")], ("out=", "no")),
        "folder": ([*hashed, str(folder)], ("out=", "is a folder")),
        "NUL in out": ([*hashed, "a\0b"], ("out='a\\x00b'",)),
    }
    return Nonsense(*tables[draw.choice(sorted(tables))])


def run(draw: Draw, folder: Path) -> Nonsense:
    """Evaluating or inspecting what is not there."""
    shutil.copytree(OLD_RUN, folder / "run")
    Image.new("RGB", (9, 7)).save(folder / "photo.png")
    (folder / "text.png").write_text("a cat")
    Image.fromarray(np.ones((4, 4), np.float32)).save(folder / "float.tif")
    (folder / "damaged").mkdir()
    (folder / "damaged" / "config.toml").write_text("[")
    there, photo = str(folder / "run"), ["--image", str(folder / "photo.png")]
    step = draw.choice(["99", "-1", "0", str(10**30)])
    step_ = [f"--step={step}"]
    cases: list[tuple[list[str], tuple[str, ...]]] = [
        (["evaluate", "nowhere"], ("run='nowhere'",)),
        (["evaluate", str(folder / "photo.png")], ("run=", "photo.png")),
        (["evaluate", str(folder / "damaged")], ("config.toml", "not a TOML file")),
        (["evaluate", "a\0b"], ("run='a\\x00b'",)),
        (["evaluate", there, *step_], ("step", step)),
        (["inspect", there, *photo, *step_], ("step", step)),
        (["inspect", there], ("image",)),
        (["inspect", "nowhere", *photo], ("run='nowhere'",)),
        (["inspect", there, "--image", "nowhere.png"], ("nowhere.png",)),
        (["inspect", there, "--image", "a\0b"], ("a\\x00b",)),
        (["inspect", there, "--image", str(folder / "text.png")], ("text.png", "not a readable image")),
        (["inspect", there, "--image", str(folder / "float.tif")], ("float.tif", "floating-point")),
        (["inspect", there, *photo, "--out", str(folder / "no" / "x.png")], ("out=", "no")),
        (["inspect", there, *photo, "--out", str(folder)], ("out=", "is a folder")),
        (["train", "--run", there, "--model.depth", "3"], ("depth",)),
    ]
    return Nonsense(*draw.choice(cases))


def words(draw: Draw, folder: Path) -> Nonsense:
    """Commands and things to list that there are not."""
    cases: list[tuple[list[str], tuple[str, ...]]] = [
        (["trian"], ("'trian'",)),
        (["²"], ("'²'",)),
        ([""], ("''",)),
        (["--version?"], ("version?",)),
        (["hash-table", "--out", "x", "--router", "soft_moe"], ("router='soft_moe'",)),
        (["hash-table", "--out", "x", "--model", "mixer_tiny"], ("mixer_tiny",)),
    ]
    return Nonsense(*draw.choice(cases))


def suite(draw: Draw, folder: Path) -> Nonsense:
    """Nonsense for `moespec conformance`."""
    (folder / "wrong.toml").write_text("[")
    (folder / "wrong.json").write_text("[1")
    spec = ["run", "--target", "moespec.backends.numpy"]
    some = ["--algorithm", "z_loss"]
    cases: list[tuple[list[str], tuple[str, ...]]] = [
        (["judge"], ("judge", "check")),
        (["nonsense"], ("nonsense",)),
        (["run"], ("target", "adapter")),
        (["run", "--target", "no.such.module"], ("target", "no.such.module")),
        (["run", "--target", ""], ("target", "''")),
        (["run", "--target", "math"], ("target", "'math'", "from_numpy")),
        (["run", "--adapter", "math:nothing"], ("adapter", "math:nothing")),
        (["run", "--adapter", "²"], ("adapter", "²")),
        (["run", "--target", "math", "--adapter", "math"], ("adapter", "target")),
        ([*spec, "--dtype", "f8"], ("dtype", "f8")),
        ([*spec, "--mode", "fast"], ("mode", "fast")),
        ([*spec, "--jobs", "0"], ("jobs", "'0'")),
        ([*spec, "--jobs", "²"], ("jobs", "'²'")),
        ([*spec, "--jobs", "9" * 30], ("jobs", "9999")),
        ([*spec, "--algorithm", "soft_rooting"], ("algorithm: unknown 'soft_rooting'; near it: soft_routing",)),
        ([*spec, *some, "--vectors", "nowhere"], ("nowhere",)),
        ([*spec, *some, "--report", "no/x.json"], ("report", "no/x.json")),
        ([*spec, *some, "--report", "a\0b"], ("report", "a\\x00b")),
        ([*spec, *some, "--waivers", "nowhere.toml"], ("nowhere.toml",)),
        ([*spec, *some, "--waivers", str(folder / "wrong.toml")], ("wrong.toml",)),
        (["check", "nowhere"], ("nowhere",)),
        (["check", str(folder), "--dtype", "f16"], ("dtype", "f16")),
        (["report", "nowhere.json"], ("nowhere.json",)),
        (["report", str(folder / "wrong.json")], ("wrong.json",)),
        (["show", "nothing/there"], ("nothing/there",)),
        (["list", "--vectors", "nowhere"], ("nowhere",)),
        (["golden", "--algorithm", "²"], ("algorithm", "²")),
    ]
    return Nonsense(*draw.choice(cases), suite=True)


KINDS = (
    *(field, option, relation) * 4, *(toml, npz, run, photos) * 2, idx, hash_file, place, words, suite, suite, suite
)  # fmt: skip


def squeezed(text: str) -> str:
    """Without spaces, capitals and the difference of hyphen and underscore."""
    return re.sub(r"\s", "", text).replace("-", "_").lower()


Ends = Callable[[Callable[[Path], Nonsense]], None]


class Begun(BaseException):
    """A training began."""


@pytest.fixture
def ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ends:
    """What `make` gives for a folder ends as it should."""

    def begun(*given: object, **more: object) -> None:
        raise Begun(given)

    def run(make: Callable[[Path], Nonsense]) -> None:
        case = make(tmp_path / "given")
        before = files(tmp_path)
        capsys.readouterr()
        try:
            status: Any = (conformance.main if case.suite else cli.main)(case.arguments)
        except SystemExit as end:  # of the suite's parser
            status = end.code
        text = capsys.readouterr().err
        assert status not in (0, None), (case, text)
        assert "Traceback" not in text
        assert case.suite or text.count("moespec: ") == 1, text
        assert "\n" not in text.rpartition("moespec: ")[2].strip() or "is not a command" in text, text
        for name in case.named:
            assert squeezed(name) in squeezed(text), (name, case.arguments, text)
        assert len(text) < 6000, "a message is not longer than a screen"
        assert files(tmp_path) == before, "something was written"

    monkeypatch.setattr(commands, "train", begun)
    monkeypatch.setattr(memory, "of_machine", lambda: 8 * 2**30)
    monkeypatch.setenv("MOESPEC_BACKEND", "numpy")
    for name in ("given", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return run


@pytest.mark.parametrize("seed", SEEDS)
def test_nonsense(ends: Ends, seed: int) -> None:
    draw = random.Random(seed)
    ends(lambda folder: draw.choice(KINDS)(draw, folder))


@pytest.mark.parametrize(("flags", "named"), RELATIONS, ids=[flags[:60] for flags, _ in RELATIONS])
def test_each_relation(ends: Ends, flags: str, named: tuple[str, ...]) -> None:
    ends(lambda folder: of_relation(flags, named))


@pytest.mark.parametrize("kind", contents("steps"))
def test_each_configuration_file(ends: Ends, kind: str) -> None:
    ends(lambda folder: of_toml(kind, "steps", folder))


def test_every_kind_is_drawn() -> None:
    assert NUMBER < 60 or {random.Random(seed).choice(KINDS) for seed in SEEDS} == set(KINDS)
