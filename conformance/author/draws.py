"""Draw the tokens of router cases. Repeat a draw if any choice is close to a tie."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec import spec
from moespec.conformance.author.definition import Definition, Routed, tensor
from moespec.conformance.author.inputs import grid
from moespec.conformance.author.reference import Arrays
from moespec.conformance.author.tie_margins import choices, margin, ordered
from moespec.conformance.author.trace import Recorder
from moespec.conformance.format import Stage, Tensor
from moespec.spec import ContractError

__all__ = ["drawn", "layer_of", "recorded", "route_of", "updates_of"]


def route_of(definition: Definition) -> Stage:
    """Return the stage that calls the complete router."""
    routed = _routed(definition)
    names = {name: f"router/{name}" for name in _below("router", definition.inputs)}
    taken: dict[str, Any] = {name: name for name in ("noise", "ids", "choices") if name in definition.inputs}
    if state := _state(definition.inputs):
        taken["state"] = state
    options: dict[str, Any] = {"options": dict(routed.options), "train": routed.train}
    return Stage("route", f"ROUTERS.{routed.router}.route", {"params": names, "tokens": "tokens", **taken}, options)


def layer_of(definition: Definition) -> Stage:
    """Return the stage that calls the layer around the router."""
    params = {name: f"experts/{name}" for name in _below("experts", definition.inputs)}
    experts = {"call": "expert_mlp", "arguments": {"params": params}, "options": {"gelu": _routed(definition).gelu}}
    return Stage("moe_layer", "moe_layer", {"tokens": "tokens", "routing": "route/routing", "experts": experts}, {})


def updates_of(definition: Definition) -> tuple[Stage, ...]:
    """Return the stage that updates the router's state. Return no stage if the case has no state or does not train."""
    routed, state = _routed(definition), _state(definition.inputs)
    if not state or not routed.train:
        return ()
    router = spec.ROUTERS[routed.router]
    arrays = {name: definition.inputs[path].array for name, path in state.items()}
    tokens = definition.inputs["tokens"].array[0]
    params = {name: definition.inputs[f"router/{name}"].array for name in _below("router", definition.inputs)}
    found = router.route(params, tokens, router.options(**routed.options), state=arrays, train=True).statistics
    taken: dict[str, Any] = {"state": state, "statistics": {name: f"route/statistics/{name}" for name in found}}
    return (Stage("update", f"ROUTERS.{routed.router}.update", taken, {"options": dict(routed.options)}),)


def _state(inputs: Mapping[str, Tensor]) -> dict[str, str]:
    """Return references to the inputs that hold a router's state, by name."""
    return {name: f"state/{name}" for name in _below("state", inputs)}


def _below(prefix: str, inputs: Mapping[str, Tensor]) -> list[str]:
    return [name.removeprefix(f"{prefix}/") for name in inputs if name.startswith(f"{prefix}/")]


def _routed(definition: Definition) -> Routed:
    if definition.routed is None:
        raise TypeError(f"{definition.id}: expected a router case")
    return definition.routed


def recorded(
    definition: Definition, values: Arrays, seen: Callable[[Stage, dict[str, Any]], None] = lambda stage, given: None
) -> tuple[Recorder, str]:
    """Return a recorder with the router's calls on one group, and the name of the call that returns the routing.

    seen: callback that receives each call and its arguments.
    """

    def change(stage: Stage, made: Any) -> Any:
        seen(stage, recorder.given[stage.name])
        return made

    routed = _routed(definition)
    router = spec.ROUTERS[routed.router]
    recorder = Recorder(spec, values, change)
    params = {name: values[f"router/{name}"] for name in _below("router", values)}  # type: ignore[arg-type]
    taken: dict[str, Any] = {name: values[name] for name in ("noise", "ids", "choices") if name in values}
    if state := _state(definition.inputs):
        taken["state"] = {name: values[path] for name, path in state.items()}
    options = router.options(**routed.options)
    output = recorder.router(routed.router).route(params, values["tokens"], options, train=routed.train, **taken)
    return recorder, recorder.name_of(output.routing)


def drawn(definition: Definition) -> dict[str, Tensor]:
    """Return the inputs of a case, including drawn tokens and noise."""
    routed = _routed(definition)
    if not routed.drawn:
        return dict(definition.inputs)
    key = f"routers/{routed.router}/{definition.name}"
    draws = [
        _clear(definition, f"{key}/{group}", routed.draws.fixed[group : group + 1]) for group in range(routed.groups)
    ]
    inputs = {"tokens": tensor(np.stack([tokens for tokens, _ in draws]), "groups tokens width"), **definition.inputs}
    if routed.noise:
        inputs["noise"] = tensor(np.stack([noise for _, noise in draws]), f"groups {routed.noise.axes}")
    return inputs


def _clear(definition: Definition, key: str, fixed: tuple[int, ...]) -> tuple[NDArray[np.float32], Any]:
    """Draw tokens and noise of one group. Return the first draw with a sufficient tie margin, else the draw with the largest margin."""
    routed = _routed(definition)
    arrays = {name: value.array.astype(np.float64) for name, value in definition.inputs.items()}
    sizes = dict(routed.options)
    if "router/kernel" in arrays:
        sizes["columns"] = arrays["router/kernel"].shape[1]  # a kernel may have additional columns for branches
    best, clearest, refused = -1.0, None, Exception()
    parameters = [value for name, value in arrays.items() if name.startswith("router/")]
    for attempt in fixed or range(routed.draws.tries if any(value.any() for value in parameters) else 1):
        tokens = grid(
            f"{key}/{attempt}", (sizes["tokens"], sizes["width"]), reach=routed.draws.reach, step=routed.draws.step
        )
        values, noise = {**arrays, "tokens": tokens.astype(np.float64)}, None
        if routed.noise:
            axes, reach, step, centre = routed.noise
            shape = tuple(sizes[axis] for axis in axes.split())
            noise = grid(f"{key}/{attempt}/noise", shape, reach=reach, step=step, centre=centre)
            values["noise"] = noise.astype(np.float64)
        margins: list[float] = []
        try:
            recorded(definition, values, partial(_judge, routed, margins, best))
        except (ContractError, _WorseError) as error:  # the router or `_judge` rejects the draw
            refused = error
            continue
        best, clearest = min(margins), (tokens, noise)
        if best >= routed.draws.enough:
            break
    if clearest is None:
        raise ValueError(f"{key}: all draws were rejected: {refused}")
    return clearest


class _WorseError(Exception):
    """Raised if an earlier draw has an equal or larger tie margin, or if `accept` rejects the draw."""


def _judge(routed: Routed, margins: list[float], best: float, stage: Stage, given: dict[str, Any]) -> None:
    """Append the tie margins of a call to `margins`. Raises _WorseError if a margin does not exceed `best` or `accept` rejects the draw."""
    for _, choice in choices((stage,)):
        scores = ordered(choice, given)
        margins.append(margin(choice, scores, {name: np.abs(v) for name, v in scores.items()}, stage.options))
        if margins[-1] <= best or not (routed.accept is None or routed.accept(scores.get("", scores))):
            raise _WorseError
