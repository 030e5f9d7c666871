"""Adapters: each module makes one package a target of the suite by calling the package's code.

An adapter defines the public names that the package claims to compute. It only translates shapes and parameters. Where a
case sets no value, the package's default applies. A value that the package does not accept raises NotImplementedError,
which the suite shows as *not implemented*. `docs/peers.md` shows the adapter's docstring, and the first paragraph of each
function's docstring, which says which code of the package runs.

`on_torch` and `on_jax` hold what adapters share: conversion to and from NumPy, gradients, metrics of a routing. They take
it from a backend. The suite does not compare it.
"""
