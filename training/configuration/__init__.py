"""The configuration of a run: its sections, its TOML file, and which options apply when."""
