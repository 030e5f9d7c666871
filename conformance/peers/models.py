"""Record the MoE blocks of transformers' models and write the table `spec/implementations/models.json` and the page `docs/models.md`.

`models.toml` lists the models. Each block is built with the model's experts and choices but with narrow layers and random weights.
The recorder (`conformance/record`) names the router. A moespec layer with the block's own weights must then return the block's output.
Otherwise, `models.toml` must name the parts that moespec does not compute.
"""

import argparse
import importlib
import inspect
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from moespec.backends.common.network import second_factor
from moespec.backends.layer import BETWEEN, GATED
from moespec.conformance.record.explanation import explained, named
from moespec.conformance.record.recorder import BIASES, Recorder, recognised
from moespec.models.files import write_atomically
from moespec.spec.implementations.models import Sizes, parsed
from moespec.spec.implementations.models_page import check_names, page

PATH, PAGE = Path("spec/implementations/models.json"), Path("docs/models.md")
LISTED = Path(__file__).with_name("models.toml")
WIDTH, HIDDEN, TOKENS = 32, 24, 256
"""The width of a token, the hidden width of an expert, and the number of tokens of a recorded block."""
SIZES = re.compile(r".*(intermediate_size|ffn_hidden_size|expert_dim|latent_size|moe_hidden_size)")
"""Configuration fields that are shortened in the same ratio as the hidden width of an expert."""
SHARED = ("shared_experts", "shared_expert", "shared_mlp")
LATENT = (("fc1_latent_proj", "fc2_latent_proj"), ("pre_expert_proj", "post_expert_proj"))
UNLIMITED = {"capacity_factor": "inf", "noise_multiplier": 0.0, "importance_weight": 0.0, "load_weight": 0.0}
"""Options of `softmax_token_choice` without capacity, noise and losses, which the recorded models do not have at evaluation."""


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
    whole = _layer(_block(given, device="meta"))
    sizes = whole.pop("sizes")
    block = _block(given, small=WIDTH, ratio=HIDDEN / sizes["hidden"])
    found = named(explained(_recorded(block)))
    reasons = given.get("not_expressed", [])
    row = about | empty | {"same_as": given.get("as", ""), "source": given.get("source", ""), "block": given["block"]}
    row |= {"config": given.get("set", {}), **sizes, "layer": whole, "checked": "", "not_expressed": reasons}
    if found is None:
        if not reasons:
            raise SystemExit(f"{name}: no router explains the gate; say why in {LISTED.name}")
        return row | {"layer": {}}
    options = {**found.options, **given.get("options", {})}
    if found.name == "softmax_token_choice":
        options |= UNLIMITED | ({"bias": True} if _logit_bias(block) is not None else {})
    elif _selection_bias(block) is None:
        options["bias_update_rate"] = 0.0
    row |= {"router": found.name, "options": options, "checked": "router"}
    for place in ("output", "input"):
        layer = whole | ({"weights_on": "input"} if place == "input" else {})
        if (equal := _equal(block, found.name, options, layer)) == "no":
            continue
        if equal == "small" and not reasons:
            raise SystemExit(
                f"{name}: the block differs from the layer for large activations; say why in {LISTED.name}"
            )
        row |= {"layer": layer, "checked": "layer"}
        break
    else:
        if not reasons:
            raise SystemExit(f"{name}: the block differs from the layer; say why in {LISTED.name}")
    implied = _implied(row, biased=_selection_bias(block) is not None)
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


def _gate(block: Any) -> tuple[str, Any]:
    """Return the name and the module of the gate."""
    return next((name, getattr(block, name)) for name in ("gate", "router") if hasattr(block, name))


def _recorded(block: Any) -> Any:
    """Run a block on random tokens and return the recorded gate."""
    import torch

    def outputs(module: Any, inputs: Any, output: Any) -> dict[str, Any]:
        arrays = (
            output[:3] if isinstance(output, tuple) else output
        )  # Inkling's gate also returns the shared experts' weights
        return {"bias": _selection_bias(block), **recognised(inputs, arrays)}

    recorder = Recorder(_gate(block)[0], outputs)
    recorder.attach(block)
    with torch.no_grad():
        block(torch.randn(1, TOKENS, WIDTH))
    for hook in recorder.hooks:
        hook.remove()
    return recorder.gates()[0]


def _selection_bias(block: Any) -> Any:
    named = (*block.named_buffers(), *block.named_parameters())
    return next((array.flatten() for name, array in named if name.split(".")[-1] in BIASES), None)


def _logit_bias(block: Any) -> Any:
    return getattr(_gate(block)[1], "bias", None)


def _halves(experts: Any, name: str, across: bool) -> tuple[Any, Any]:
    """Return the gate and the other half of a packed kernel or bias, with the hidden width as the last axis."""
    packed = getattr(experts, name)
    packed = packed.transpose(-1, -2) if across else packed
    return (packed[..., ::2], packed[..., 1::2]) if _interleaved(experts) else tuple(packed.chunk(2, dim=-1))


def _arrays(block: Any) -> dict[str, Any]:
    """Return the arrays of a block by the names of the parameters of `moespec.backends.torch.nn.MoE`."""
    experts = block.experts
    down, width = experts.down_proj, max(_kernels(block), key=lambda each: each.shape[0]).shape[1]
    down_name, up_name = LATENT[hasattr(block, "pre_expert_proj")]
    latent = getattr(getattr(block, down_name, None), "weight", None)
    inner = width if latent is None else latent.shape[0]
    first = experts.gate_up_proj if hasattr(experts, "gate_up_proj") else experts.up_proj
    inner = inner if inner in first.shape[1:] else next(n for n in first.shape[1:] if n in down.shape[1:])
    across = first.shape[1] != inner  # (experts, hidden, width), as in torch.nn.Linear
    found = {"router.kernel": max(_kernels(block), key=lambda each: each.shape[0]).T}
    found["experts.fc2.weight"] = down.transpose(1, 2) if across else down
    count = len(down)
    if hasattr(experts, "gate_up_proj"):
        gate, up = _halves(experts, "gate_up_proj", across)
        found |= {"experts.fc1.weight": gate[:count], "experts.fc3.weight": up[:count]}
    else:
        found["experts.fc1.weight"] = first.transpose(1, 2) if across else first
    if hasattr(experts, "gate_up_proj_bias"):
        found["experts.fc1.bias"], found["experts.fc3.bias"] = _halves(experts, "gate_up_proj_bias", False)
        found["experts.fc2.bias"] = experts.down_proj_bias
    if (bias := _selection_bias(block)) is not None:
        found["router.state.bias"] = bias
    if (bias := _logit_bias(block)) is not None:
        found["router.bias"] = bias
    shared = next((getattr(block, name) for name in SHARED if getattr(block, name, None) is not None), None)
    if shared is not None and hasattr(shared.down_proj, "weight"):
        found["shared.fc2.weight"] = shared.down_proj.weight.T
        if hasattr(shared, "gate_up_proj"):
            found["shared.fc1.weight"], found["shared.fc3.weight"] = shared.gate_up_proj.weight.T.chunk(2, dim=1)
        else:
            found["shared.fc1.weight"] = shared.up_proj.weight.T
        if hasattr(shared, "gate_proj"):
            found["shared.fc3.weight"], found["shared.fc1.weight"] = shared.up_proj.weight.T, shared.gate_proj.weight.T
    if hasattr(block, "shared_expert_gate"):
        found["shared.gate"] = block.shared_expert_gate.weight[0]
    if latent is not None:
        found |= {"latent.down": latent.T, "latent.up": getattr(block, up_name).weight.T}
    return found


def _kernels(block: Any) -> list[Any]:
    return [each for name, each in _gate(block)[1].named_parameters() if each.ndim == 2 and name.endswith("weight")]


def _layer(block: Any) -> dict[str, Any]:
    """Return the layer's options that the parameters of a block determine, and under "sizes" the widths and the number of experts."""
    arrays = _arrays(block)
    weight, gated = arrays["experts.fc1.weight"], "experts.fc3.weight" in arrays
    hidden = weight.shape[2]
    width, choices = arrays["router.kernel"].shape
    layer: dict[str, Any] = {
        "expert_activation": _activation(block, gated),
        "expert_bias": "experts.fc1.bias" in arrays,
    }
    if (shared := arrays.get("shared.fc1.weight")) is not None:
        layer["shared_experts"] = shared.shape[1] // hidden
    if "shared.gate" in arrays:
        layer["shared_gate"] = True
    if "latent.down" in arrays:
        layer["latent_width"] = arrays["latent.down"].shape[1]
    experts = len(weight)
    if hasattr(block.experts, "identity_expert"):
        experts, layer["copy_experts"] = choices, choices - experts
    return layer | {"sizes": Sizes(width, hidden, experts)._asdict()}


def _activation(block: Any, gated: bool) -> str:
    """Return the `expert_activation` with which the experts can be expressed best."""
    import torch

    from moespec.backends.torch import namespace as xp
    from moespec.backends.torch.network import activate

    gate = torch.linspace(-30, 30, 61)
    up = gate.flip(0)
    theirs, second = _activated(block.experts, gate, up) if gated else block.experts.act_fn(gate), torch.ones(1)
    for name, kind in (GATED if gated else {name: name for name in BETWEEN if name not in GATED}).items():
        second = second_factor(xp, kind)(up) if gated else second
        if torch.allclose(theirs, activate("tanh", kind)(gate) * second):
            return name
    return "swiglu" if gated else "gelu"


def _activated(experts: Any, gate: Any, up: Any) -> Any:
    """Return the hidden units that gated experts compute from the two factors."""
    import torch

    if not hasattr(experts, "_apply_gate"):
        return experts.act_fn(gate) * up
    return experts._apply_gate(
        torch.stack((gate, up), -1).flatten() if _interleaved(experts) else torch.cat((gate, up))
    )


def _interleaved(experts: Any) -> bool:
    return "[..., ::2]" in inspect.getsource(type(experts))


def _equal(block: Any, router: str, options: dict[str, Any], layer: dict[str, Any]) -> str:
    """Compare a block with the layer that has the block's weights: "yes", "small" (only for small activations) or "no"."""
    import torch

    from moespec.backends.torch.nn import MoE

    arrays, sizes = _arrays(block), _layer(block)
    own = {
        **sizes.pop("sizes"),
        **layer,
        **({"latent_width": sizes["latent_width"]} if "latent_width" in sizes else {}),
    }
    ours = MoE(**own, tokens=TOKENS, router=router, **{**options, **_unlimited(options)}).eval()  # type: ignore[arg-type]
    state = ours.state_dict()
    if {name: tuple(array.shape) for name, array in arrays.items()} != {
        name: tuple(a.shape) for name, a in state.items() if name in arrays
    }:
        return "no"
    equal = "no"
    with torch.no_grad():
        for name, factor in (("small", 1.0), ("yes", 40.0)):
            block.experts.get_parameter("gate_up_proj" if hasattr(block.experts, "gate_up_proj") else "up_proj").mul_(
                factor
            )
            for each, value in _arrays(block).items():
                state[each].copy_(value)
            x = torch.randn(1, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1))
            theirs = block(x)
            theirs = (theirs[0] if isinstance(theirs, tuple) else theirs).reshape(x.shape)
            off = (ours(x) - theirs).abs().amax(dim=-1)
            if off.max() > 1e-4 * theirs.abs().max():
                break
            equal = name
        block.experts.get_parameter("gate_up_proj" if hasattr(block.experts, "gate_up_proj") else "up_proj").div_(
            factor
        )
    return equal


def _unlimited(options: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in options.items() if value == "inf"}


if __name__ == "__main__":
    sys.exit(main())
