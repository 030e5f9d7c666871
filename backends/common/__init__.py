"""Formulas whose text is the same for all frameworks, written once.

A function takes the array namespace of a framework first (`xp`, see `moespec.backends.common.namespace`). What is public of a
module, `moespec.backends.face` gives to each backend without that argument. Where JAX and torch compute the same in
different ways, for the sake of a device, of a compiler or of precision, each has a text of its own. No framework is imported.

Shape comments: G groups, T tokens, E experts, C capacity, K choices, D width. Everything is in float32 or better.
"""
