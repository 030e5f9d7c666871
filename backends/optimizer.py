"""The optimiser of all backends: an update that is selected by name, with rates, weight decay, clipping and a moving average.

One update of a parameter `p` with gradient `g` at step `n = 1, 2, ...` and learning rate `r`:

    g  <- g * min(1, clip / ||gradients of all trained parameters||_2)          (if `clip` is set)
    p  <- p - r * rate(path of p) * update(g, p, decay(path of p))
    a  <- m a + (1 - m) p                   (if `ema` is set; a = p before the first step)

where `m = ema`. If `ema_steps` is set, `m = 1 - (1 - ema) (1 + cos(pi min(n / ema_steps, 1))) / 2` rises to 1.

The function `update` depends on the optimiser (`moespec.backends.numpy.optimizers`). Gradients are clipped before the update. The rate
also multiplies the decay.

The decay is `weight_decay` for parameters that `is_decayed` selects and 0 for all other parameters. A pattern in `decay` overrides both
defaults. Kernels decay. In the router of Soft MoE, which has no kernel, the scale decays, but the slots do not decay.

A parameter with the rate 0 is frozen. A frozen parameter does not change, has no gradient, does not count in the gradient norm, and has no
optimiser slots. Values that are stored with the parameters but are not trained (`is_fixed`: tables, router states) are always frozen.

Source: Decay rates by pattern: google-research/vmoe, vmoe/train/optimizer.py, add_decayed_weights (the first regular
expression found in the path). Parameters that decay: projects/soft_moe/configs/common.py, get_adam_config (`.*/kernel`,
`head/kernel`), and pretrain_jft4b.py (`.*/Moe/Router/scale`), same repository. Rates: google-research/big_vision,
big_vision/optax.py, make (`lr_mults`, which do not multiply the decay there; a schedule of None freezes, and frozen
parameters do not count in the norm that is clipped). Here, as in torch.optim, a rate
multiplies the learning rate and thus the decay. The average: big_vision, trainers/proj/jetformer/train.py, update_fn (`ema_decay`);
facebookresearch/moco-v3, main_moco.py, adjust_moco_momentum (the rise; moco-v3 updates the average before a step, which
gives the same sequence).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np

from moespec.backends import patterns
from moespec.backends.optimizer_options import BELOW_ONE, SLOTS, SMALLEST, OptimizerName, Shape, options_of, slots_of
from moespec.backends.pytrees import Path, leaves, unflatten
from moespec.spec.errors import ConfigError
from moespec.spec.own import own_name
from moespec.spec.ranges import LARGEST
from moespec.spec.routers import ROUTERS, Router

__all__ = ["STATE", "OptimizerConfig", "initial_params", "is_decayed", "is_fixed"]

CONSTANTS = frozenset(name for router in ROUTERS.values() for name in router.frozen)
"""Names of parameters that are not trained, inside or outside routers, such as the codebook of token ids. They have no gradient."""

STATE = "state"
"""The name of a router's state among its parameters: `router/state/bias`."""

_KINDS = {name: (name in r.decays, name in r.frozen) for r in ROUTERS.values() for name in r.decays + r.frozen}
"""For each router parameter, by name: whether weight decay applies to it, and whether it is a constant.
`initial_params` adds the parameters of a user-defined router."""


def initial_params(router: Router[Any], generator: Any, options: Any) -> dict[str, Any]:
    """Calls `router.init` and records, by name, which parameters decay and which are frozen.

    Raises ConfigError if the result is not a dict of NumPy arrays, or if another router treats a parameter of the same name differently.
    """
    params: Any = router.init(generator, options)
    if not isinstance(params, dict) or not all(isinstance(value, np.ndarray | np.generic) for value in params.values()):
        raise ConfigError(f"router {router.name!r}: init: expected a dict of NumPy arrays, got {params!r}")
    for name in params:
        kinds = name in router.decays, name in router.frozen
        if kinds != (others := _KINDS.setdefault(name, kinds)):
            clash = f"has (decays, frozen)={kinds}, but another router's parameter with this name has {others}"
            raise ConfigError(f"router {router.name!r}: parameter {name!r}: {clash}; rename one of them")
    return params


def is_decayed(path: Sequence[str]) -> bool:
    """True if `weight_decay` applies to the parameter at `path`. `Router.decays` lists the router
    parameters that decay. Outside of routers, weight matrices decay, but biases, norms and position embeddings do not decay."""
    if "router" in path[-2:-1]:
        return _KINDS.get(path[-1], (False, False))[0]
    matrices = "kernel|w1|w2|w3|latent/down|latent/up|shared/gate|constants/mix"
    return re.search(rf"^(.*[_/])?({matrices})$", "/".join(path)) is not None


def is_fixed(path: Sequence[str]) -> bool:
    """True if the value at `path` is a constant or belongs to a router state, and is therefore not trained."""
    if "router" in path[-2:-1] and path[-1] in _KINDS:
        return _KINDS[path[-1]][1]
    return bool(path) and (path[-1] in CONSTANTS or STATE in path[-2:-1])


AROUND = ("name", "weight_decay", "decay", "rates", "clip", "ema", "ema_steps")
"""The fields that apply to all optimisers."""


@dataclass(frozen=True)
class OptimizerConfig:
    """The static configuration of an optimiser. For an option that only some optimisers have, None selects the optimiser's default.

    Raises ConfigError for a value out of range, and for an option that the optimiser does not have.

    >>> OptimizerConfig("sgd").momentum, OptimizerConfig("sgd").b1, OptimizerConfig("lamb").epsilon
    (0.9, None, 1e-06)
    """

    name: OptimizerName = "adamw"
    """adamw (decoupled decay), adam (decay in the gradient), sgd, lamb, adafactor (big_vision's), or package.module:object"""
    b1: float | None = None
    """adamw, adam, lamb: decay of the first moment (0.9)"""
    b2: float | None = None
    """adamw, adam, lamb: decay of the second moment (0.999)"""
    epsilon: float | None = None
    """adamw, adam, lamb: added to the square root of the bias-corrected second moment (1e-8; lamb 1e-6); adafactor:
    added to the squared gradient (1e-30)"""
    momentum: float | None = None
    """sgd, adafactor: decay of the momentum (0.9); 0 for no momentum"""
    nesterov: bool | None = None
    """sgd: Nesterov's momentum (False)"""
    momentum_dtype: Literal["bfloat16", "float32"] | None = None
    """dtype of the stored momentum or first moment; adafactor: bfloat16; adamw, adam, lamb: float32"""
    decay_rate: float | None = None
    """adafactor: exponent of the second moment's decay, 1 - n^-decay_rate at step n (0.8)"""
    decay_cap: float | None = None
    """adafactor: largest decay of the second moment (0.999)"""
    factored_from: int | None = None
    """adafactor: factor a second moment into means along its two largest axes if both have at least this size (32); with experts,
    use a larger value than the number of experts"""
    weight_decay: float = 0.0
    """weight decay of kernels and of Soft MoE's scale, multiplied by the learning rate"""
    decay: str = ""
    """weight decay of selected parameters, as pattern=rate, ...; the first regular expression found in a parameter's path
    applies, such as "head/kernel=3.0, router/scale=0" """
    rates: str = ""
    """learning-rate multipliers of selected parameters, as pattern=rate, ..., 0 to freeze, such as "head/=1, .*=0" """
    clip: float | None = None
    """maximum global norm of the gradient, or None for no clipping"""
    ema: float | None = None
    """decay of the exponential moving average of the parameters, such as 0.9999, or None for no average"""
    ema_steps: int | None = None
    """steps over which optimizer.ema rises to 1 along half a cosine, or None for a constant decay"""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            object.__setattr__(self, "name", own_name("optimizer.name", self.name))
        for name, value in vars(self.own).items():
            object.__setattr__(self, name, value)  # replaces None with the optimiser's default
        if not 0.0 <= self.weight_decay <= LARGEST:
            raise ConfigError(f"weight_decay={self.weight_decay!r}: expected a number >= 0, finite in float32")
        if self.clip is not None and not SMALLEST <= self.clip <= LARGEST:
            raise ConfigError(f"clip={self.clip!r}: expected a number > 0 in float32, or None")
        if self.ema is not None and not 0.0 <= self.ema <= BELOW_ONE:
            raise ConfigError(f"ema={self.ema!r}: expected a number in [0, 1), below 1 in float32, or None")
        if self.ema_steps is not None and (self.ema is None or type(self.ema_steps) is not int or self.ema_steps < 1):
            wanted = f"expected an integer >= 1, with ema set, got ema={self.ema!r}"
            raise ConfigError(f"ema_steps={self.ema_steps!r}: {wanted}")
        for option in ("decay", "rates"):
            for _ in patterns.parsed(option, getattr(self, option)):
                pass

    @cached_property
    def own(self) -> SimpleNamespace:
        """The values of the options that this optimiser has."""
        return SimpleNamespace(**options_of(self.name, {name: getattr(self, name) for name in self.options()}))

    @classmethod
    def options(cls) -> list[str]:
        """The names of the options that only some optimisers have."""
        return [field.name for field in fields(cls) if field.name not in AROUND]

    @cached_property
    def _decays(self) -> list[patterns.Pattern]:
        return list(patterns.parsed("decay", self.decay))

    @cached_property
    def _rates(self) -> list[patterns.Pattern]:
        return list(patterns.parsed("rates", self.rates))

    def decay_of(self, path: Sequence[str]) -> float:
        """The weight decay of the parameter at `path`, which lists the keys from the root of the parameter tree.

        >>> jft = OptimizerConfig(weight_decay=0.03, decay="head/kernel=3.0")
        >>> jft.decay_of(("head", "kernel")), jft.decay_of(("blocks", "0", "mlp", "w1")), jft.decay_of(("norm", "scale"))
        (3.0, 0.03, 0.0)
        """
        default = self.weight_decay * is_decayed(path)
        return 0.0 if not path or is_fixed(path) else patterns.first(self._decays, path, default)

    def rate_of(self, path: Sequence[str]) -> float:
        """The multiplier of the learning rate for the parameter at `path`, or 0 if the parameter is not trained.

        >>> head = OptimizerConfig(rates="head/=1, .*=0")
        >>> head.rate_of(("head", "kernel")), head.rate_of(("norm", "scale"))
        (1.0, 0.0)
        """
        return 0.0 if is_fixed(path) else patterns.first(self._rates, path, 1.0)

    def ema_after(self, step: Any, xp: Any = np) -> Any:
        """The decay of the moving average after `step` steps, or 0 without an average. step: an integer array of the namespace `xp`.

        >>> slow = OptimizerConfig(ema=0.9, ema_steps=4)
        >>> [round(float(slow.ema_after(step)), 4) for step in range(6)]
        [0.9, 0.9146, 0.95, 0.9854, 1.0, 1.0]
        """
        if self.ema is None or self.ema_steps is None:
            return self.ema or 0.0
        return 1 - (1 - self.ema) * (1 + xp.cos(xp.pi * xp.minimum(step / self.ema_steps, 1.0))) / 2

    def check_patterns(self, paths: Iterable[Sequence[str]]) -> None:
        """Raises ConfigError for a pattern that matches no path, and for rates that freeze all parameters."""
        names = list(paths)
        patterns.check_found("decay", self.decay, names)
        patterns.check_found("rates", self.rates, names)
        slots_of(self.name, vars(self.own), ())  # raises ConfigError if the module of the optimiser is not imported
        if not any(map(self.rate_of, names)):
            raise ConfigError(f"rates={self.rates!r}: all parameters are frozen; leave at least one to train")

    def slots(self, path: Sequence[str], shape: Shape) -> dict[str, Shape]:
        """The shape of each array that the optimiser keeps for the parameter at `path` between steps, by slot (`SLOTS`)."""
        if not self.rate_of(path):
            return {}
        average = {"ema": shape} if self.ema is not None else {}
        return {**slots_of(self.name, vars(self.own), shape), **average}

    def state_shapes(self, shapes: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Returns the shapes of a state without the step, as nested dicts for `params` and for each slot in use.

        shapes: nested dict of the shapes of the parameters. The dict of a slot contains only the parameters that have this slot.

        >>> sorted(OptimizerConfig("sgd", rates="b=0").state_shapes({"w": (2, 3), "b": (3,)}).items())
        [('params', {'w': (2, 3), 'b': (3,)}), ('trace', {'w': (2, 3)})]
        """
        kept: dict[str, dict[Path, Shape]] = {}
        for path, shape in leaves(shapes):
            for slot, size in self.slots(path, tuple(shape)).items():
                kept.setdefault(slot, {})[path] = size
        return {"params": dict(shapes), **{slot: unflatten(kept[slot]) for slot in SLOTS if slot in kept}}
