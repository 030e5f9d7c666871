"""Progress on standard error: a bar in a terminal, and elsewhere, as in a log file, a line every ten seconds."""

import math
import os
import shutil
import sys
import time
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm

__all__ = ["Bar"]

PAUSE = 10.0
"""Seconds between two lines."""
LINE = "{desc}: {n_fmt}/{total_fmt}, {elapsed} so far, {remaining} left, {rate_fmt}{postfix}"


class Bar(tqdm):  # type: ignore[misc]
    """A bar of tqdm, or whole lines where standard error is no terminal.

    Nothing if `shown` is false, standard error is closed, or TQDM_DISABLE is set.
    """

    def __init__(self, items: Iterable[Any] | None = None, *, shown: bool = True, **options: Any) -> None:
        self._plain = sys.stderr is not None and not sys.stderr.isatty()
        self._last = -math.inf
        if self._plain:
            options = {"bar_format": LINE, **options, "delay": PAUSE, "leave": False, "miniters": 1}
        else:  # where tqdm would find a width of 0, as of a pseudo terminal, it would show nothing
            options |= dict(zip(("ncols", "nrows"), shutil.get_terminal_size(), strict=True))
        off = not shown or sys.stderr is None or os.environ.get("TQDM_DISABLE", "0") not in ("", "0")
        super().__init__(items, mininterval=PAUSE if self._plain else 0.5, disable=off, **options)

    def display(self, msg: str | None = None, pos: int | None = None) -> Any:
        """Shows the bar, or writes the line if the last one is old enough."""
        if not self._plain:
            return super().display(msg, pos)
        if msg is None and time.monotonic() - self._last >= PAUSE:
            self._last = time.monotonic()
            self.fp.write(f"{self}\n")
            self.fp.flush()
        return None

    def clear(self, nolock: bool = False) -> None:
        """Makes room for other text: lines stay."""
        if not self._plain:
            super().clear(nolock)
