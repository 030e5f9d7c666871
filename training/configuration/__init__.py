"""The configuration of a run: its sections, its TOML file, its learning-rate schedules and its third-party objects."""
