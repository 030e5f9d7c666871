"""Peers: other packages that the suite runs on.

`peers.toml` lists the peers. Each has a module in `adapters/` that makes it a target. `python -m moespec.conformance.peers`
runs the suite on the peers that `--peer` names and writes `docs/peers.md`.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["PEERS", "Peer"]


@dataclass(frozen=True)
class Peer:
    """A package and the requirements of its environment.

    name: key in `peers.toml`. package: distribution whose version is recorded. repository: source code. adapter: module
    name. requires: packages installed with moespec. alone: packages installed without their dependencies. answers: entries of
    the ambiguity ledger that the package's code answers, because the adapter sets no option for them. verdicts: why cases
    fail: `function`, `verdict`, `reason`, and optionally `ledger` (a reading) and `cases` (patterns).
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
        """The full module name of the adapter."""
        return f"moespec.conformance.peers.adapters.{self.adapter}"


def _value(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


PEERS: dict[str, Peer] = {
    name: Peer(name, **{key: _value(value) for key, value in entry.items()})
    for name, entry in tomllib.loads((Path(__file__).parent / "peers.toml").read_text()).items()
}
"""The peers by name."""
