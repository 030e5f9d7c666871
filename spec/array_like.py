"""`numpy.typing.ArrayLike` under its name: the alias itself is a union that `help` writes out over three lines."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numpy.typing import ArrayLike as ArrayLike
else:

    class ArrayLike:
        """What becomes an array: arrays, scalars, and nested sequences of them."""

        __module__ = "numpy.typing"
