"""Arrays as tables of numbers with named axes."""

from html import escape
from typing import Any

import numpy as np

LARGEST = 160
"""The maximum number of values in a table. For a larger array, the table shows only the shape."""


def number(value: Any) -> str:
    """A number with six significant digits."""
    whole = isinstance(value, (bool, np.bool_, int, np.integer))
    return str(value) if whole else f"{float(np.real(value)) + 0.0:.6g}"


def table(name: str, value: Any, axes: tuple[str, ...]) -> str:
    """An array as an HTML table: rows index the first axis, and columns index all other axes."""
    array = np.asarray(value)
    axes = axes if len(axes) == array.ndim else tuple(f"axis {axis}" for axis in range(array.ndim))
    shape = ", ".join(f"{axis} {size}" for axis, size in zip(axes, array.shape, strict=True))
    caption = f"<caption><code>{escape(name)}</code>{f' ({escape(shape)})' if shape else ''}</caption>"
    if array.size > LARGEST or array.ndim == 0:
        content = f"{array.size} values, not shown" if array.ndim else number(array[()])
        return f'<table class="numbers">{caption}<tr><td>{content}</td></tr></table>'
    rows = array.reshape(len(array), -1) if array.ndim > 1 else array[None]
    columns = list(np.ndindex(array.shape[1:] if array.ndim > 1 else array.shape))
    across = " ".join(axes[1:] if array.ndim > 1 else axes)
    corner = f"{axes[0]} ↓ {across} →" if array.ndim > 1 else f"{across} →"
    head = "".join(f'<th scope="col">{".".join(map(str, place))}</th>' for place in columns)
    body = "".join(
        f'<tr><th scope="row">{index if array.ndim > 1 else ""}</th>'
        + "".join(f"<td>{number(entry)}</td>" for entry in row)
        + "</tr>"
        for index, row in enumerate(rows)
    )
    return (
        f'<div class="scroll"><table class="numbers">{caption}<thead><tr><th>{escape(corner)}</th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
