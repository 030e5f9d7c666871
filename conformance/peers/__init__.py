"""Peers: other packages that the conformance suite tests.

`peers.toml` lists the peers. For each peer, a module in `adapters/` defines a target that calls the package.
`python -m moespec.conformance.peers` runs the suite on the peers that `--peer` names and writes `docs/peers.md`.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["PEERS", "Peer"]


@dataclass(frozen=True)
class Peer:
    """A package that the suite tests, and the packages that must be installed for the tests.

    package: the distribution whose version is recorded. repository: the address of the source code.
    requires: packages installed with moespec. alone: packages installed without their dependencies.
    answers: ambiguity-ledger entries that the package's own code settles, because the adapter sets no option for them.
    verdicts: reasons why cases fail, each with `function`, `verdict` and `reason`, and optionally `ledger` and `cases`.
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
        """Return the full module name of the adapter."""
        return f"moespec.conformance.peers.adapters.{self.adapter}"


def _value(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


PEERS: dict[str, Peer] = {
    name: Peer(name, **{key: _value(value) for key, value in entry.items()})
    for name, entry in tomllib.loads((Path(__file__).parent / "peers.toml").read_text()).items()
}
"""The peers by name."""
