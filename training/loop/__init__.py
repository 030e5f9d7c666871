"""The training loop: steps, checkpoints, evaluation during training, logs and the folder of a run."""
