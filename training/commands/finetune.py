"""The command `moespec finetune`."""

from dataclasses import dataclass
from pathlib import Path

from moespec.models.options import option
from moespec.spec.errors import ConfigError, SpecError
from moespec.training.commandline.chosen import Configured, check_functions, check_written, chosen, early
from moespec.training.commandline.parse import parse
from moespec.training.commands.train import train_command
from moespec.training.configuration.config import Config
from moespec.training.configuration.configfile import digits
from moespec.training.transfer.start import finetuned, sized, taken

__all__ = ["main"]


@dataclass(frozen=True, kw_only=True)
class FinetuneArguments(Configured):
    """Train on from the weights of a run or a file, on the same data or others, at another resolution, or with experts.

    moespec finetune runs/x --data folder --data.path photos --model.image-size 384; moespec finetune runs/dense --model.moe
    every_2 --router softmax_expert_choice --experts 8 upcycles a dense model. The model is the source's. So are, of a run
    and without --data, the section data, the size of the images and the evaluations; with --data, mean and deviation; and its
    backend, where that is installed. A file or a folder of the hub has no data: it needs --data. What is set here takes the
    place of all these; everything else is as in train. `moespec train --init SOURCE` takes the weights alone.
    """

    source: Path = option(positional=True)
    """weights to start from: a run, a file of moespec convert, or a folder of the hub"""
    run: Path | None = None
    """folder of the new run (default: as in train)"""
    resume: bool = False
    """go on from the new run's last checkpoint"""


def main(words: list[str]) -> None:
    """Runs the command."""
    if not words or words[0].startswith("-"):
        parse("finetune", FinetuneArguments, words or ["--help"], settings=digits())
        raise SpecError("finetune: the source comes first: moespec finetune runs/x --data ...")
    source, *rest = words
    named = any(word.partition("=")[0] in ("--data", "--data.name") for word in rest)
    base = finetuned(digits(), source, other_data=named)
    _check_model(early(rest)["model"] or base.model.name, base)
    parsed = parse("finetune", FinetuneArguments, words, settings=chosen(rest, base))
    _check_model(parsed.settings.model.name, base)  # the file's model
    if parsed.settings.init != source:
        raise ConfigError(f"init={parsed.settings.init!r}: the weights are those of the source, {source!r}")
    check_written(rest, parsed.settings)
    check_functions(rest, parsed.settings)
    settings, note = sized(parsed.settings), taken(parsed.settings, given=named or parsed.resume)
    train_command(settings, run=parsed.run, resume=parsed.resume, override=False, note=note)


def _check_model(name: str, base: Config) -> None:
    """Raises ConfigError if the model differs from the model of the weights to fine-tune."""
    if name != base.model.name:
        raise ConfigError(
            f"model.name={name!r}: the model is that of the source, {base.model.name!r}; its fields may be set"
        )
