"""The command `moespec study`: trains one run for each entry and seed, and reports the results.

    OUT/runs/NAME-seed0/      the run, as written by `moespec train`      OUT/outcomes/NAME-seed0.json   the results of the run
    OUT/index.html, results.json, results.csv, steps.csv, table.tex, figures/    rewritten after each seed

After an interruption, repeat the command: the study keeps finished runs and resumes an unfinished run from its last checkpoint.
An entry with a failed run, for example a run that diverges, is listed but not compared.
"""

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

from moespec.models.checks import Number
from moespec.models.errors import BusyError, Interrupted, RunError
from moespec.spec.errors import ConfigError, SpecError
from moespec.spec.names import near_it
from moespec.spec.own import find_own, is_own
from moespec.spec.routers import ROUTERS, Router
from moespec.training.commandline.chosen import Configured, check_written, chosen
from moespec.training.commandline.parse import Settings, options_of, parse
from moespec.training.commands.train import train_command
from moespec.training.configuration.config import Config
from moespec.training.configuration.configfile import digits, dump, values
from moespec.training.configuration.modelconfig import SHORT
from moespec.training.configuration.own import load_written
from moespec.training.data.datasets import check_share
from moespec.training.data.transforms import try_transform
from moespec.training.loop.config_compatibility import changes, described
from moespec.training.loop.evaluations import load_sets
from moespec.training.loop.resolve import choose_backend, load_data, resolve
from moespec.training.loop.rundirectory import RunDirectory
from moespec.training.objectives.table import objective_of
from moespec.training.reports.cost import aligned
from moespec.training.runs import load_run
from moespec.training.study import outcome, results

__all__ = ["combinations", "entries", "main"]

DENSE = "dense"
MAY_CHANGE = frozenset({"data.prefetch", "training.log_every", "training.keep", "training.checkpoint_every"})
"""Fields that may change when a study is resumed, because they do not affect the results of the study."""
MOST = 100  # maximum number of entries of a grid, since a study compares all pairs


@dataclass(frozen=True, kw_only=True)
class StudyArguments(Configured):
    """Train several routers, models or a sweep (--grid) with several seeds each, and report significant differences.

    All options of train are accepted and apply to every entry. Repeat the command to resume an interrupted study. OUT contains
    index.html, results.json, results.csv, steps.csv, table.tex, figures/ (PDF and SVG) and the runs in runs/.
    """

    routers: tuple[str, ...] = ()
    """entries to compare: a router, your own router as package.module:ROUTER, dense, or a new name with train options, such as
    'hash2: --router hash --model.router-options.hashes 2'"""
    grid: Path | None = None
    """TOML file with a list of values per option, such as schedule.peak = [1e-3, 3e-3]; each combination is an entry"""
    out: Path
    """folder of the study"""
    seeds: Number = 5
    """number of seeds per entry; the seeds are 0, 1, ..."""
    measure: str = ""
    """result of a scheduled evaluation to compare instead of the head's accuracy, such as few_shot/shots_10/accuracy"""


def main(words: list[str]) -> None:
    """Trains all unfinished runs, seed by seed, and writes the results to the study's folder.

    Raises ConfigError or DataError before the first run, RunError for a folder with another study or a damaged outcome file,
    and RunError at the end if an entry failed.
    """
    base = chosen(words, digits())
    parsed = parse("study", StudyArguments, words, settings=base)
    if (seed := parsed.settings.training.seed) != base.training.seed:
        raise ConfigError(f"training.seed={seed!r}: a study sets its own seeds; use --seeds N")
    swept = combinations(parsed.grid, parsed.settings) if parsed.grid else []
    texts, out, measure = [*parsed.routers, *swept], parsed.out, parsed.measure
    if not texts:
        raise ConfigError("study: expected at least one entry; set --routers NAME ..., or --grid FILE for a sweep")
    found = entries(texts, parsed.settings, swept)
    check_written(words, parsed.settings, *found.values())
    if any((out / name).exists() for name in ("config.toml", "checkpoints")):
        raise RunError(f"out={str(out)!r} is a run's folder; choose another folder for the study")
    configs = {name: _resolved(name, config, measure) for name, config in found.items()}
    runs = {(name, seed): out / "runs" / f"{name}-seed{seed}" for seed in range(parsed.seeds) for name in configs}
    for (name, seed), run in runs.items():
        _check_same(run, _kept(run), _seeded(configs[name], seed))
    (out / "outcomes").mkdir(parents=True, exist_ok=True)
    outcomes: dict[str, dict[int, dict[str, object]]] = {name: {} for name in configs}
    failed: dict[str, dict[int, str]] = {}
    for number, ((name, seed), run) in enumerate(runs.items(), start=1):
        file = _kept(run)
        try:
            if not file.is_file():
                print(f"study: run {number} of {len(runs)}, {name} with seed {seed}", flush=True)
                config = _seeded(configs[name], seed)
                train_command(config, run=run, resume=RunDirectory(run).begun(), override=False)
                outcome.make(load_run(run), run, file)
            outcomes[name][seed] = outcome.read(file, measure)
        except Interrupted as stop:
            told = f"stopped by {stop.signal.name} in run {number} of {len(runs)}; repeat the command to resume"
            raise Interrupted(told, stop.signal) from stop
        except BusyError:
            raise
        except (SpecError, MemoryError, RuntimeError) as error:  # frameworks raise RuntimeError
            why = (str(error) or type(error).__name__).splitlines()[0]
            failed.setdefault(name, {})[seed] = why
            print(f"study: {name} with seed {seed} failed: {why}", flush=True)
        if name == list(configs)[-1]:
            summary = results.summarised(outcomes, failed, measure)
            results.write(out, summary, dict(zip(texts, map(dump, configs.values()), strict=True)))
    print(aligned(results.rows(summary)))
    print("\n".join(summary["sentences"]))
    print(f"{out / 'index.html'}, results.json, results.csv, steps.csv, table.tex, figures/*.pdf and *.svg")
    if failed:
        raise RunError(f"{', '.join(failed)} failed; repeat the command to retry only the unfinished runs")


def combinations(path: Path, base: Config) -> list[str]:
    """Reads a TOML file with a list of values per option. Returns every combination of values as a string that `entries` parses.

    The name of an entry lists its values, as in `router=hash,peak=0.001`. Options that end in the same word appear with their full names.
    """
    if not path.is_file():
        raise ConfigError(f"grid={str(path)!r}: no such file, expected a TOML file")
    table = values(path)
    for key, of in table.items():
        if not isinstance(of, list) or not of or any(isinstance(value, list | dict) for value in of):
            raise ConfigError(f"{path}: {key}={of!r}: expected a list of values, as in {key} = [1, 2]")
    full = [SHORT.get(key, key) for key in table]
    if twice := next((key for key in table if full.count(SHORT.get(key, key)) > 1), None):
        raise ConfigError(f"{path}: {twice}: the file sets this option twice, under different names")
    number = math.prod(map(len, table.values())) if table else 0
    if not 0 < number <= MOST:
        raise ConfigError(f"{path}: the lists have {number} combinations, expected 1 to {MOST}")
    flags: dict[tuple[str, str], str] = {}
    for option in options_of(Settings, SimpleNamespace(settings=base)):
        if option.switch:
            flags |= {(option.name, "True"): option.flags[-1], (option.name, "False"): option.off}
    ends, found = [key.rpartition(".")[2] for key in table], []
    for of in product(*table.values()):
        point = list(zip(table, ends, of, strict=True))
        name = ",".join(f"{key if ends.count(end) > 1 else end}={value}" for key, end, value in point)
        options = [flags.get((key, repr(value)), f"--{key}={value}") for key, _, value in point]
        found.append(f"{re.sub(r'[^,=+.a-zA-Z0-9_-]+', '_', name)}: {shlex.join(options)}")
    return found


def entries(texts: Sequence[str], base: Config, swept: Sequence[str] = ()) -> dict[str, Config]:
    """Returns configurations by entry name. Each configuration is `base` with the options of an entry.

    An entry is a router (`soft_moe`, or `package.module:ROUTER`, named after its module), `dense` for no MoE blocks, or a name and
    any options of `moespec train` (`hash2: --router hash --model.router-options.hashes 2`).
    swept: the entries of a grid, from `combinations`. Raises ConfigError for an invalid entry.
    """
    configs: dict[str, Config] = {}
    for text in texts:
        name, colon, options = (part.strip() for part in text.partition(":"))
        where = f"grid: {name}" if text in swept else f"routers={text!r}"
        if is_own(text):
            load_written(["--router", text])
            name, colon, options = find_own("routers", text, Router).name, ":", f"--router {text}"
        if not re.fullmatch(r"[A-Za-z0-9][\w.,=+-]{0,199}", name):
            raise ConfigError(f"{where}: expected a router or NAME: OPTIONS (at most 200 letters, digits and _.,=+-)")
        if name in configs:
            raise ConfigError(f"{where}: duplicate entry {name!r}")
        if not colon and name not in (DENSE, *ROUTERS):
            known = f"expected {DENSE}, one of {', '.join(ROUTERS)}, or NAME: OPTIONS"
            raise ConfigError(f"{where}: {known}{near_it(name, (DENSE, *ROUTERS))}")
        try:
            words = shlex.split(options)
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from error
        flags = words if colon else ["--model.moe", "none"] if name == DENSE else ["--router", name]
        try:
            load_written(flags)
            config = parse("study", Settings, flags, settings=chosen(flags, base)).settings
            if colon:
                check_written(flags, config)
                if name == DENSE and config.model.moe != "none":
                    raise ConfigError(f"model.moe={config.model.moe!r}: expected 'none' for an entry named {name!r}")
                if name in ROUTERS and (router := config.model.router) != name:  # a user's router may have this name
                    raise ConfigError(f"model.router={router!r}: expected {name!r} for an entry named {name!r}")
            if config.training.seed != base.training.seed:
                raise ConfigError(f"training.seed={config.training.seed!r}: a study sets its own seeds; use --seeds N")
            configs[name] = config
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
    return configs


def _resolved(name: str, config: Config, measure: str) -> Config:
    """Returns the resolved configuration for the runs of an entry. Errors name the entry."""
    backend, _ = choose_backend(config.backend)
    try:
        objective = objective_of(config)
        dataset = load_data(config)
        resolved = resolve(config, dataset, backend)
        objective.read(resolved, dataset)
        own = {name: one.numbers for name, one in load_sets(resolved, dataset).items()}
        there = outcome.measures(config, own)
        if measure not in (*([""] if objective.head else []), *there):
            head = (
                "by default, the head's accuracy is compared" if objective.head else f"{config.objective!r} has no head"
            )
            have = f"expected one of {', '.join(there)}" if there else "no evaluation is scheduled"
            raise ConfigError(f"measure={measure!r}: {have} ([evaluation.NAME]); {head}")
        check_share(config.data, dataset)
        try_transform(dataset, config.data)
        return resolved
    except ConfigError as error:
        raise ConfigError(f"entry {name}: {error}") from error


def _seeded(config: Config, seed: int) -> Config:
    return replace(config, training=replace(config.training, seed=seed))


def _kept(run: Path) -> Path:
    """Returns the path of the file with the outcome of a run."""
    return run.parents[1] / "outcomes" / f"{run.name}.json"


def _check_same(run: Path, kept: Path, config: Config) -> None:
    """Raises RunError if the existing run or its outcome has another configuration."""
    directory = RunDirectory(run)
    saved = [asdict(own)] if directory.begun() and (own := directory.config()) else []
    saved += [outcome.read(kept)["config"]] if kept.is_file() else []
    for before in saved:
        differing = {key: pair for key, pair in changes(before, config).items() if key not in MAY_CHANGE}
        if differing:
            raise RunError(f"{run}: belongs to another study: {described(differing)}; choose another --out")
