"""A torch module for a complete model."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

import moespec.backends.torch as B
from moespec.backends.torch.nn.draws import draw, integers
from moespec.backends.torch.nn.reporting import Reporting
from moespec.backends.torch.nn.state import RouterState
from moespec.backends.torch.nn.tree import ParameterTree
from moespec.spec.errors import ConfigError
from moespec.spec.routing import Noise


class Model(ParameterTree, Reporting):
    """A torch module for a model that is written for any backend. The output is the logits or, without a head, the features.

        Model(vit.forward, config, vit.init(config, seed), noise=vit.moe_noise)

    forward: `forward(B, config, params, inputs, *, noise, train)` returns `logits`, `features`, `losses`, `metrics` and `statistics`.
    config: passed to `forward`. If `config.dropout` or `config.stochastic_depth` is above 0, `forward` also gets
        `random` in training: integers `(images, 4)`, the seeds of dropout.
    params: nested dict of NumPy arrays. The arrays become parameters, with names such as `blocks.1.moe.experts.w1` in the state dict;
        `params()` returns the nested dict.
    noise: `noise(config, batch size)` returns the `Noise` of each MoE block in training, in order. None means no noise.
    layers: `layers(config, batch size)` returns the MoE layers in order, like `vit.moe_layers` (needed only for routers with a state).
    """

    def __init__(
        self,
        forward: Callable[..., Any],
        config: Any,
        params: dict[str, Any],
        *,
        noise: Callable[[Any, int], Sequence[Noise]] | None = None,
        layers: Callable[[Any, int], Sequence[Any]] | None = None,
    ) -> None:
        super().__init__(params)
        for layer in layers(config, getattr(config, "fewest_images", 1)) if layers is not None else ():
            if (state := self._state(layer.path)) is not None:
                state.rule = layer.router, layer.settings
        self.config = config
        self._forward, self._noise = forward, noise
        self.forget()

    def forward(self, inputs: Tensor) -> Tensor:
        """inputs: (images, height, width, channels) -> logits (images, classes)."""
        noise = None
        if self.training and self._noise is not None:
            noise = [draw(wanted, inputs.device) for wanted in self._noise(self.config, inputs.shape[0])] or None
        drops = any(getattr(self.config, name, 0) for name in ("dropout", "stochastic_depth"))
        random = {"random": integers(inputs)} if self.training and drops else {}
        output: Any = self._forward(B, self.config, self.params(), inputs, noise=noise, **random, train=self.training)
        for path, statistics in output.statistics.items() if self.training else ():
            state = self._state(path)
            if state is None or state.rule is None:
                raise ConfigError("layers: expected the MoE layers, because their routers have a state, got None")
            state.add(statistics)
        result: Tensor = output.features if output.logits is None else output.logits
        return self.report(result, output.losses, output.metrics)

    def _state(self, path: str) -> RouterState | None:
        """Returns the router state of the layer at `path`."""
        router = self.get_submodule(f"{path}/router".replace("/", "."))
        return next((child for child in router.children() if isinstance(child, RouterState)), None)
