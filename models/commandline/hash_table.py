"""What the command `moespec hash-table` does. `moespec.models.cli` parses its arguments."""

from pathlib import Path

from moespec.models.checks import check_output
from moespec.models.training import hash_tables
from moespec.models.training.config import Config
from moespec.models.training.resolve import load_data, model_config, resolve
from moespec.spec.errors import ConfigError

__all__ = ["hash_table_command"]


def hash_table_command(config: Config, out: Path) -> None:
    """Makes the codebook and tables that the router of a model needs, and writes them to a file."""
    check_output("out", out)
    dataset = load_data(config)
    config = resolve(config, dataset, "numpy")
    model = model_config(config.model)
    if not hash_tables.needed(model):
        section = config.model
        raise ConfigError(
            f"model.name={section.name!r}, router={section.router!r}, moe={section.moe!r}: no router that needs token ids"
        )
    found = hash_tables.make(model, config, dataset)
    hash_tables.write(out, found, model)
    codes = f"{len(found.codebook)} codes, " if found.codebook is not None else ""
    print(f"{out}: {codes}{found.tables.shape[1]} ids, {model.experts} experts, {len(found.tables)} hashes")
