"""Shows progress as a bar in a terminal, as one updated line in a notebook, and otherwise as a new line every ten seconds."""

import math
import os
import shutil
import sys
import time
from collections.abc import Iterable
from importlib import import_module
from typing import Any, ClassVar

from tqdm import tqdm

__all__ = ["Bar", "in_notebook"]

PAUSE = 10.0
"""Seconds between two lines."""
LINE = "{desc}: {n_fmt}/{total_fmt}, {elapsed} so far, {remaining} left, {rate_fmt}{postfix}"


def in_notebook() -> bool:
    """Returns whether this process is the kernel of a notebook."""
    ipython: Any = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


class Bar(tqdm):  # type: ignore[misc]
    """A tqdm bar, which writes complete lines if standard error is not a terminal. In a notebook, all bars of a cell share a line.

    Shows nothing if `shown` is false, standard error is closed, or TQDM_DISABLE is set.
    """

    line: ClassVar[tuple[int, Any]] = (-1, None)  # the number and the output of the current notebook cell

    def __init__(self, items: Iterable[Any] | None = None, *, shown: bool = True, **options: Any) -> None:
        self._notebook, self._stays = in_notebook(), options.get("leave", True)
        self._plain = self._notebook or (sys.stderr is not None and not sys.stderr.isatty())
        self._last, pause = -math.inf, PAUSE if self._plain and not self._notebook else 0.5
        if self._plain:
            options = {"bar_format": LINE, **options, "delay": pause, "leave": False, "miniters": 1}
        else:  # tqdm hides the bar if the terminal reports the width 0, as pseudo-terminals do
            options |= dict(zip(("ncols", "nrows"), shutil.get_terminal_size(), strict=True))
        off = not shown or sys.stderr is None or os.environ.get("TQDM_DISABLE", "0") not in ("", "0")
        super().__init__(items, mininterval=pause, disable=off, **options)

    def display(self, msg: str | None = None, pos: int | None = None) -> Any:
        """Shows the bar, or writes a new line if the last line is at least `PAUSE` seconds old."""
        if self._notebook:
            return self._show(str(self) if msg is None or self._stays else msg)
        if not self._plain:
            return super().display(msg, pos)
        if msg is None and time.monotonic() - self._last >= PAUSE:
            self._last = time.monotonic()
            self.fp.write(f"{self}\n")
            self.fp.flush()
        return None

    def clear(self, nolock: bool = False) -> None:
        """Clears the bar so that other text can be printed. Lines stay."""
        if not self._plain:
            super().clear(nolock)

    def _show(self, text: str) -> None:
        cell = sys.modules["IPython"].get_ipython().execution_count
        if Bar.line[0] != cell:
            Bar.line = cell, import_module("IPython.display").display({"text/plain": ""}, raw=True, display_id=True)
        Bar.line[1].update({"text/plain": text}, raw=True)
