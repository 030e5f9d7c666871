"""What tests have worker processes run: a module that these can import by its name."""

from moespec.models.errors import DataError


def broken_at_3(step: int) -> int:
    if step == 3:
        raise DataError("bee/3.jpg: broken")
    return step
