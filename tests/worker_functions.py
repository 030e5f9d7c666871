"""What tests have worker processes run: a module that these can import by its name."""

import os
import signal

from moespec.models.errors import DataError


def broken_at_3(step: int) -> int:
    if step == 3:
        raise DataError("bee/3.jpg: broken")
    return step


def ended_at_3(end: str | int, step: int) -> int:
    if step == 3:
        os.kill(os.getpid(), getattr(signal, end)) if isinstance(end, str) else os._exit(end)
    return step
