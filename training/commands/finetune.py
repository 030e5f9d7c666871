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
    """Fine-tune from a run or a weight file, on the same or other data, at another resolution, or with experts.

    moespec finetune runs/x --data folder --data.path photos --model.image-size 384; moespec finetune runs/dense --model.moe
    every_2 --router softmax_expert_choice --experts 8 upcycles a dense model. The model comes from the source. A run also
    provides the backend (if installed), the data section, the image size and the evaluations. With --data, the run provides only the
    backend and the mean and standard deviation of the data. A file or hub folder provides no data, so --data is required. The options of
    this command are the same as in train and override the values from the source. `moespec train --init SOURCE` uses only the weights.
    """

    source: Path = option(positional=True)
    """initial weights: a run, a file written by moespec convert, or a Hugging Face hub folder"""
    run: Path | None = None
    """folder of the new run (default: as in train)"""
    resume: bool = False
    """resume from the new run's last checkpoint"""


def main(words: list[str]) -> None:
    """Runs the command."""
    if not words or words[0].startswith("-"):
        parse("finetune", FinetuneArguments, words or ["--help"], settings=digits())
        raise SpecError("finetune: expected the source as first argument, as in: moespec finetune runs/x --data ...")
    source, *rest = words
    named = any(word.partition("=")[0] in ("--data", "--data.name") for word in rest)
    base = finetuned(digits(), source, other_data=named)
    _check_model(early(rest)["model"] or base.model.name, base)
    parsed = parse("finetune", FinetuneArguments, words, settings=chosen(rest, base))
    _check_model(parsed.settings.model.name, base)  # the file's model
    if parsed.settings.init != source:
        raise ConfigError(f"init={parsed.settings.init!r}: conflicts with the source {source!r}; remove this option")
    check_written(rest, parsed.settings)
    check_functions(rest, parsed.settings)
    settings, note = sized(parsed.settings), taken(parsed.settings, given=named or parsed.resume)
    train_command(settings, run=parsed.run, resume=parsed.resume, override=False, note=note)


def _check_model(name: str, base: Config) -> None:
    """Raises ConfigError if the model differs from the model of the weights to fine-tune."""
    if name != base.model.name:
        raise ConfigError(
            f"model.name={name!r}: expected the source's model {base.model.name!r}; finetune can only change its fields"
        )
