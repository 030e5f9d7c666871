"""The algorithms: one module each, written as in its paper.

Every function checks its arguments. The following errors follow from `Args`, so docstrings list only other errors:

ConfigError: an option out of range, or an unknown word.
ShapeError: an array with the wrong axes or an empty axis, or axes with the same name but different sizes.
DtypeError: an array that is not floating, or does not hold the integers or booleans that `Args` requires.
ContractError: an array that contains NaN, infinity or a number out of range.
"""
