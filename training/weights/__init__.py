"""Weights on disk: reads and writes the files of this and other projects, and loads models with their weights.

    moespec convert SOURCE TARGET          `moespec.training.commands.convert`
    training.load("runs/x", backend="jax")   `moespec.training.weights.loading`

`formats` lists the formats; each is a module that reads files into `Weights` and writes them.
"""
