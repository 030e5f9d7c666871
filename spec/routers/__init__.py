"""The routers, one per file. Each file defines what every backend must compute for one routing group.

    route(params, tokens, options, *, noise=None, train=False)

A router calls public functions of the specification. The conformance suite checks each of these functions separately.
Backends do not run these files: `moespec.backends.routers` implements each router again, for arrays with a groups axis. Tokens
are (T, D). `Router.noise` describes the array `noise`. With `noise=None`, routing uses no noise. `train` selects the capacity
and, in some routers such as BASE, the assignment of tokens. The docstring below an option's field documents the option.
`moespec.spec.options` documents shared options. `options.capacity(train=train)` is the number of slots C of an expert:
`capacity_factor` K T / E, rounded. At evaluation, `eval_capacity_factor` (if set) replaces `capacity_factor`.

`moespec list routers` shows the source, the models, the balancing, the cost and the dropped tokens of each router.

The worked example has an identity kernel, so the tokens are the logits:

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
>>> slots("importance_score", drop=0.2)  # 5 tokens remain; 3 experts have 2 slots each
([[4, 1], [5, 6], [3, 6]], 2.8478680303)
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, LiteralString, NamedTuple, get_args, overload

from moespec.spec.errors import ConfigError
from moespec.spec.names import Names, near_it
from moespec.spec.own import find_own, is_own, own_name
from moespec.spec.routers import (
    base,
    batch_expert_choice,
    cosine_token_choice,
    dselect_k,
    gshard,
    hash,
    hierarchical_top_k,
    image_choice,
    importance_score,
    mixture_of_depths,
    noisy_top_k,
    relu,
    s_base,
    sigmoid_token_choice,
    sinkhorn_expert_choice,
    sinkhorn_token_choice,
    soft_moe,
    softmax_expert_choice,
    softmax_token_choice,
    sparsity_constrained_expert_choice,
    sparsity_constrained_token_choice,
    strictly_balanced,
    switch,
    variable_budget,
)
from moespec.spec.routers.names import RouterName
from moespec.spec.routers.record import Router

__all__ = ["ROUTERS", "Preset", "Router", "RouterName", "Routers", "router_name"]


MYPY = False  # mypy, which does not support `LiteralString`, treats `MYPY` as True


class NoSuchRouter:
    """The type that type checkers infer for `ROUTERS[name]` if the literal `name` is unknown."""


class Preset(NamedTuple):
    """The router and the layer of a published model: `MoE(**sizes, **layer, tokens=..., router=router, **options)`.

    router: a key of `ROUTERS`.
    options: options of the router, for `ROUTERS[router].options(width=..., experts=..., tokens=..., **options)`.
    layer: the other arguments of the layer.
    sizes: `width`, `hidden` and `experts` of the model.
    """

    router: str
    options: dict[str, Any]
    layer: dict[str, Any]
    sizes: dict[str, int]


class Routers(Names[Router[Any]]):
    """Maps names to built-in routers and `package.module:object` to user routers. Type checkers know the options of each built-in router.

    bind: a function `bind(name, router)` that converts a user router to the router that this table returns.
    """

    def __init__(self, routers: Mapping[str, Router[Any]], bind: Callable[[str, Router[Any]], Router[Any]]) -> None:
        super().__init__(routers)
        self._bind, self._found, self._bound = bind, dict[str, Router[Any]](), dict[str, Router[Any]]()

    def find(self, name: str) -> None:
        """Finds and binds the user router `name`. torch.compile calls this function during tracing but does not trace it."""
        if not is_own(name):
            self.__missing__(name)
        found = find_own("router", name, Router)
        if self._found.get(name) is not found:  # a notebook may redefine the router
            self._found[name], self._bound[name] = found, self._bind(name, found)

    def preset(self, model: str) -> Preset:
        """Returns the router and the layer of a published model, such as "deepseek-v3" or "qwen3-moe" (docs/models.md).

        The preset routes without capacity, noise and losses, as the model does at evaluation. `moespec ledger --model NAME` shows the
        ledger readings and what the preset does not express.

        Raises ConfigError for an unknown model, or for a model whose routing no router here computes.

        >>> preset = ROUTERS.preset("mixtral")
        >>> preset.router, preset.options["choices"], preset.layer["expert_activation"], preset.sizes["experts"]
        ('softmax_token_choice', 2, 'swiglu', 8)
        """
        from moespec.spec.implementations.models import find_model

        found = find_model(model)
        if not found.router:
            raise ConfigError(f"model={model!r}: no router computes its routing: {'; '.join(found.not_expressed)}")
        return Preset(found.router, dict(found.options), dict(found.layer), found.sizes)

    @overload
    def __getitem__(self, name: Literal["base"], /) -> Router[base.Options]: ...
    @overload
    def __getitem__(self, name: Literal["batch_expert_choice"], /) -> Router[batch_expert_choice.Options]: ...
    @overload
    def __getitem__(self, name: Literal["cosine_token_choice"], /) -> Router[cosine_token_choice.Options]: ...
    @overload
    def __getitem__(self, name: Literal["dselect_k"], /) -> Router[dselect_k.Options]: ...
    @overload
    def __getitem__(self, name: Literal["gshard"], /) -> Router[gshard.Options]: ...
    @overload
    def __getitem__(self, name: Literal["hash"], /) -> Router[hash.Options]: ...
    @overload
    def __getitem__(self, name: Literal["hierarchical_top_k"], /) -> Router[hierarchical_top_k.Options]: ...
    @overload
    def __getitem__(self, name: Literal["image_choice"], /) -> Router[image_choice.Options]: ...
    @overload
    def __getitem__(self, name: Literal["importance_score"], /) -> Router[importance_score.Options]: ...
    @overload
    def __getitem__(self, name: Literal["mixture_of_depths"], /) -> Router[mixture_of_depths.Options]: ...
    @overload
    def __getitem__(self, name: Literal["noisy_top_k"], /) -> Router[noisy_top_k.Options]: ...
    @overload
    def __getitem__(self, name: Literal["relu"], /) -> Router[relu.Options]: ...
    @overload
    def __getitem__(self, name: Literal["s_base"], /) -> Router[s_base.Options]: ...
    @overload
    def __getitem__(self, name: Literal["sigmoid_token_choice"], /) -> Router[sigmoid_token_choice.Options]: ...
    @overload
    def __getitem__(self, name: Literal["sinkhorn_expert_choice"], /) -> Router[sinkhorn_expert_choice.Options]: ...
    @overload
    def __getitem__(self, name: Literal["sinkhorn_token_choice"], /) -> Router[sinkhorn_token_choice.Options]: ...
    @overload
    def __getitem__(self, name: Literal["soft_moe"], /) -> Router[soft_moe.Options]: ...
    @overload
    def __getitem__(self, name: Literal["softmax_expert_choice"], /) -> Router[softmax_expert_choice.Options]: ...
    @overload
    def __getitem__(self, name: Literal["softmax_token_choice"], /) -> Router[softmax_token_choice.Options]: ...
    @overload
    def __getitem__(
        self, name: Literal["sparsity_constrained_expert_choice"], /
    ) -> Router[sparsity_constrained_expert_choice.Options]: ...
    @overload
    def __getitem__(
        self, name: Literal["sparsity_constrained_token_choice"], /
    ) -> Router[sparsity_constrained_token_choice.Options]: ...
    @overload
    def __getitem__(self, name: Literal["strictly_balanced"], /) -> Router[strictly_balanced.Options]: ...
    @overload
    def __getitem__(self, name: Literal["switch"], /) -> Router[switch.Options]: ...
    @overload
    def __getitem__(self, name: Literal["variable_budget"], /) -> Router[variable_budget.Options]: ...
    @overload
    def __getitem__(self, name: RouterName, /) -> Router[Any]: ...

    if not MYPY:

        @overload
        def __getitem__(self, name: LiteralString, /) -> NoSuchRouter: ...

    @overload
    def __getitem__(self, name: str, /) -> Router[Any]: ...
    def __getitem__(self, name: str, /) -> Any:
        if name in self:
            return super().__getitem__(name)
        self.find(name)
        return self._bound[name]


ROUTERS = Routers({name: globals()[name].ROUTER for name in get_args(RouterName)}, lambda _, router: router)
"""The routers by name. The `ROUTERS` of a backend contains the routers that the backend implements."""


def router_name(router: object) -> str:
    """Returns the name of a router. router: a key of `ROUTERS`, `package.module:object`, or a built-in or user `Router`.

    Raises ConfigError for another value, or if the module of a user router is not imported.
    """
    if isinstance(router, Router):
        return next((name for name, each in ROUTERS.items() if each is router), None) or own_name("router", router)
    if is_own(router):
        find_own("router", str(router), Router)
    elif not isinstance(router, str) or router not in ROUTERS:
        known = f"one of {', '.join(ROUTERS)}, or package.module:object"
        raise ConfigError(f"router={router!r}: expected {known}{near_it(router, ROUTERS)}")
    return str(router)
