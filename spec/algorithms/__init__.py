"""The algorithms. Each module implements one algorithm in the notation of its paper.

Every function checks its arguments. Docstrings do not list the following errors, because `Args` states the valid values:

ConfigError: an option is out of range or has an unknown value.
ShapeError: an array has the wrong axes or an empty axis, or axes with the same name differ in size.
DtypeError: an array is not floating, or does not hold the integers or booleans that `Args` requires.
ContractError: an array contains NaN, infinity or a number out of range.
"""
