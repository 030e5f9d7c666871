"""Adapters: each module makes one package a target of the suite by calling the package's own code.

An adapter has those public names for which the package claims to compute the same. It translates shapes and parameters,
and no more: what a case does not say is left to the package's default, and what the package cannot be told raises
NotImplementedError, which the suite shows as *not implemented*. The first paragraph of each function's docstring says
which code of the package runs; what follows it is shown next to the cases that fail. Both are the text in the table.

`on_torch` and `on_jax` are what adapters share: arrays to and from NumPy, gradients, metrics of a routing. They take it
from a backend, and it is not compared.
"""
