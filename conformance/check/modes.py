"""How a target is run: op by op, compiled, or op by op on strided arrays."""

from collections.abc import Sequence

from moespec.conformance.format import Case

__all__ = ["DEFAULT", "MODES", "STRIDED", "run_in"]

STRIDED = "strided"
"""Arrays that are not contiguous in any order of their axes: some cases in one dtype, of targets in torch."""
MODES = ("eager", "compiled", STRIDED)
DEFAULT = ("eager", STRIDED)
"""Those of a run that names none."""


def run_in(mode: str, cases: Sequence[Case], dtype: str, dtypes: Sequence[str]) -> list[Case]:
    """The cases of one algorithm that a run in some dtypes has in one of them and a mode: of strided arrays the first with
    values and the first with a gradient, in float32 or else the first dtype."""
    if mode != STRIDED:
        return list(cases)
    if dtype != ("float32" if "float32" in dtypes else dtypes[0]):
        return []
    return [case for kind in ("value", "gradient") for case in [c for c in cases if c.kind == kind][:1]]
