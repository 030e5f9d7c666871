"""Peers: what other packages compute, compared with the suite.

`peers.toml` lists them; `adapters/` has a module for each, which makes the package a target; `python -m
moespec.conformance.peers` runs the suite on those that are named and writes the table `docs/peers.md`.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["PEERS", "Peer"]


@dataclass(frozen=True)
class Peer:
    """A package, and what its environment needs.

    name: in `peers.toml`. package: the distribution whose version is recorded. repository: where its code is. adapter:
    its module. requires: what is installed along with moespec. alone: what is installed too, but without its
    dependencies. answers: the entries of the ambiguity ledger that the package itself answers, told nothing about them.
    verdicts: why cases fail: `function`, `verdict`, `reason`, and if there are any `ledger`, a reading, and `cases`, patterns.
    """

    name: str
    package: str
    repository: str
    adapter: str
    requires: tuple[str, ...]
    alone: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    verdicts: tuple[Mapping[str, Any], ...] = ()

    @property
    def target(self) -> str:
        """The adapter's module by its full name."""
        return f"moespec.conformance.peers.adapters.{self.adapter}"


def _value(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


PEERS: dict[str, Peer] = {
    name: Peer(name, **{key: _value(value) for key, value in entry.items()})
    for name, entry in tomllib.loads((Path(__file__).parent / "peers.toml").read_text()).items()
}
"""The peers by name."""
