"""The command `moespec hash-table`."""

from dataclasses import dataclass
from pathlib import Path

from moespec.models.checks import check_output
from moespec.spec.errors import ConfigError
from moespec.training.commandline.arguments import Configured
from moespec.training.commandline.chosen import check_written, chosen
from moespec.training.commandline.parse import parse
from moespec.training.configuration.configfile import digits, with_model
from moespec.training.loop import hash_tables
from moespec.training.loop.resolve import load_data, model_config, resolve

__all__ = ["main"]


@dataclass(frozen=True, kw_only=True)
class HashTableArguments(Configured):
    """Make the codebook and the tables of the router hash of a data set, and write them to a file.

    `moespec train --router hash --hash.path FILE` trains with them; without a file it makes them itself. The options
    are those of train; what counts is the data, the model, the seed and how the tables are made (--hash.kind).
    """

    out: Path
    """the file to write (.safetensors)"""


def main(words: list[str]) -> None:
    """Makes the codebook and tables that the router of a model needs, and writes them to a file."""
    given = parse("hash-table", HashTableArguments, words, settings=chosen(words, with_model(digits(), None, "hash")))
    config, out = given.settings, given.out
    check_written(words, config)
    check_output("out", out, [".safetensors"])
    dataset = load_data(config)
    config = resolve(config, dataset, "numpy")
    model = model_config(config.model)
    if not hash_tables.needed(model):
        section = config.model
        raise ConfigError(
            f"model.name={section.name!r}, router={section.router!r}, moe={section.moe!r}: no router that needs token ids"
        )
    tables = hash_tables.make(model, config, dataset)
    hash_tables.write(out, tables, model)
    codes = f"{len(tables.codebook)} codes, " if tables.codebook is not None else ""
    print(
        f"{out}: {codes}{tables.tables.shape[1]} ids, {hash_tables.table_options(model).experts} experts, {len(tables.tables)} hashes"
    )
