"""Finds the moespec layer that returns the output of a MoE block of torch, with the block's own parameters.

The recording of the gate names the router. Names and shapes tell the other parameters apart as far as they can. Where they leave a choice,
such as which of two matrices is gated, all arrangements and activations are tried on the recorded tokens.
"""

import re
import warnings
from collections.abc import Iterable, Iterator
from itertools import permutations, product
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from moespec.backends.layer import BETWEEN, GATED
from moespec.backends.torch.nn import MoE
from moespec.conformance.record.explanation import explain, explained, named
from moespec.conformance.record.file import Gate
from moespec.conformance.record.recorder import BIASES, Recorder, arrays_of, record
from moespec.spec.checks import plural
from moespec.spec.errors import ConfigError, SpecError
from moespec.spec.implementations.models_page import said

__all__ = ["DEFAULTS", "EQUAL", "Block", "compared", "evaluated", "explain_layer", "record_layers"]

TOKENS = 256
"""The maximum number of tokens that are compared."""
EQUAL = 1e-4
"""The largest error (see `compared`) of equal outputs in float32."""
EVALUATION = {"capacity_factor": inf, "noise_multiplier": 0.0, "importance_weight": 0.0, "load_weight": 0.0}
"""Options of `softmax_token_choice` without capacity, noise and losses."""
DEFAULTS = {"gelu": "tanh", "weights_on": "output", "copy_experts": 0}
"""Arguments that are not shown with these values."""
Arrays = dict[str, Tensor]
Router = tuple[str, dict[str, Any]]
"""The name of a router, and its options."""


class Block:
    """A MoE block, its gate's name, and the tokens and output (tokens, width) of its first call. Raises ConfigError without a gate."""

    def __init__(self, name: str, module: nn.Module) -> None:
        self.module, self.tokens, self.output = module, torch.empty(0), torch.empty(0)
        for self.gate, each in module.named_modules():
            text = f"{self.gate.rpartition('.')[2]} {type(each).__name__}"
            if (
                self.gate
                and re.search("gate|router", text, re.I)
                and not re.search("expert|shared|mlp|_proj$", self.gate)
            ):
                return
        raise ConfigError(f"module: {name} contains no gate or router; with --layer, name the block around the gate")

    def attach(self, name: str, recorder: Recorder) -> str:
        """Hook the block, and record its gate. name: the block's name. Returns the gate's name."""
        gate = f"{name}.{self.gate}"
        recorder.hook(gate, self.module.get_submodule(self.gate), self.module)
        recorder.hooks.append(self.module.register_forward_hook(self._heard, with_kwargs=True))
        return gate

    def _heard(self, module: Any, placed: Any, by_name: Any, output: Any) -> None:
        if not len(self.tokens):
            x = next(arrays_of([placed, by_name]))
            y = next((array for array in arrays_of(output) if array.numel() == x.numel()), None)
            if y is None:
                raise ConfigError(
                    "module: a block returned no array of its input's size; name the block around gate and experts"
                )
            self.tokens, self.output = (a.detach().reshape(-1, x.shape[-1])[:TOKENS].clone() for a in (x, y))


def record_layers(
    target: str, module: str | None, data: str | None, path: Path, outputs: str | None
) -> tuple[str, bool]:
    """Record the gates of the matching blocks, as `record` does. Returns the text, and whether all layers are found.

    Raises the errors of `record`, and ConfigError for a block without a gate or a model that is not of torch.
    """
    blocks: dict[str, tuple[str, Block]] = {}

    def attach(recorder: Recorder, model: Any) -> None:
        for name, each in recorder.matching(model).items():
            block = Block(name, each)
            blocks[block.attach(name, recorder)] = name, block

    gates = record(target, module, data, path, outputs, attach)
    if not blocks:
        raise ConfigError(f"model={target!r}: --layer needs an instance of torch.nn.Module")
    alike: dict[str, dict[str, float]] = {}
    for name, block, gate in ((*blocks[gate.name], gate) for gate in gates if gate.name in blocks):
        text, error = explain_layer(block, gate)
        alike.setdefault(text, {})[name] = error
    lines = [f"{', '.join(each)}:\n  layer    {text.format(max(each.values()))}" for text, each in alike.items()]
    return "\n\n".join([explain(gates)[0], *lines]), all(max(each.values()) <= EQUAL for each in alike.values())


def explain_layer(block: Block, gate: Gate) -> tuple[str, float]:
    """Returns the text that names the layer or says why there is none, with a field for the error, and the error of `compared`."""
    best, count = ("", inf), 0
    try:
        for layer, error in compared(block, gate, _routers(block, gate)):
            count += 1
            shown = said({name: value for name, value in layer.items() if DEFAULTS.get(name) != value})
            best = min(best, (f"MoE({shown})", error), key=lambda pair: pair[1])
            if error <= EQUAL:
                tokens = plural(len(block.tokens), "tokens")
                return f"{best[0]}\n           output of {tokens}: error up to {{:.1g}}", error
    except (RuntimeError, ValueError) as unknown:  # RuntimeError: experts of different shapes
        return f"not expressed: {unknown}", inf
    if not count:
        return "not expressed: the router is not known, or no layer has parameters of these shapes", inf
    return f"not expressed: the nearest of {plural(count, 'layers')} has an error of {{:.1g}}: {best[0]}", best[1]


def compared(block: Block, gate: Gate, routers: Iterable[Router]) -> Iterator[tuple[dict[str, Any], float]]:
    """Yields the arguments of each layer with one of these routers that has the block's parameters, and its error.

    The error is the largest difference between the outputs of block and layer, relative to the block's largest output.
    Raises ValueError for parameters that no layer has, and RuntimeError for experts of different shapes.
    """
    for layer, arrays in _layers(block, gate, routers):
        if (error := _error(block, layer, arrays)) != inf:
            yield layer, error


def _routers(block: Block, gate: Gate) -> Iterator[Router]:
    """Yields the router of the gate. If the gate returned only logits: routers whose number of choices is an attribute of the block."""
    if gate.choices is not None:
        if found := named(explained(gate)):
            yield found.name, evaluated(found.name, found.options, gate)
        return
    values = [*vars(block.module).values(), *vars(block.module.get_submodule(block.gate)).values()]
    counts = sorted({n for n in values if type(n) is int and 0 < n < gate.experts})
    for n, divided, affinity in product(counts, (True, False), ("softmax", "sigmoid", "sqrt_softplus")):
        name, own = ("softmax", {}) if affinity == "softmax" else ("sigmoid", {"affinity": affinity})
        router, options = f"{name}_token_choice", {"choices": n, "normalize_selected": divided, **own}
        yield router, evaluated(router, options, gate)


def evaluated(router: str, options: dict[str, Any], gate: Gate) -> dict[str, Any]:
    """Returns a router's options with those that switch off what a gate does not do at evaluation: capacity, noise, losses, a bias."""
    if router == "softmax_token_choice":
        return {**options, **EVALUATION}
    return dict(options) if gate.bias is not None else {**options, "bias_update_rate": 0.0}


def _sorted(block: Block, gate: Gate) -> tuple[Arrays, Arrays, Arrays]:
    """Returns the layer's arrays around the experts by name, and the arrays of experts and shared experts with a leading axis.

    Raises ValueError for a parameter that no layer has.
    """
    arrays, experts, shared, left = (Arrays() for _ in range(4))
    stacks: dict[str, list[Tensor]] = {}
    width = block.tokens.shape[1]
    kinds = {
        (width, gate.experts): "router.kernel",
        (gate.experts, width): "router.kernel",
        (gate.experts,): "router.bias",
    }
    for name, value in (*block.module.named_parameters(), *block.module.named_buffers()):
        if name.rpartition(".")[2] in BIASES:
            arrays["router.state.bias"] = value.detach().flatten()
        elif name.startswith(f"{block.gate}.") and tuple(value.shape) in kinds:
            arrays[kinds[tuple(value.shape)]] = value.detach().T if value.shape[1:] == (width,) else value.detach()
        elif isinstance(value, nn.Parameter):
            stacks.setdefault(re.sub(r"\.\d+(?=\.|$)", ".*", name, count=1), []).append(value.detach())
    for name, each in stacks.items():
        array = torch.stack(each) if "*" in name else each[0]
        if "gate" in name and array.numel() == width:
            arrays["shared.gate"] = array.flatten()
        elif "shared" in name:
            shared[name] = array if "*" in name else array[None]
        else:
            (experts if "expert" in name or array.ndim == 3 else left)[name] = array
    down, up = sorted(left.values(), key=len) if len(left) == 2 else (torch.empty(0), torch.empty(1))
    if down.shape == up.shape[::-1]:  # the projections of latent experts
        arrays, left = {**arrays, "latent.down": down.T, "latent.up": up.T}, {}
    if left or "router.kernel" not in arrays:
        names = ", ".join(f"{name} {tuple(array.shape)}" for name, array in left.items())
        raise ValueError(f"no layer has the parameters {names}" if left else f"{block.gate} has no linear kernel")
    count = min(map(len, experts.values()), default=0)  # LongCat-Flash has unused arrays of experts that copy
    return arrays, {name: array[:count] for name, array in experts.items()}, shared


def _arranged(stacks: Arrays, width: int) -> Iterator[Arrays]:
    """Yields each way to use weights (n, a, b) and biases (n, a) as `fc1`, `fc3` and `fc2` of n perceptrons that the shapes allow."""
    weights = [name for name, array in stacks.items() if array.ndim == 3]
    if not weights:
        raise ValueError("the block has no experts")
    for order, across in product(permutations(weights), (True, False)):
        maps = []
        for name in order:
            bias = stacks.get(name.removesuffix("weight") + "bias", stacks.get(f"{name}_bias"))
            weight = stacks[name].mT if across else stacks[name]
            maps.append({"weight": weight} if bias is None else {"weight": weight, "bias": bias})
        ways = [maps]
        packed = len(maps) == 2 and maps[0]["weight"].shape[2] % 2 == 0
        for axis, shape in ((-2, (2, -1)), (-1, (-1, 2))) if packed else ():  # fc1 and fc3, in a row or interleaved
            pair = [{k: a.reshape(*a.shape[:-1], *shape).select(axis, i) for k, a in maps[0].items()} for i in (0, 1)]
            ways += [[*pair, maps[1]], [*pair[::-1], maps[1]]]
        for way in ways:
            *first, last = (each["weight"].shape for each in way)
            if len({*first}) == 1 and first[0][1] == width and last[1:] == first[0][:0:-1]:
                names = zip(("fc1", "fc2") if len(way) == 2 else ("fc1", "fc3", "fc2"), way, strict=True)
                yield {f"{fc}.{kind}": array for fc, each in names for kind, array in each.items()}


def _layers(block: Block, gate: Gate, routers: Iterable[Router]) -> Iterator[tuple[dict[str, Any], Arrays]]:
    """Yields the arguments of each layer that the block may be, and its arrays by the names of `MoE`."""
    around, stacks, of_shared = _sorted(block, gate)
    width = block.tokens.shape[1]
    inner = around["latent.down"].shape[1] if "latent.down" in around else width
    shares = _arranged(of_shared, width) if of_shared else [{}]
    found = product(routers, _arranged(stacks, inner), shares)
    forms = [*product(BETWEEN, ("tanh", "erf"), ("output", "input"), ("copy_experts", "zero_experts"))]
    for ((router, options), experts, shared), (kind, gelu, place, other) in product(found, forms):
        count, _, hidden = experts["fc1.weight"].shape
        if (gelu == "erf" and BETWEEN[kind] != "gelu") or (other == "zero_experts" and count == gate.experts):
            continue  # as with "tanh" or "copy_experts"
        if (kind in GATED) != ("fc3.weight" in experts):
            continue
        layer: dict[str, Any] = {"width": width, "hidden": hidden, "experts": gate.experts}
        layer |= {"expert_bias": "fc1.bias" in experts, "expert_activation": kind, "gelu": gelu, "weights_on": place}
        layer |= {other: gate.experts - count, "router": router, **options}
        layer |= {"shared_experts": shared["fc1.weight"][:, 0].numel() // hidden} if shared else {}
        layer |= {"shared_gate": True} if "shared.gate" in around else {}
        layer |= {"latent_width": inner} if "latent.down" in around else {}
        layer |= {"bias": True} if "router.bias" in around else {}
        arrays = around | {f"experts.{name}": array for name, array in experts.items()}
        for name, array in shared.items():  # n experts become one of n times the hidden width
            whole = array.transpose(0, 1).flatten(1) if name in ("fc1.weight", "fc3.weight") else array.flatten(0, 1)
            arrays[f"shared.{name}"] = array.sum(0) if name == "fc2.bias" else whole
        yield layer, arrays


def _error(block: Block, layer: dict[str, Any], arrays: Arrays) -> float:
    """Returns the error of a layer (see `compared`), or infinity if the layer does not have exactly these parameters."""
    x, y = block.tokens, block.output
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            ours = MoE(**layer, tokens=len(x), device="meta", dtype=x.dtype).eval()
            names = ours.state_dict()
            arrays = {n: x.new_zeros(a.shape) for n, a in names.items() if n == "router.state.bias"} | arrays
            if {n: a.shape for n, a in arrays.items()} != {n: a.shape for n, a in names.items()}:
                return inf
            off = torch.func.functional_call(ours, arrays, (x[None],))[0] - y
    except SpecError:
        return inf
    return float(off.abs().max() / y.abs().max().clamp_min(1e-30))
