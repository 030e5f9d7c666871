"""The executable specification of mixture-of-experts routing: NumPy, float64, one routing group at a time.

One module is one algorithm, written as its paper writes it; in `routers` one file is one router, composed of them. A
sparse router walks the same steps in the same order: scores, selection, slots, dispatch, combine. Axis names are tokens
T, experts E, capacity C (slots of an expert), width D, hidden H, choices K. Arrays of any floating dtype come in,
float64 goes out; complex arrays come in for the complex step, by which every function differentiates itself (see
`numerics`). Noise is always an argument: nothing draws random numbers except the initial parameters of a router, from a
generator that is passed in.

`ALGORITHMS` lists what is specified. `LEDGER` has the questions that implementations answer differently, the answer that is
specified here, the others, and who is known to give each; `moespec ledger` asks it.
Errors are `SpecError`, a `ValueError`, in four kinds: ConfigError, ShapeError, DtypeError, ContractError.

The public names are those in `__all__` of the modules. `help(token_choice)` ends with the table of symbols and the ledger of the
module `moespec.spec.token_choice`, which the function hides, and so does that of each function that has the name of its module.
"""

import inspect
import sys
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from moespec.spec.names import Names

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


__all__: list[str] = []

for _module in iter_modules(__path__, f"{__name__}."):
    _loaded = import_module(_module.name)
    for _name in getattr(_loaded, "__all__", ()):
        if _name in __all__:
            raise ImportError(f"{_module.name}: another module of the specification has a public name {_name!r}")
        globals()[_name] = _value = getattr(_loaded, _name)
        __all__ = sorted([*__all__, _name])
        if _loaded.__name__ == f"{__name__}.{_name}":
            _value.__doc__ = f"{inspect.getdoc(_value)}\n\n{inspect.getdoc(_loaded)}"

ROUTERS = Names({n: router.bind(sys.modules[__name__]) for n, router in globals()["ROUTERS"].items()})
"""The routers by name, computed by the specification."""
