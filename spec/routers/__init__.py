"""The routers: each a file, written once for the specification and for every backend.

    route(B, params, tokens, options, *, noise=None, train=False)

`B` is what computes: the specification, where an array is one routing group, or a backend, whose arrays have a leading
groups axis. A router calls public functions of `B` on arrays, so that the same lines run on all of them, and the calls
are the steps that the conformance suite looks at one by one. Tokens are (T, D) or (groups, T, D). `noise` is used when
given, scaled as the router says (`Router.noise` says what it takes); `train` chooses the capacity and, in BASE and S-BASE, how tokens are
assigned.

`moespec list routers` names the source of each, the models that use it, and what it balances, costs and drops.

The worked example, with a kernel that makes the tokens the logits:

>>> import numpy as np
>>> from moespec.spec import ROUTERS, slot_tokens
>>> from moespec.spec.examples import LOGITS
>>> def slots(name, **options):
...     routing = ROUTERS[name].route(
...         {"kernel": np.eye(3)}, LOGITS, ROUTERS[name].options(width=3, experts=3, tokens=6, **options)
...     ).routing
...     return slot_tokens(routing).tolist(), round(float(routing.combine.sum()), 10)
>>> slots("softmax_token_choice", batch_priority="max")
([[4, 1], [5, 2], [3, 6]], 3.2670969819)
>>> slots("sinkhorn_token_choice")
([[0, 1], [5, 6], [2, 3]], 2.9235894642)
>>> slots("softmax_expert_choice")
([[4, 1], [5, 2], [3, 2]], 3.5213721945)
>>> slots("sinkhorn_expert_choice")
([[4, 1], [5, 2], [3, 2]], 3.5213721945)
>>> slots("sparsity_constrained_expert_choice")
([[4, 1], [5, 2], [3, 2]], 3.5213721945)
>>> slots("sparsity_constrained_token_choice")
([[0, 1], [5, 6], [2, 3]], 2.9235894642)
>>> slots("importance_score", drop=0.2)  # 5 tokens are left; 2 slots for each of 3 experts
([[4, 1], [5, 6], [3, 6]], 2.8478680303)
"""

from importlib import import_module
from pkgutil import iter_modules

from moespec.spec.names import Names
from moespec.spec.routers.record import Router

__all__ = ["ROUTERS", "Router"]


def _routers() -> dict[str, Router]:
    """The record of every module that has one."""
    modules = [import_module(module.name) for module in iter_modules(__path__, f"{__name__}.")]
    routers = [module.ROUTER for module in modules if hasattr(module, "ROUTER")]
    return Names({router.name: router for router in routers})


ROUTERS: dict[str, Router] = _routers()
"""The routers by name; `ROUTERS` of `moespec.spec`, and of a backend, are those that it computes."""
