"""The errors that the specification raises. Each error message names the invalid argument and its value."""

__all__ = ["ConfigError", "ContractError", "DtypeError", "ShapeError", "SpecError"]


class SpecError(ValueError):
    """Base class of all errors that the specification or a backend raises for invalid input."""


class ConfigError(SpecError):
    """A static argument is outside its range (`choices > experts`, `capacity < 1`, ...), or an option is unknown."""


class ShapeError(SpecError):
    """An array has the wrong rank, or an axis has the wrong size."""


class DtypeError(SpecError):
    """An array has a dtype that the function does not accept."""


class ContractError(SpecError):
    """An array holds invalid values, such as NaN, infinity, or an order that is not a permutation."""
