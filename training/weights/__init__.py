"""Weights on disk: reads and writes the files of this and other projects, and loads models with their weights.

    moespec convert SOURCE TARGET          `moespec.training.commands.convert`
    training.load("runs/x", backend="jax")   `moespec.training.weights.loading`

`formats` lists the formats; each format reads files into `Weights` and writes `Weights` to files.
"""
