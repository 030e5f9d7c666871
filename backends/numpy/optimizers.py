"""The updates of the optimisers in NumPy, one function per optimiser: the reference for all backends.

Each function takes the parameter `p`, its gradient `g` (after clipping), the arrays that the optimiser keeps for the parameter
(`kept`, zeros before the first step), the step number `n = 1, 2, ...`, the decay `d` of the parameter, and the options. Each function
returns the update `u` and the new kept arrays. All optimisers apply the update in the same way (see `moespec.backends.optimizer`):

    p <- p - learning rate * rate(path) * u

A tensor that stacks several experts is one parameter: LAMB computes a single norm, and Adafactor may factor along the experts axis.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moespec.backends.numpy.arrays import round_to_bfloat16
from moespec.backends.optimizer_options import factored_axes

Array = NDArray[Any]
Slots = dict[str, Array]
Update = Callable[[Array, Array, Mapping[str, Array], int, float, Any], tuple[Array, Slots]]


def adamw(p: Array, g: Array, kept: Mapping[str, Array], n: int, d: float, options: Any) -> tuple[Array, Slots]:
    """AdamW: the moments do not scale the weight decay.

        mu <- b1 mu + (1 - b1) g
        nu <- b2 nu + (1 - b2) g^2
        u   = (mu / (1 - b1^n)) / (sqrt(nu / (1 - b2^n)) + epsilon) + d p

    The first moment is rounded to `momentum_dtype` for storage, like optax's `mu_dtype`. The update uses the unrounded
    moment. The second moment is not rounded: with b2 = 0.999, rounding to bfloat16 would discard the change of a typical step.

    Source: Loshchilov and Hutter 2019, Algorithm 2 (decoupled decay, times the learning rate, as in optax and torch). AdamW is
    called `adam` in google-research/vmoe, vmoe/train/optimizer.py, create_optimizer: scale_by_adam, then add_decayed_weights.
    """
    u, moments = _adam(g, kept, n, options)
    return u + d * p, moments


def adam(p: Array, g: Array, kept: Mapping[str, Array], n: int, d: float, options: Any) -> tuple[Array, Slots]:
    """Adam with the decay in the gradient: `adamw` without decay, applied to the gradient `g + d p`.

    The global norm is clipped before the decay is added. Source: Kingma and Ba 2015, Algorithm 1; the decay as in
    torch.optim.Adam. Neither google-research/vmoe nor big_vision has this variant: their Adam is `adamw`.
    """
    return _adam(g + d * p, kept, n, options)


def _adam(g: Array, kept: Mapping[str, Array], n: int, options: Any) -> tuple[Array, Slots]:
    mu = options.b1 * kept["mu"] + (1 - options.b1) * g
    nu = options.b2 * kept["nu"] + (1 - options.b2) * g * g
    u = mu / (1 - options.b1**n) / (np.sqrt(nu / (1 - options.b2**n)) + options.epsilon)
    return u, {"mu": _rounded(mu, options), "nu": nu}


def _rounded(momentum: Array, options: Any) -> Array:
    """Rounds the momentum to `momentum_dtype` for storage."""
    return round_to_bfloat16(momentum) if options.momentum_dtype == "bfloat16" else momentum


def sgd(p: Array, g: Array, kept: Mapping[str, Array], n: int, d: float, options: Any) -> tuple[Array, Slots]:
    """Stochastic gradient descent with momentum `b`. The weight decay is added after the momentum.

        trace <- b trace + g
        u      = trace + d p            or, with Nesterov's momentum, g + b trace + d p

    Source: google-research/vmoe, vmoe/train/optimizer.py, create_optimizer (optax.trace, then add_decayed_weights);
    big_vision, optax.py, momentum_hp, which keeps the trace in bfloat16. torch.optim.SGD adds the decay to the gradient.
    """
    if not options.momentum:
        return g + d * p, {}
    trace = options.momentum * kept["trace"] + g
    u = g + options.momentum * trace if options.nesterov else trace
    return u + d * p, {"trace": trace}


def lamb(p: Array, g: Array, kept: Mapping[str, Array], n: int, d: float, options: Any) -> tuple[Array, Slots]:
    """LAMB: the update of `adamw`, including the decay, scaled to the norm of the parameter.

        v = the update of adamw
        u = v ||p||_2 / ||v||_2,        or v itself where one of the norms is 0

    Source: You et al. 2020, Algorithm 2, with the identity for phi; optax.lamb, which also scales tensors without decay.
    """
    v, moments = adamw(p, g, kept, n, d, options)
    size, length = np.sqrt(np.sum(p * p)), np.sqrt(np.sum(v * v))
    return (v * (size / length) if size > 0 and length > 0 else v), moments


def adafactor(p: Array, g: Array, kept: Mapping[str, Array], n: int, d: float, options: Any) -> tuple[Array, Slots]:
    """Adafactor without relative step sizes and without bias correction, then momentum `b`, then decoupled decay.

        c       = min(decay_cap, 1 - n^-decay_rate)
        s       = g^2 + epsilon
        row    <- c row + (1 - c) mean of s along the largest axis
        column <- c column + (1 - c) mean of s along the second largest axis
        v       = row column / mean of row along the second largest axis
        mu     <- b mu + (1 - b) g / sqrt(v)
        u       = mu + d p

    Unless the parameter has two axes with at least `factored_from` entries each, v is `nu <- c nu + (1 - c) s`. The momentum
    is rounded to `momentum_dtype` for storage; the update uses the unrounded momentum. `b mu` is computed in the dtype
    of the gradient; optax multiplies in bfloat16, unless XLA drops the rounding.

    Source: google-research/big_vision, big_vision/optax.py, scale_by_adafactor; Zhai et al. 2022, section 3.2 (the momentum
    in half precision, decay_cap). vmoe/train/optimizer.py, scale_by_big_vision_adafactor, keeps the momentum in float32.
    """
    c = min(options.decay_cap, 1 - n**-options.decay_rate)
    s = g * g + options.epsilon
    axes = factored_axes(p.shape, options.factored_from)
    new: Slots = {}
    if axes is None:
        new["nu"] = c * kept["nu"] + (1 - c) * s
        scaled = g / np.sqrt(new["nu"])
    else:
        lesser, largest = axes
        new["row"] = c * kept["row"] + (1 - c) * s.mean(axis=largest)
        new["column"] = c * kept["column"] + (1 - c) * s.mean(axis=lesser)
        row, column = np.expand_dims(new["row"], largest), np.expand_dims(new["column"], lesser)
        scaled = g / np.sqrt(row / row.mean(axis=lesser, keepdims=True)) / np.sqrt(column)
    if options.momentum:
        scaled = options.momentum * kept["mu"] + (1 - options.momentum) * scaled
        new["mu"] = _rounded(scaled, options)
    return scaled + d * p, new


UPDATES: Mapping[str, Update] = {"adamw": adamw, "adam": adam, "sgd": sgd, "lamb": lamb, "adafactor": adafactor}
"""Name -> update."""
