"""Training runs: configuration, loop, objective, schedules, checkpoints and logs."""
