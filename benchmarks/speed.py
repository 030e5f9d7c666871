"""Write docs/speed.md and its picture from what the benchmarks measured last, `benchmarks/results/*.json`.

python benchmarks/speed.py            # rewrites docs/speed.md and docs/_static/speed.png
"""

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import summary

from moespec.spec.routers import ROUTERS

DOCS = Path(__file__).parents[1] / "docs"
RESULTS = Path(__file__).parent / "results"

INTRODUCTION = """# Speed

Made by `python benchmarks/speed.py` from the files in `benchmarks/results`. A figure is a ratio from one run, never a promise: on
your machine, run the command that stands in the file.
"""

LAYERS = """## A layer of each router on one core

`nox -s bench`: forward and backward, float32, gradients of all parameters and of the tokens, in turn, the least of the rounds, over
the dense perceptron of the same run. *Work* is the rows that the experts have for each token, so that a layer whose routing costs
nothing is at its work. An expert that has room for every token (`hash`, `s_base`, `noisy_top_k`, `dselect_k`, any factor `inf`)
multiplies only what it is sent; with torch on a GPU, in 16 bits only. `strictly_balanced` has room for all at evaluation, and computes it.

The gates of `dselect_k` are all open at its first step, which this is.

Other projects are here where a second run agrees within 10 %. torch takes memory in large pages for all, as in `moespec train`.
Denormal numbers are zeros with torch, as with XLA; in the row
*denormals* torch computes with them, as it does by default: some processors multiply them many times more slowly, and of the first
softmaxes of soft-moe-pytorch, whose logits have a standard deviation of the root of the width, some percent are denormal.
"""

LARGER = """## Layers with 32 experts

The same in groups of 784 tokens.
"""

STEPS = """## A model

`nox -s bench`: the loss of a ViT and its gradients, as for layers; experts in every second block.
"""

GROWTH = """## Growth

`nox -s bench`: narrow experts, at as many slots in all, over the dense perceptron of the same tokens. Routing to more experts costs
what their logits cost; what a plan, a choice or a mixture costs grows with tokens times experts, and for Soft MoE with tokens times
slots, so with the square of the tokens of a group.
"""

STEPS_TPU = """## A training step, compiled for a TPU

`python benchmarks/tpu_steps.py`: whole steps in bfloat16 with AdamW and a clip, experts in every second block. *Recomputed* is
`--training.recompute`. With many experts, *temporary* is mostly their weights in bfloat16 and their gradients.
"""

TPU = """## A layer of each router, compiled for a TPU

`python benchmarks/tpu_layers.py` compiles them with the TPU's own compiler, without a TPU; `nox -s tpu` fails when FLOPs, passes, bytes
or memory have grown by more than 5 %. Bytes are what the compiler counts. *Passes* count a float32 product at the highest precision
six times. Rows of groups of at most 256 tokens come and go by products with one-hot rows, as in vmoe's einsum, which are in the
count: a gathered row counts as the tile of eight rows that it lies in. Larger groups, float32 and `base` gather. Soft MoE's logits
are three passes, forward and in each gradient, where the tokens are bfloat16, as they are here; in float32 they are six. Layers that
multiply the filled slots alone do so by kernels (Pallas' megablox), which say their own operations and bytes: a tile of 256 rows that
two experts share is multiplied twice and counted once, and an expert's matrix is counted for each of its tiles of rows.
"""

MESH = """## What devices tell each other

`python benchmarks/tpu_mesh.py`: a training step of a ViT-S/16 of two blocks, one with 8 experts, bfloat16, 16 images a device,
compiled for 4 and 8 chips of a TPU v5e; `nox -s tpu` fails when there are other collectives. *Bound* is what must be received: slots
whose experts are elsewhere, four times; gradients of what several devices have, twice; with `fsdp` the parts of the others, and
their gradients.
"""

GPU = """## A training step on a GPU

`python benchmarks/gpu.py`: ViT-B/16 in bfloat16, 256 images, experts in every second block, compiled; the median of 20 rounds of one run.
*Pass* is the loss with its gradients, *step* also clip and AdamW. Over the dense model by the same backend; in brackets over the
ratio of their operations.
"""

RECIPES = """## A step of each recipe, compiled for a TPU

`python benchmarks/tpu_recipes.py`: the whole step with clip and optimiser, float32, 8 images. The count is that of `moespec count`;
the optimiser is not in it, which is what is above 1 where experts have many parameters and the batch few images.
"""

DATA = """## Images

`python benchmarks/data.py --workers 2`: JPEG files of 500 x 375 pixels to crops of 224, on wall time, over as many processes
that do nothing but decode and crop with Pillow. Pixels are mixed and normalised on the device, where they arrive as bytes.
"""


def main() -> None:
    layers = {name: read(f"layers-{name}-cpu") for name in ("jax", "torch")}
    picture(layers, DOCS / "_static" / "speed.png")
    larger = {name: read(f"layers-32-{name}-cpu") for name in layers}
    steps = {name: read(f"steps-{name}-cpu") for name in ("jax", "torch")}
    tpu, tpu_steps = read("layers-tpu"), read("steps-tpu")
    parts = [INTRODUCTION, summary.TEXT, table(summary.HEAD, list(summary.cpu_rows(layers, larger, steps))), ""]
    parts += [table(summary.HEAD_TPU, list(summary.tpu_rows(tpu, tpu_steps))), ""]
    parts += [LAYERS, "![times of layers over the dense perceptron](_static/speed.png)\n", of_layers(layers)]
    parts += [LARGER, of_layers(larger)]
    parts += [STEPS, of_layers(steps, "steps"), GROWTH, of_growth({name: read(f"growth-{name}-cpu") for name in steps})]
    shape = ", ".join(f"{value} {name}" for name, value in tpu["shape"].items())
    keys = ("flops_over_count", "passes_over_count", "gigabytes_accessed", "temporary_mib")
    head = ["layer", "FLOPs / count", "passes / count", "GB accessed", "temporary MiB"]
    rows = [[f"`{name}`", *(str(row.get(key, "")) for key in keys)] for name, row in tpu["rows"].items()]
    parts += [TPU, table(head, rows), f"\n{shape}; {tpu['topology']}, {versions(tpu['versions'])}.\n"]
    parts += [STEPS_TPU, of_tpu_steps(tpu_steps), MESH, of_mesh(read("mesh-tpu"))]
    parts += [GPU, of_gpu(sorted(RESULTS.glob("gpu-*.json")))]
    recipes = read("recipes-tpu")
    head = ["recipe", "topology", "parameters", "FLOPs / count", "GB accessed", "temporary MiB"]
    rows = [
        [f"`{row['recipe']}`", row["topology"], f"{row['parameters'] / 1e6:,.0f} M", *of_recipe(row)]
        for row in recipes["rows"]
    ]
    parts += [RECIPES, table(head, rows), f"\n{versions(recipes['versions'])}.\n"]
    data = read("data-cpu")
    figures = data["figures"]["images_per_second"], data["figures"]["images_per_second_of_pillow"]
    rows = [[name, f"{figures[0][name]:.0f}", f"{figures[1][name]:.2f}"] for name in figures[0]]
    parts += [DATA, table(["what", "images a second", "of Pillow"], rows), f"\n{machine(data)}.\n"]
    (DOCS / "speed.md").write_text("\n".join(parts))


def read(name: str) -> Any:
    """A committed result, without the layers and models of other projects on which two runs do not agree within 10 %."""
    path = RESULTS / f"{name}.json"
    if not path.is_file():
        raise SystemExit(f"{path}: no such file; the benchmark that writes it is named in docs/speed.md")
    result = json.loads(path.read_text())
    left_out = []
    for part in {"layers", "steps"} & set(result.get("figures", ())):
        rows, before = result["figures"][part], result.get("before", {}).get(part, {})
        for other in [name for name in rows if name.partition(",")[0] not in {"dense", *ROUTERS}]:
            twice = [of[other]["times_dense"] for of in (before, rows) if other in of]
            if len(twice) < 2 or abs(twice[0] / twice[1] - 1) > 0.1:
                left_out += [f"`{other}` ({' and '.join(f'{one:.2f}' for one in twice)})"]
                del rows[other]
    result["left_out"] = f". Not confirmed by a second run: {', '.join(left_out)}" if left_out else ""
    return result


def of_layers(results: dict[str, Any], part: str = "layers") -> str:
    """The table of layers, or of models, whose `part` is "steps"; and what they were."""
    figures = {name: result["figures"][part] for name, result in results.items()}
    rows = []
    for name in dict.fromkeys(name for one in figures.values() for name in one):
        work = [f"{one[name]['work']:.2f}" for one in figures.values() if "work" in one.get(name, ())]
        times = [f"{one[name]['times_dense']:.2f}" if name in one else "" for one in figures.values()]
        rows.append([f"`{name}`", *work[:1], *times])
    head = ["layer", "work"] if part == "layers" else ["model"]
    text = [table([*head, *(f"{name}, x dense" for name in figures)], rows)]
    for name, result in results.items():
        config = result["figures"]["config"].items()
        sizes = ", ".join(f"{key} {value}" for key, value in config if key not in ("backend", "rounds", "routers"))
        dense = 1e3 * figures[name]["dense"]["cpu_seconds"]
        text.append(f"{name}: {sizes}; dense takes {dense:.0f} ms; {machine(result)}.\n")
    return "\n\n".join(text)


def of_growth(growth: dict[str, Any]) -> str:
    first = next(iter(growth.values()))["figures"]["rows"]
    routers = list(first[0]["times_dense"])
    head = ["tokens", "experts", *(f"{name}, `{router}`" for name in growth for router in routers)]
    rows = []
    for i in range(len(first)):
        each = [result["figures"]["rows"][i] for result in growth.values()]
        times = [f"{row['times_dense'][router]:.2f}" for row in each for router in routers]
        rows.append([str(first[i]["tokens"]), str(first[i]["experts"]), *times])
    sizes = f"{first[0]['width']} width, {first[0]['hidden']} hidden, one group"
    return "\n\n".join([table(head, rows), f"{sizes}; {machine(next(iter(growth.values())))}.\n"])


def of_tpu_steps(steps: Any) -> str:
    dense = {key(row): row for row in steps["rows"] if row["of"]["case"] == "dense"}
    rows = []
    for row in steps["rows"]:
        of, beside = row["of"], dense.get(key(row), {})
        ratios = [
            f"{row[name] / beside[name]:.2f}" if name in row and name in beside else ""
            for name in ("gigabytes_accessed", "temporary_mib", "compile_seconds")
        ]
        flops = str(row.get("flops_over_count", "more than a core has"))
        model = f"`{of['model']}`, {of['images']} images, {of['topology'].partition(':')[0]}"
        held = f"{row['arguments_mib'] / 1024:.1f}" if "arguments_mib" in row else ""
        rows.append([model, of["case"], str(of.get("experts", "")), flops, *ratios, held])
    head = ["model", "case", "experts", "FLOPs / count"]
    head += ["bytes / dense", "temporary / dense", "compile / dense", "parameters and state, GiB"]
    return "\n\n".join([table(head, rows), f"{versions(steps['versions'])}.\n"])


def of_mesh(mesh: Any) -> str:
    kinds = ("all-to-all", "all-reduce", "all-gather", "reduce-scatter")
    rows = []
    for name, row in mesh["steps"].items():
        router, _, devices = name.partition(", ")
        counts = [str(row.get(kind, {"count": 0})["count"]) for kind in kinds]
        rows.append([f"`{router}`, {devices}", *counts, f"{row['megabytes']:.1f}", f"{row['over_bound']:.2f}"])
    head = ["step", *kinds, "MB received", "over the bound"]
    return "\n\n".join([table(head, rows), f"{versions(mesh['versions'])}.\n"])


def of_gpu(paths: list[Path]) -> str:
    rows, made = [], {}
    for path in paths:
        result = json.loads(path.read_text())
        backend, gpu = (
            result["figures"]["config"]["backend"],
            result["machine"]["gpu"].removeprefix("NVIDIA ").split()[0],
        )
        for row in result["figures"]["models"]:
            seconds = [f"{1e3 * row[kind]:.1f}" for kind in ("pass", "step")]
            over = [(row[f"{kind}_over_dense"], row[f"{kind}_per_operation"]) for kind in ("pass", "step")]
            ratios = [f"{one:.2f} ({other:.2f})" for one, other in over]
            case = [f"{backend}, {gpu}", f"`{row['model']}`", str(row.get("experts", ""))]
            rows.append([*case, *seconds, *ratios, f"{row['most_mib']:,.0f}"])
        made[f"{backend}: {versions(result['versions'])}"] = None
    head = ["on", "case", "experts", "pass, ms", "step, ms", "pass / dense", "step / dense", "most MiB"]
    return "\n\n".join([table(head, rows), f"{'; '.join(made)}.\n"])


def key(row: Any) -> tuple[Any, ...]:
    return row["of"]["model"], row["of"]["images"], row["of"]["topology"]


def of_recipe(row: dict[str, Any]) -> list[str]:
    if "error" in row:
        return ["", "", "more than a core has"]
    return [str(row["flops_over_count"]), str(row["gigabytes_accessed"]), str(row["temporary_mib"])]


def table(head: list[str], rows: list[list[str]]) -> str:
    align = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, align, *rows])


def machine(result: dict[str, Any]) -> str:
    of = result["machine"]
    return f"{of['gpu'] or of['cpu']}, {of['cores']} cores, {versions(result['versions'])}{result['left_out']}"


def versions(each: dict[str, str]) -> str:
    return ", ".join(f"{name} {each[name]}" for name in each if name in ("jax", "torch", "libtpu", "numpy"))


def picture(layers: dict[str, Any], path: Path) -> None:
    figure, axes = plt.subplots(1, len(layers), figsize=(11, 6), sharex=True, layout="constrained")
    for axis, (name, result) in zip(axes, layers.items(), strict=True):
        rows = result["figures"]["layers"]
        axis.barh(list(rows), [row["times_dense"] for row in rows.values()], color="tab:blue", label="measured")
        axis.plot([row["work"] for row in rows.values()], list(rows), "k|", markersize=12, label="work")
        axis.invert_yaxis()
        axis.set(title=name, xlabel="times the dense perceptron", xscale="log")
        axis.legend(loc="lower right")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
