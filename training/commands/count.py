"""The command `moespec count`."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from moespec.models import counts
from moespec.models.checks import Number
from moespec.training.commandline.chosen import check_written, chosen
from moespec.training.commandline.parse import parse
from moespec.training.configuration.config import Config, ModelConfig, TrainingConfig
from moespec.training.configuration.configfile import digits
from moespec.training.configuration.length import images_seen
from moespec.training.loop.resolve import model_config, without_data
from moespec.training.objectives.table import objective_of
from moespec.training.reports.cost import described, moe_of, of_run, scaled

__all__ = ["main"]


@dataclass(frozen=True)
class CountArguments:
    """Count the parameters of a model and the floating-point operations of one image and of a run, without creating the model.

    A multiply-add counts as two operations. The model options are the same as in train. In a ViT, the last half of the blocks are MoE by
    default; use --model.moe none for a dense model.
    """

    config: Path | None = None
    """TOML file, or a built-in recipe (moespec list recipes)"""
    images: Number | None = None
    """images per batch, for models that route several images together (default: the fewest that fill a group)"""
    examples: Number | None = None
    """length of the run in training images, counting repetitions, to count its operations (default: from the configuration)"""
    model: ModelConfig = field(default_factory=ModelConfig)


def main(words: list[str]) -> None:
    """Prints the number of parameters of a model, its MoE blocks, the operations of each part of the model, and the operations of a run."""
    base = chosen(words, digits())
    given = parse("count", CountArguments, words, model=base.model)
    check_written(words, Config(model=given.model, training=TrainingConfig(loss="sigmoid")))
    seen = images_seen(base.training) if given.config and given.examples is None else given.examples
    config = replace(base, model=given.model)
    model = model_config(without_data(config))
    parts = counts.flops(model, given.images)
    total = sum(parts.values())
    print(f"{config.model.name}: {described(model, batch=given.images)}\n  {moe_of(model)}")
    for name, value in parts.items():
        print(f"  {name:24} {scaled(value):>12} {value / total:7.1%}")
    if seen is not None:
        config = objective_of(config).settled(config, model, None)
        print(f"  {of_run(config, model, seen, batch=given.images)}")
