"""How a target is run: op by op, compiled, or op by op on strided arrays; and which cases are run together."""

from collections.abc import Callable, Iterator, Sequence

__all__ = ["DEFAULT", "MODES", "STRIDED", "divided"]

STRIDED = "strided"
"""Arrays that are not contiguous in any order of their axes: some cases in one dtype, of targets in torch."""
MODES = ("eager", "compiled", STRIDED)
DEFAULT = ("eager", STRIDED)
"""Those of a run that names none."""


def divided(
    ids: Sequence[str], modes: Sequence[str], dtypes: Sequence[str], kind: Callable[[str], str]
) -> Iterator[tuple[str, str, list[str]]]:
    """A dtype, a mode and the ids of the cases of one algorithm, for all that a run of cases has in them.

    Composite algorithms come late in the registry and are slow, so they are first. kind: of a case, by its id.
    """
    groups: dict[str, list[str]] = {}
    for id in ids:
        groups.setdefault(id.partition("/")[0], []).append(id)
    for group in list(groups.values())[::-1]:
        for mode in modes:
            if mode != STRIDED:
                yield from ((dtype, mode, group) for dtype in dtypes)
            else:  # the first case with values and the first with a gradient
                firsts = [next((id for id in group if kind(id) == wanted), "") for wanted in ("value", "gradient")]
                if any(firsts):
                    yield "float32" if "float32" in dtypes else dtypes[0], mode, [id for id in firsts if id]
