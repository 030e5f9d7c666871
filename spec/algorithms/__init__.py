"""The algorithms: one module each, written as its paper writes it.

Every function checks its arguments. A docstring lists only the errors that do not follow from its `Args`:

ConfigError: an option outside its range, or a word that the option does not have.
ShapeError: an array that does not have its axes, or has an empty one; axes of one name that differ in size.
DtypeError: an array that is not floating, or has no integers or booleans where `Args` says so.
ContractError: an array that holds NaN, infinity, or a number outside its range.
"""
