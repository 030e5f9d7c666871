"""The algorithms: one module each, written as in its paper.

Every function checks its arguments. These errors follow from `Args`, and docstrings list only errors beyond them:

ConfigError: an option out of range, or an unknown word.
ShapeError: an array with the wrong axes or an empty axis; axes of the same name that differ in size.
DtypeError: an array that is not floating, or without integers or booleans where `Args` requires them.
ContractError: an array with NaN, infinity or a number out of range.
"""
