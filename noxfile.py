"""nox sessions. Start with `nox -s train` or `nox -s conformance`; `nox -l` lists all.

Every session installs what it needs. `constraints.txt` pins the versions that CI uses. If there is a GPU, JAX is
installed with CUDA (torch's default wheel includes it).
"""

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["lint", "types", "golden", "tests", "conformance"]
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True

CONSTRAINTS = ("-c", "constraints.txt")
BACKENDS = ("numpy", "jax", "torch")
NEWEST = "3.13"
"""The newest Python tested. torch has no small wheel for it, so only JAX runs there."""
PEERS = tomllib.loads(Path("conformance/peers/peers.toml").read_text())
REPORTS = Path("build/conformance")
EXAMPLE = "docs/examples/my_routers"
QUIET = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Makes torch's threads wait without spinning: on a busy machine, small models run ten times as fast."""


def _extra(backend: str) -> str:
    if backend == "numpy":
        return ""
    if backend == "jax" and shutil.which("nvidia-smi"):
        return "cuda"
    return backend


def _install(session: nox.Session, *extras: str) -> None:
    wanted = ",".join(extra for extra in extras if extra)
    session.install(*CONSTRAINTS, "-e", f".[{wanted}]" if wanted else ".")


def _options(session: nox.Session, **defaults: str) -> tuple[argparse.Namespace, list[str]]:
    """The values of `--name VALUE` or `--name=VALUE` in the session's arguments, and the remaining arguments."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", default=default)
    return parser.parse_known_args(session.posargs)


@nox.session
def train(session: nox.Session) -> None:
    """Train a vision MoE on the embedded digits: `nox -s train [-- --backend torch --router ...]`."""
    given, arguments = _options(session, backend="jax")
    if given.backend not in BACKENDS:
        session.error(f"--backend {given.backend!r}: expected one of {', '.join(BACKENDS)}")
    _install(session, "train", _extra(given.backend))
    session.run("moespec", "train", *arguments, "--backend", given.backend, env=QUIET)
    command = os.path.relpath(Path(session.bin, "moespec"))
    session.log(f"the command is {command}; next: {command} predict RUN FOLDER --html new.html, or docs/quickstart.md")


# Keep XLA's compilation cache for other processes and the next run.
CACHE = {
    "JAX_COMPILATION_CACHE_DIR": str(Path("build/cache/jax").resolve()),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
# Keep Inductor's cache as well.
INDUCTOR = {"TORCHINDUCTOR_CACHE_DIR": str(Path("build/cache/torch").resolve())}
# JAX spends nearly all its time compiling small programs that run once: this flag and `_with_flags` more than halve it.
QUICK = {**CACHE, "XLA_FLAGS": "--xla_backend_optimization_level=0"}
# Mode, dtypes, environment and options of each run (see docs/conformance.md). Code that users run is fully compiled in
# float32. The options apply to a run without arguments. `nox -s full` runs all cases in all dtypes.
Run = tuple[str, str, dict[str, str], tuple[str, ...]]
RUNS: dict[str, tuple[Run, ...]] = {
    "numpy": (("eager", "f64,f32,bf16", {}, ()),),
    "jax": (
        ("eager", "f32", QUICK, ("--class", "errors")),
        ("compiled", "f32", CACHE, ()),
        ("compiled", "bf16", QUICK, ("--class", "values,ties,overflow")),
    ),
    "torch": (
        ("eager", "f64,f32,bf16", {}, ()),
        ("compiled", "f32", INDUCTOR, ()),
    ),
}


def _with_flags(session: nox.Session, environment: dict[str, str]) -> dict[str, str]:
    """`environment` with an extra XLA flag for JAX before 0.11. Later versions abort on it."""
    if "XLA_FLAGS" not in environment:
        return environment
    look = "import importlib.metadata as m; print(*[d.version for d in m.distributions(name='jax')])"
    found = str(session.run("python", "-c", look, silent=True) or "").strip()
    older = bool(found) and tuple(map(int, found.split(".")[:2])) < (0, 11)
    flags = " --xla_cpu_use_fusion_emitters=false" if older else ""
    return {**environment, "XLA_FLAGS": environment["XLA_FLAGS"] + flags}


@nox.session
@nox.parametrize("backend", BACKENDS)
def conformance(session: nox.Session, backend: str) -> None:
    """Check every backend against the golden vectors, each in an environment without the other framework.

    Runs eager and compiled. `-- --dtype f64,f32,bf16` runs all cases in every dtype, and
    `-- --mode compiled --dtype f32 --algorithm soft_moe` only that selection.
    """
    _install(session, _extra(backend), "conformance")
    given, arguments = _options(session, mode="eager,compiled", dtype="")
    modes = given.mode.split(",")
    if not set(modes) <= {"eager", "compiled"}:
        session.error(f"--mode {given.mode}: expected some of eager, compiled")
    runs = [run for run in RUNS[backend] if run[0] in modes]
    if not runs:
        session.skip(f"{backend} compiles nothing")
    if given.dtype:
        runs = _in(given.dtype, runs)
    elif session.posargs:
        runs = [(mode, dtypes, environment, ()) for mode, dtypes, environment, _ in runs]
    _run_suite(session, backend, runs, *arguments)


def _in(dtypes: str, runs: Sequence[Run]) -> list[Run]:
    """One run of all cases per mode, in these dtypes."""
    return [(mode, dtypes, environment, ()) for mode, environment in {m: e for m, _, e, _ in reversed(runs)}.items()]


def _run_suite(session: nox.Session, backend: str, runs: Sequence[Run], *arguments: str) -> None:
    """Run the suite on a backend and write a report for each run. Earlier reports in these modes are deleted."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    for old in (path for mode, *_ in runs for path in REPORTS.glob(f"{backend}-{mode}*.json")):
        old.unlink()
    # One process on a GPU: each would reserve its memory.
    processes = () if shutil.which("nvidia-smi") else ("-n", str(os.cpu_count() or 1))
    for mode, dtypes, environment, options in runs:
        session.run(
            "python", "-m", "moespec.conformance", "run", "--target", f"moespec.backends.{backend}", *processes,
            "--report", str(REPORTS / f"{backend}-{mode}-{dtypes}.json"), "--dtype", dtypes,
            *(arguments or options), "--mode", {"eager": "eager,strided"}.get(mode, mode),
            env={**QUIET, **_with_flags(session, environment)},
        )  # fmt: skip


@nox.session
def report(session: nox.Session) -> None:
    """Write a page and a badge from the last `conformance` run: `build/conformance/index.html` and `badge.svg`."""
    reports = sorted(str(path) for path in REPORTS.glob("*.json"))
    if not reports:
        session.error(f"{REPORTS} has no report yet: run `nox -s conformance` first")
    _install(session, "conformance")
    session.run(
        "python", "-m", "moespec.conformance", "report", *reports,
        "--html", str(REPORTS / "index.html"), "--badge", str(REPORTS / "badge.svg"),
    )  # fmt: skip


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site, `build/site`, and run every example on it. `-- --serve` then serves it.

    The matrix shows the last `conformance` run. Without one, the NumPy backend is checked in float64.
    """
    _install(session, "docs", "jax", "torch", "flax", "equinox", "dev", "huggingface", "text")
    session.install("--no-deps", EXAMPLE)
    reports = sorted(str(path) for path in REPORTS.glob("*.json"))
    if not reports:
        REPORTS.mkdir(parents=True, exist_ok=True)
        reports = [str(REPORTS / "numpy-eager-f64.json")]
        session.run(
            "python", "-m", "moespec.conformance", "run", "--target", "moespec.backends.numpy", "--dtype", "f64",
            "-n", str(os.cpu_count() or 1), "--report", reports[0], silent=True,
        )  # fmt: skip
    session.run(
        "python", "-m", "generator", *reports, env={**QUIET, **_with_flags(session, QUICK), "PYTHONPATH": "docs"}
    )
    if "--serve" in session.posargs:
        session.run("python", "-m", "http.server", "--bind", "127.0.0.1", "--directory", "build/site", "8000")


@nox.session
def variants(session: nox.Session) -> None:
    """Run the suite on the known variants: each must fail a vector."""
    _install(session, "conformance")
    session.run("python", "-m", "moespec.conformance", "variants", *session.posargs)


@nox.session
def golden(session: nox.Session) -> None:
    """Generate the golden vectors from the specification; `-- --check` compares them with the committed ones instead."""
    _install(session, "conformance")
    session.run("python", "-m", "moespec.conformance", "golden", *session.posargs)


@nox.session
def models(session: nox.Session) -> None:
    """Record the blocks of transformers' models and write `docs/models.md` and its table; `-- --check` compares instead."""
    needs = PEERS["transformers"]
    session.install(*CONSTRAINTS, "-e", ".[conformance]", *needs["requires"])
    session.run("python", "-m", "moespec.conformance.peers.models", *session.posargs, env=QUIET)


@nox.session
def vectors(session: nox.Session) -> None:
    """For a release: archive the vectors for programs in any language, `build/vectors-VERSION.tar.gz`."""
    _install(session)
    session.run("python", "-m", "moespec.conformance.archive", "build")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the project's tests with both frameworks installed. Tests marked `full` run in the session `full`."""
    _install(session, "jax", "torch", "flax", "equinox", "export", "dev", "huggingface", "text")
    # A test file stays in one process, so that its tests share compiled programs.
    session.run(
        "pytest", "-n", "auto", "--dist", "loadfile", "--ignore", "tests/integrations", "--ignore", "tests/kernels",
        "--ignore", "tests/environments", *session.posargs, env=QUIET,
    )  # fmt: skip


def _interpreter(version: str) -> str | None:
    """A Python of this version from PATH or pyenv, whose shims on PATH may name inactive versions."""
    installed = Path.home().glob(f".pyenv/versions/{version}.*/bin/python")
    for python in (shutil.which(f"python{version}"), *map(str, installed)):
        if python and subprocess.run([python, "--version"], capture_output=True, check=False).returncode == 0:
            return python
    return None


@nox.session
def environments(session: nox.Session) -> None:
    """Run, interrupt and resume short training runs in other environments; `-- -k torch` selects.
    The environments are python -O, closed streams, several compiled processes and, if installed, the newest Python."""
    _install(session, "jax", *(("torch",) if sys.version_info < (3, 12) else ()), "dev")
    variables = {**QUIET, **INDUCTOR}
    if python := _interpreter(NEWEST):
        variables["MOESPEC_NEWEST_PYTHON"] = newest = str(Path("build/environments/newest/bin/python").absolute())
        session.run(python, "-m", "venv", "build/environments/newest", external=True)
        session.run(newest, "-m", "pip", "install", "--quiet", *CONSTRAINTS, "-e", ".[jax,train]", external=True)
    else:
        session.log(f"no Python {NEWEST} on PATH or in ~/.pyenv/versions: its runs are skipped")
    session.run("pytest", "-n", "2", "tests/environments", *session.posargs, env=variables)


@nox.session
def integrations(session: nox.Session) -> None:
    """Run the code blocks of docs/torch-layer.md: the torch layer in models of timm and transformers."""
    _install(session, "torch", "dev", "export")
    session.install(*CONSTRAINTS, "timm", "transformers", "accelerate", "lightning")
    session.run("pytest", "-n", "auto", "tests/integrations", env=QUIET)


# Sessions that need both frameworks or few packages, and their common dependencies, which CI installs once.
CHECKS = ("lint", "types", "golden", "docs", "tpu", "cuda", "integrations", "tests", "environments")
SERIAL = ("types", "tpu")
"""Checks that use one core. They run one after the other, beside the other checks."""
EXTRAS = ("jax", "torch", "flax", "equinox", "export", "dev", "docs", "huggingface", "text")
PACKAGES = ("ruff", "libtpu", "triton", "timm", "transformers", "accelerate", "lightning")


def _install_everything(session: nox.Session) -> None:
    session.install(*CONSTRAINTS, "-e", f".[{','.join(EXTRAS)}]", *PACKAGES)
    session.install("--no-deps", EXAMPLE)


@nox.session(default=False)
def checks(session: nox.Session) -> None:
    """Run CI's checks besides conformance in one environment.
    The checks are lint, types, golden --check, docs, tpu, cuda, integrations, tests and environments."""
    _install_everything(session)
    names = session.posargs or CHECKS

    def check(name: str) -> None:
        arguments = ("--", "--check") if name == "golden" else ()
        session.run("nox", "--no-venv", "--no-install", "-s", name, *arguments)

    with ThreadPoolExecutor(max_workers=1) as aside:
        beside = [aside.submit(check, name) for name in names if name in SERIAL]
        for name in names:
            if name not in SERIAL:
                check(name)
        for each in beside:
            each.result()


@nox.session(default=False)
def full(session: nox.Session) -> None:
    """Run the slow checks, before a release and nightly; `-- tests`, `-- conformance`, `-- variants` or `-- tpu` runs one part.
    They are tests marked `full`, every backend in every dtype and mode, all variants, and steps for several TPUs. Takes
    hours on two cores."""
    _install_everything(session)
    parts = session.posargs or ("tests", "conformance", "variants", "tpu")
    if "tests" in parts:
        session.run("pytest", "-n", "auto", "--dist", "loadfile", "-m", "full", env=QUIET)
    if "conformance" in parts:
        for backend in BACKENDS:
            _run_suite(session, backend, _in("f64,f32,bf16", RUNS[backend]))
        _run_interpreted(session, "f64,bf16")
    if "variants" in parts:
        session.run("python", "-m", "moespec.conformance", "variants")
    if "tpu" in parts:
        session.run("python", "benchmarks/tpu_mesh.py", "--check")


@nox.session(default=False)
def coverage(session: nox.Session) -> None:
    """Before a release: measure statement coverage per top-level folder, `benchmarks/results/coverage.json`."""
    _install(session, "jax", "torch", "flax", "equinox", "dev")
    session.install(*CONSTRAINTS, "coverage")
    session.run("python", "benchmarks/covered.py", *session.posargs, env=QUIET)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and format with ruff, spelling with codespell."""
    session.install(*CONSTRAINTS, "ruff", "codespell")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("codespell")


@nox.session
def types(session: nox.Session) -> None:
    """Run mypy, strict for the specification."""
    _install(session, "jax", "torch", "dev", "docs", "huggingface", "text")
    packages = ("moespec", "generator")
    session.run("mypy", *(word for package in packages for word in ("-p", package)), env={"MYPYPATH": "docs"})


# Extra entries that `study` compares: see `moespec study --help`. BASE balances 16 images together.
ENTRIES = (
    *("dense", "softmax_token_choice", "sinkhorn_token_choice", "softmax_expert_choice", "sinkhorn_expert_choice"),
    *("sparsity_constrained_expert_choice", "soft_moe", "importance_score", "dselect_k", "noisy_top_k", "switch"),
    *("base: --router base --model.group-images 16", "s_base", "gshard", "hierarchical_top_k", "strictly_balanced"),
    *("hash", "hash2: --router hash --model.router-options.hashes 2"),
)


@nox.session
def study(session: nox.Session) -> None:
    """Compare routers on Fashion-MNIST, `benchmarks/study`, and write the table of docs/evaluation.md.

    `-- --data.path FOLDER --seeds 3 --backend torch`: options of `moespec study`; `--config digits` uses the digits.
    """
    given, arguments = _options(session, backend="jax", config="benchmarks/study.toml")
    _install(session, "train", _extra(given.backend))
    session.run(
        "moespec", "study", "--routers", *ENTRIES, "--config", given.config, "--out", "benchmarks/study",
        "--backend", given.backend, *arguments, env={**QUIET, **CACHE},
    )  # fmt: skip
    session.run("python", "benchmarks/table.py")


@nox.session
@nox.parametrize("backend", ["jax", "torch"])
def bench(session: nox.Session, backend: str) -> None:
    """Time layers and models on one core against other projects: `benchmarks/results`, docs/speed.md.

    `-- --vmoe FOLDER:FOLDER`: checkouts of google-research/vmoe and google-research/vision_transformer, for JAX.
    """
    given, arguments = _options(session, vmoe="")
    _install(session, "train", backend)
    session.install(*CONSTRAINTS, *{"jax": ("flax",), "torch": ("soft-moe-pytorch", "st-moe-pytorch")}[backend])
    larger = ("--groups", "4", "--tokens", "784", "--experts", "32", "--rounds", "3", "--name", f"layers-32-{backend}")
    routers = ("softmax_token_choice", "softmax_expert_choice", "soft_moe", "hash")
    runs = [("layers", ()), ("steps", ()), ("layers", (*larger, "--routers", *routers))]
    for name, more in 2 * runs:  # the second run confirms the first
        command = (f"benchmarks/{name}.py", "--backend", backend, *more, *arguments)
        session.run("python", *command, env={**QUIET, "PYTHONPATH": given.vmoe})
    session.run("python", "benchmarks/growth.py", "--backend", backend, env=QUIET)
    session.run("python", "benchmarks/speed.py")


@nox.session
@nox.parametrize("backend", ["torch", "jax"])
def gpu(session: nox.Session, backend: str) -> None:
    """Check a backend on this machine's GPU in every dtype and time a ViT training step.

    Writes `conformance/reports/gpu-*.json` and `benchmarks/results/{gpu,kernels}-*.json`. Accepts the options of
    `benchmarks/gpu.py`. To try it on a CPU, pass small sizes.
    """
    folder = Path("conformance/reports") if shutil.which("nvidia-smi") else REPORTS
    folder.mkdir(parents=True, exist_ok=True)
    _install(session, _extra(backend), "conformance", "train")
    session.run(
        "python", "-m", "moespec.conformance", "run", "--target", f"moespec.backends.{backend}",
        "--dtype", "f64,f32,bf16", "--report", str(folder / f"gpu-{backend}.json"),
    )  # fmt: skip
    session.run("python", "benchmarks/gpu.py", "--backend", backend, *session.posargs, env=CACHE)
    if backend == "torch" and shutil.which("nvidia-smi"):
        session.run("python", "benchmarks/gpu.py", "--backend", backend, "--cuda-graph", *session.posargs, env=CACHE)
        session.run("python", "benchmarks/kernels.py", env=CACHE)


MESHED = ("softmax_expert_choice", "soft_moe")
"""Routers whose steps for several TPUs `tpu` compiles: `full` compiles all, and the tests compile all for CPU devices."""


@nox.session
def tpu(session: nox.Session) -> None:
    """Compile a layer of every router ahead of time, without a TPU, and compare FLOPs, bytes and memory.

    Also compiles steps for several TPUs and compares their collectives. `-- NAME` selects routers. The scripts
    `benchmarks/tpu_layers.py` and `tpu_mesh.py` write the reference figures.
    """
    if sys.version_info >= (3, 12):
        session.skip("the committed figures are those of JAX 0.10, which constraints.txt has for Python 3.11")
    _install(session, "jax", "train")
    session.install(*CONSTRAINTS, "libtpu")
    session.run("python", "benchmarks/tpu_layers.py", "--check", *session.posargs)
    session.run("python", "benchmarks/tpu_mesh.py", "--check", *(session.posargs or MESHED))


@nox.session
def cuda(session: nox.Session) -> None:
    """Check the torch backend's Triton kernels without a GPU: compile them for one, and run the suite on them interpreted."""
    _install(session, "torch", "dev")
    session.install(*CONSTRAINTS, "triton")
    cache = {"TRITON_CACHE_DIR": str(Path("build/cache/triton").resolve())}
    session.run("pytest", "tests/kernels/test_code.py", env=cache)
    session.run("pytest", "-n", "auto", "tests/kernels/test_interpreted.py", env=INTERPRETED)
    _run_interpreted(session, "f32")


INTERPRETED = {**QUIET, "TRITON_INTERPRET": "1", "PYTHONPATH": "tests/kernels"}


def _run_interpreted(session: nox.Session, dtypes: str) -> None:
    """Run the suite on the torch backend with interpreted Triton kernels."""
    session.run(
        "python", "-m", "moespec.conformance", "run", "--target", "interpreted", "--dtype", dtypes,
        "-n", str(os.cpu_count() or 1), env=INTERPRETED,
    )  # fmt: skip


@nox.session
@nox.parametrize("peer", list(dict.fromkeys(needs["package"] for needs in PEERS.values())))
def peers(session: nox.Session, peer: str) -> None:
    """Run the suite on a third-party package in a separate environment and write the table `docs/peers.md`."""
    names = [name for name, needs in PEERS.items() if needs["package"] == peer]
    needs = PEERS[names[0]]
    session.install(*CONSTRAINTS, "-e", ".[conformance]", *needs["requires"])
    if "alone" in needs:
        session.install("--no-deps", *needs["alone"])
    session.run(
        "python", "-m", "moespec.conformance.peers", *(f"--peer={name}" for name in names), *session.posargs,
        env={**QUIET, **CACHE},  # without the flags of `QUICK`, which change the rounding of a peer's results
    )  # fmt: skip
