"""Adapters: each module makes one package a target of the suite by calling the package's code.

An adapter defines the public names that the package claims to compute. Adapters only translate shapes and parameters. If a
case sets no value, the package's default applies. A value that the package does not accept raises NotImplementedError,
which the suite shows as *not implemented*. `docs/peers.md` shows the adapter's docstring, and the first paragraph of each
function's docstring, which names the code of the package that runs.

`on_torch` and `on_jax` contain the functions that adapters share: conversion to and from NumPy, gradients, and metrics of a
routing. These functions come from a backend, and the suite does not compare them.
"""
