"""Record the MoE blocks of transformers' models and write the table `spec/implementations/models.json` and the page `docs/models.md`.

`models.toml` lists the models. Each block is built with the model's experts and choices but with narrow layers and random weights.
The recorder (`conformance/record`) names the router. A moespec layer with the block's own weights must then return the block's output.
Otherwise, `models.toml` must name the parts that moespec does not compute.
"""

import argparse
import copy
import importlib
import inspect
import json
import re
import sys
import tomllib
from math import inf
from pathlib import Path
from typing import Any

from moespec.backends.layer import GATED
from moespec.conformance.record.explanation import explained, named
from moespec.conformance.record.file import Gate
from moespec.conformance.record.layer import DEFAULTS, EQUAL, Block, compared, evaluated
from moespec.conformance.record.recorder import Recorder, recognised
from moespec.models.files import write_atomically
from moespec.spec.implementations.models import Sizes, parsed
from moespec.spec.implementations.models_page import check_names, page

PATH, PAGE = Path("spec/implementations/models.json"), Path("docs/models.md")
LISTED = Path(__file__).with_name("models.toml")
WIDTH, HIDDEN, TOKENS = 32, 24, 256
"""The width of a token, the hidden width of an expert, and the number of tokens of a recorded block."""
SIZES = re.compile(r".*(intermediate_size|ffn_hidden_size|expert_dim|latent_size|moe_hidden_size)")
"""Configuration fields that are shortened in the same ratio as the hidden width of an expert."""
FORMS = (
    *("expert_activation", "expert_bias", "gelu", "shared_experts", "shared_gate", "latent_width"),
    *("copy_experts", "zero_experts", "weights_on"),
)
"""The arguments of a layer that a row shows, if they are not defaults."""


def main(arguments: list[str] | None = None) -> int:
    """Return 0 if the table and the page were written or, with `--check`, equal the committed files, and 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m moespec.conformance.peers.models", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the committed files instead of writing them")
    parser.add_argument(
        "--model", action="append", default=[], metavar="NAME", help="record only this model and print it"
    )
    options = parser.parse_args(arguments)
    listed = tomllib.loads(LISTED.read_text(encoding="utf-8"))
    if unknown := sorted(set(options.model) - listed.keys()):
        print(f"--model {unknown[0]}: not in {LISTED}", file=sys.stderr)
        return 1
    rows = [row_of(name, given) for name, given in listed.items() if name in options.model or not options.model]
    if options.model:
        print(json.dumps(rows, indent=1))
        return 0
    transformers = importlib.import_module("transformers")
    table = json.dumps({"transformers": transformers.__version__, "models": rows}, indent=1) + "\n"
    texts = {PATH: table, PAGE: page(transformers.__version__, map(check_names, parsed(json.loads(table)).values()))}
    for path, text in texts.items():
        if not options.check:
            write_atomically(path, text.encode())
        elif path.read_text(encoding="utf-8") != text:
            print(f"{path}: differs from what the installed transformers gives; run `nox -s models`", file=sys.stderr)
            return 1
    return 0


def row_of(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a model in the table. given: the table of `models.toml` with this name."""
    about = {"name": name, "title": given["title"], "family": given["family"]}
    empty = {
        "same_as": "",
        "source": "",
        "block": "",
        "config": {},
        "router": "",
        "options": {},
        "readings": [],
        "layer": {},
    }
    if "block" not in given:
        return about | empty | {**given, "checked": "", "not_expressed": given.get("not_expressed", [])}
    if "set" in given and not given.get("source"):
        raise SystemExit(f"{name}: set without source; say in {LISTED.name} where these values were read")
    sizes, latent = _sizes(_block(given, device="meta"))
    module = _block(given, small=WIDTH, ratio=HIDDEN / sizes.hidden)
    _, gate = _recorded(module)
    found, reasons = named(explained(gate)), given.get("not_expressed", [])
    row = about | empty | {"same_as": given.get("as", ""), "source": given.get("source", ""), "block": given["block"]}
    row |= {"config": given.get("set", {}), **sizes._asdict(), "checked": "", "not_expressed": reasons}
    if found is None:
        if not reasons:
            raise SystemExit(f"{name}: no router explains the gate; say why in {LISTED.name}")
        return row
    options = evaluated(found.name, {**found.options, **given.get("options", {})}, gate)
    row |= {"experts": gate.experts, "router": found.name, "options": options, "checked": "router"}
    if (layer := _layer(module, (found.name, options))) is not None:
        options |= {"bias": True} if "bias" in layer else {}
        layer |= {"latent_width": latent} if "latent_width" in layer else {}
        forms = {form: layer[form] for form in FORMS if layer.get(form) not in (None, DEFAULTS.get(form))}
        row |= {"layer": forms, "checked": "layer"}
    elif reasons and "layer" in given:
        row["layer"] = given["layer"]
    else:
        raise SystemExit(f"{name}: the block differs from the layer; give the layer and say why in {LISTED.name}")
    implied = _implied(row, biased=gate.bias is not None)
    options |= {option: "inf" for option, value in options.items() if value == inf}
    return row | {"readings": sorted({*map(_lettered, found.readings), *implied})}


def _implied(row: dict[str, Any], *, biased: bool) -> list[str]:
    """Return the ledger readings that a row implies besides the readings of the gate. biased: whether there is a selection bias."""
    layer, softmax = row["layer"], row["router"] == "softmax_token_choice"
    readings = ["LF-5a", "LF-6a"] * biased + ["SA-5b" if "bias" in row["options"] else "SA-5a"] * softmax
    if row["checked"] != "layer":
        return readings
    kind = layer["expert_activation"]
    readings += ["IG-1b" if "weights_on" in layer else "IG-1a"] + ["GE-1a"] * (kind in GATED)
    readings += ["GE-3a"] * (kind == "clamped_swiglu") + ["GE-4a"] * (kind == "situglu")
    readings += ["GE-2c" if "shared_gate" in layer else "GE-2a"] * ("shared_experts" in layer)
    return readings + ["LE-1a"] * ("latent_width" in layer) + ["ZC-1a"] * ("copy_experts" in layer)


def _block(given: dict[str, Any], *, device: str = "cpu", small: int = 0, ratio: float = 1.0) -> Any:
    """Build a block. small: the width of a token, if not the model's. ratio: factor on the other widths."""
    import torch

    torch.manual_seed(0)
    folder, name = given["block"].split(".")
    room = f"transformers.models.{folder}"
    kind = getattr(importlib.import_module(f"{room}.modeling_{folder}"), name)
    configs = vars(importlib.import_module(f"{room}.configuration_{folder}"))
    stem = given.get("config") or max(
        (each for each in configs if each.endswith("Config")), key=lambda each: _same(each, name)
    )
    config = configs[stem](**given.get("set", {}))
    config.allow_global_per_layer_attribute_access = True
    for field, value in vars(config).items():
        if small and SIZES.fullmatch(field) and value:
            short = [max(1, round(each * ratio)) for each in (value if isinstance(value, list) else [value])]
            setattr(config, field, short if isinstance(value, list) else short[0])
    if small:
        config.hidden_size = small
    config._experts_implementation = "eager"
    takes, more = inspect.signature(kind.__init__).parameters, {}
    if "layer_idx" in takes:
        more["layer_idx"] = len(getattr(config, "mlp_layer_types", None) or [0] * 8) - 1
    if "intermediate_size" in takes:
        more["intermediate_size"] = config.moe_intermediate_size[0]
    with torch.device(device):
        block = kind(config, **more).eval()
    with torch.no_grad():
        for each, array in (*block.named_parameters(), *block.named_buffers()):
            if device != "meta" and array.is_floating_point():
                array.normal_(std=0.1 if "bias" in each else 0.25)
    return block


def _lettered(reading: str) -> str:
    """Return the id of a reading with its letter: "GL-1" is the answer of this specification, "GL-1a"."""
    return reading if reading[-1].isalpha() else f"{reading}a"


def _same(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _sizes(module: Any) -> tuple[Sizes, int]:
    """Return the sizes of a block of transformers, with only the experts that have weights, and the width of the experts' inputs."""
    experts, gate = module.experts, module.get_submodule(Block("", module).gate)
    down = experts.down_proj
    first = experts.gate_up_proj if hasattr(experts, "gate_up_proj") else experts.up_proj
    # A gate_up_proj has both halves of the hidden units. An up_proj is (experts, hidden, width).
    hidden = next((n for n in down.shape[1:] if 2 * n in first.shape[1:]), first.shape[1])
    width = max((each for each in gate.parameters() if each.ndim == 2), key=len).shape[1]
    return Sizes(width, hidden, len(down)), down[0].numel() // hidden


def _recorded(module: Any) -> tuple[Block, Gate]:
    """Run a block on random tokens. Return the block with the tokens and its output, and the recorded gate."""
    import torch

    # Inkling's gate also returns the shared experts' weights.
    recorder = Recorder("", lambda _, i, o: recognised(i, o[:3] if isinstance(o, tuple) else o))
    block = Block("block", module)
    block.attach("block", recorder)
    with torch.no_grad():
        module(torch.randn(1, TOKENS, WIDTH))
    for hook in recorder.hooks:
        hook.remove()
    return block, recorder.gates()[0]


def _layer(module: Any, router: tuple[str, dict[str, Any]]) -> dict[str, Any] | None:
    """Return the arguments of the layer that returns a block's output for small and large hidden units, or None.

    Large hidden units show whether the activation is clamped. router: the name and options.
    """
    scaled = copy.deepcopy(module)
    first = next(array for name, array in scaled.experts.named_parameters() if name in ("gate_up_proj", "up_proj"))
    first.data.mul_(40.0)
    pairs = (compared(*_recorded(each), [router]) for each in (module, scaled))
    try:
        return next((layer for (layer, a), (_, b) in zip(*pairs, strict=True) if max(a, b) <= EQUAL), None)
    except ValueError:  # a parameter that no layer has
        return None


if __name__ == "__main__":
    sys.exit(main())
