"""Compare torch layers in a process of their user with soft-moe-pytorch's layer, and the time to import them with torch's.

    python benchmarks/own_process.py

Unlike `layers.py`, this benchmark calls the modules of `moespec.backends.torch.nn` eagerly and changes no setting of the process except
the number of threads. A call computes the output and the gradients of all parameters and of the tokens, with the layer's losses. The
layers take turns on one core. `cpu_seconds` is the minimum over the rounds. The other project is measured twice per round, and
`times_other` compares with the lower figure. `agree` is the higher figure of the two divided by the lower.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

os.environ["OMP_NUM_THREADS"] = "1"
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import record
import torch
from soft_moe_pytorch import SoftMoE
from tqdm import tqdm

from moespec.backends.torch.nn import MoE

TINY = {"groups": 2, "tokens": 16, "width": 32, "hidden": 64, "experts": 4}
LARGE = {"groups": 4, "tokens": 784, "width": 384, "hidden": 1536, "experts": 32}
CASES: dict[str, dict[str, float]] = {
    "softmax_token_choice": {},
    "softmax_token_choice, without losses": {"importance_weight": 0.0, "load_weight": 0.0},
    "sigmoid_token_choice": {},
    "switch": {},
    "softmax_expert_choice": {},
    "soft_moe": {},
}
"""Options of the layers. The name of a case begins with the name of the router."""
OTHER = "soft-moe-pytorch"
STARTS = {
    "import torch": ["-c", "import torch"],
    "import moespec.backends.torch.nn": ["-c", "import moespec.backends.torch.nn"],
    "moespec --help": ["-m", "moespec", "--help"],
}


def main() -> None:
    options = record.parser(__doc__, rounds=9).parse_args()
    figures = {
        "tiny": {"sizes": TINY, "layers": layers(TINY, CASES, options.rounds * 10, calls=3)},
        "large": {"sizes": LARGE, "layers": layers(LARGE, {"soft_moe": {}}, options.rounds, calls=1)},
        "starts": starts(options.rounds),
    }
    print(record.write("own-process-torch", figures))


def layers(sizes: dict[str, int], cases: dict[str, dict[str, float]], rounds: int, calls: int) -> dict[str, object]:
    width, tokens, experts = sizes["width"], sizes["tokens"], sizes["experts"]
    slots = {"num_slots": tokens // experts, "expert_mult": sizes["hidden"] // width}
    alone = {"is_distributed": False, "offload_unused_experts_to_cpu": False}
    other = step(SoftMoE(width, num_experts=experts, **slots, **alone), sizes)
    # The other layer does not follow itself, because the first call after a different layer is slower.
    each: dict[str, Callable[[], object]] = {OTHER: other}
    for case, options in cases.items():
        router = case.partition(",")[0]
        each[case] = step(MoE(width, sizes["hidden"], experts, tokens=tokens, router=router, **options), sizes)
        each.setdefault(f"{OTHER}, again", other)
    seconds: dict[str, list[float]] = {name: [] for name in each}
    for run in each.values():
        run()
    for _ in tqdm(range(rounds), desc="rounds"):
        for name, run in each.items():
            start = time.process_time()
            for _ in range(calls):
                run()
            seconds[name].append((time.process_time() - start) / calls)
    least = {name: min(values) for name, values in seconds.items()}
    others = sorted(least[name] for name in (OTHER, f"{OTHER}, again"))
    rows = {name: {"cpu_seconds": one, "times_other": round(one / others[0], 3)} for name, one in least.items()}
    print({name: row["times_other"] for name, row in rows.items()})
    return {"rows": rows, "agree": round(others[1] / others[0], 3)}


def step(layer: torch.nn.Module, sizes: dict[str, int]) -> Callable[[], object]:
    x = torch.randn(sizes["groups"], sizes["tokens"], sizes["width"], requires_grad=True)
    inputs = [x, *layer.parameters()]

    def run() -> object:
        loss = layer(x).square().mean() + sum(getattr(layer, "losses", {}).values())
        return torch.autograd.grad(loss, inputs, allow_unused=True)

    return run


def starts(rounds: int) -> dict[str, dict[str, float]]:
    """Measure programs that only start, in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in STARTS}
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}  # compiled modules, as after an installation
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for _ in tqdm(range(rounds), desc="starts"):
            for name, arguments in STARTS.items():
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                command = [sys.executable, *arguments]
                subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=environment)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                seconds[name].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    torch_alone = min(seconds["import torch"])
    return {
        name: {"cpu_seconds": round(min(values), 3), "times_torch": round(min(values) / torch_alone, 3)}
        for name, values in seconds.items()
    }


if __name__ == "__main__":
    main()
