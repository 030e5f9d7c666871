"""A short name for `numpy.typing.ArrayLike`, which `help` would print as a union over three lines."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numpy.typing import ArrayLike as ArrayLike
else:

    class ArrayLike:
        """Anything that converts to an array: arrays, scalars, and nested sequences of them."""

        __module__ = "numpy.typing"
