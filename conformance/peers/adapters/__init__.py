"""Adapters: each module makes one package a target of the suite by calling the package's code.

An adapter defines the public names that the package claims to compute. Adapters only translate shapes and parameters. If a
case sets no value, the package's default applies. A value that the package does not accept raises NotImplementedError,
which the suite shows as *not implemented*. `docs/peers.md` shows the adapter's docstring and the first paragraph of each
function's docstring. This paragraph names the package's code that the function runs.

`on_torch` and `on_jax` contain the functions that adapters share. Some of these functions, such as the conversion to and from NumPy,
come from a backend. The suite does not compare shared functions.
"""
