"""The training loop: steps, checkpoints, evaluation while training, logs and the folder of a run."""
