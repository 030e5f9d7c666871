"""Write the tables and the figure of docs/speed.md from the latest results, `benchmarks/results/*.json`.

python benchmarks/speed.py            # rewrites the text between the page's markers, and docs/_static/speed.png
"""

import json
from operator import itemgetter
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import page
import summary

from moespec.spec.routers import ROUTERS

RESULTS = Path(__file__).parent / "results"
BACKENDS = ("jax", "torch")


def main() -> None:
    layers, larger, steps, growth = (
        {name: read(f"{kind}-{name}-cpu") for name in BACKENDS} for kind in ("layers", "layers-32", "steps", "growth")
    )
    newest = read("layers-newest-jax-cpu")
    picture(layers, page.DOCS / "_static" / "speed.png")
    tpu, tpu_steps = read("layers-tpu"), read("steps-tpu")
    tables = {
        "cpu": page.table(summary.HEAD, list(summary.cpu_rows(layers, larger, steps))),
        "own process": of_own_process(read("own-process-torch-cpu")),
        "tpu": page.table(summary.HEAD_TPU, list(summary.tpu_rows(tpu, tpu_steps))),
        "layers": of_layers({"jax": layers["jax"], "newest jax": newest, "torch": layers["torch"]}),
        "larger layers": of_layers(larger),
        "models": of_layers(steps, "steps"),
        "growth": of_growth(growth),
        "layers on a TPU": of_tpu_layers(tpu),
        "steps on a TPU": of_tpu_steps(tpu_steps),
        "collectives": of_mesh(read("mesh-tpu")),
        "steps on a GPU": of_gpu(sorted(RESULTS.glob("gpu-*.json"))),
        "recipes": of_recipes(read("recipes-tpu")),
    }
    page.rewrite(page.DOCS / "speed.md", tables)


def read(name: str) -> Any:
    """Return a committed result. Omit layers and models of other projects unless two runs agree within 10 %."""
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
    """Return the table of layers (or of models, if `part` is "steps"), with a caption that describes the run."""
    figures = {name: result["figures"][part] for name, result in results.items()}
    rows = []
    for name in dict.fromkeys(name for one in figures.values() for name in one):
        work = [f"{one[name]['work']:.2f}" for one in figures.values() if "work" in one.get(name, ())]
        times = [f"{one[name]['times_dense']:.2f}" if name in one else "" for one in figures.values()]
        rows.append([f"`{name}`", *work[:1], *times])
    head = ["layer", "work"] if part == "layers" else ["model"]
    text = [page.table([*head, *(f"{name}, x dense" for name in figures)], rows)]
    for name, result in results.items():
        config = result["figures"]["config"].items()
        sizes = ", ".join(f"{key} {value}" for key, value in config if key not in ("backend", "rounds", "routers"))
        dense = 1e3 * figures[name]["dense"]["cpu_seconds"]
        text.append(f"{name}: {sizes}; dense takes {dense:.0f} ms; {machine(result)}.")
    if "newest jax" in results:
        of_jax, of_torch = (times_of(figures[name]) for name in ("newest jax", "torch"))
        ratios = [of_torch[name] / seconds for name, seconds in of_jax.items()]
        text.append(f"Times of torch divided by times of the newest jax: {min(ratios):.2f} to {max(ratios):.2f}.")
    return "\n\n".join(text)


def times_of(rows: dict[str, dict[str, float]]) -> dict[str, float]:
    return {name: row["cpu_seconds"] for name, row in rows.items()}


def of_own_process(result: Any) -> str:
    figures = result["figures"]
    tiny, large = (
        (", ".join(f"{n} {name}" for name, n in figures[size]["sizes"].items())) for size in ("tiny", "large")
    )
    agree = max(figures[size]["layers"]["agree"] for size in ("tiny", "large"))
    note = f"tiny: {tiny}; large: {large}; two measurements of the same layer differ by at most {agree - 1:.0%}; {machine(result)}."
    return "\n\n".join([page.table(summary.HEAD_PROCESS, list(summary.process_rows(figures))), note])


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
    of_jax, of_torch = ([seconds(row) for row in result["figures"]["rows"]] for result in growth.values())
    ratios = {
        router: [b[router] / a[router] for a, b in zip(of_jax, of_torch, strict=True)] for router in ["dense", *routers]
    }
    told = ", ".join(f"`{router}` {min(each):.2f} to {max(each):.2f}" for router, each in ratios.items())
    most = max(range(len(first)), key=lambda n: first[n]["experts"])
    told += f"; `sinkhorn_token_choice` with the most experts {ratios['sinkhorn_token_choice'][most]:.2f} (goal: 1.2)"
    made = "; ".join(f"{name}: {machine(result)}" for name, result in growth.items())
    return "\n\n".join(
        [page.table(head, rows), f"Times of torch divided by times of jax: {told}.", f"{sizes}; {made}."]
    )


def seconds(row: dict[str, Any]) -> dict[str, float]:
    """Return the CPU seconds of the dense MLP and of each router in a row of growth."""
    dense: float = row["dense_cpu_seconds"]
    return {"dense": dense, **{router: dense * times for router, times in row["times_dense"].items()}}


def of_tpu_layers(tpu: Any) -> str:
    keys = ("flops_over_count", "passes_over_count", "gigabytes_accessed", "gigabytes_of_buffers", "temporary_mib")
    rows = [[f"`{name}`", *(str(row.get(key, "")) for key in keys)] for name, row in tpu["rows"].items()]
    shape = ", ".join(f"{value} {name}" for name, value in tpu["shape"].items())
    head = ["layer", "FLOPs / count", "passes / count", "GB accessed", "GB of buffers", "temporary MiB"]
    return "\n\n".join([page.table(head, rows), f"{shape}; {tpu['topology']}, {versions(tpu['versions'])}."])


def of_tpu_steps(steps: Any) -> str:
    key = itemgetter("model", "images", "topology")
    dense = {key(row["of"]): row for row in steps["rows"] if row["of"]["case"] == "dense"}
    rows = []
    for row in steps["rows"]:
        of, beside = row["of"], dense.get(key(row["of"]), {})
        ratios = [
            f"{row[name] / beside[name]:.2f}" if name in row and name in beside else ""
            for name in ("gigabytes_accessed", "temporary_mib", "compile_seconds")
        ]
        flops = str(row.get("flops_over_count", "exceeds a core's memory"))
        model = f"`{of['model']}`, {of['images']} images, {of['topology'].partition(':')[0]}"
        held = f"{row['arguments_mib'] / 1024:.1f}" if "arguments_mib" in row else ""
        rows.append([model, of["case"], str(of.get("experts", "")), flops, *ratios, held])
    head = ["model", "case", "experts", "FLOPs / count"]
    head += ["bytes / dense", "temporary / dense", "compile / dense", "parameters and state, GiB"]
    return "\n\n".join([page.table(head, rows), f"{versions(steps['versions'])}."])


def of_mesh(mesh: Any) -> str:
    kinds = ("all-to-all", "all-reduce", "all-gather", "reduce-scatter")
    rows = []
    for name, row in mesh["steps"].items():
        router, _, devices = name.partition(", ")
        counts = [str(row.get(kind, {"count": 0})["count"]) for kind in kinds]
        rows.append([f"`{router}`, {devices}", *counts, f"{row['megabytes']:.1f}", f"{row['over_bound']:.2f}"])
    head = ["step", *kinds, "MB received", "over the bound"]
    return "\n\n".join([page.table(head, rows), f"{versions(mesh['versions'])}."])


def of_gpu(paths: list[Path]) -> str:
    rows, made = [], {}
    for path in paths:
        result = json.loads(path.read_text())
        backend = result["figures"]["config"]["backend"]
        gpu = result["machine"]["gpu"].removeprefix("NVIDIA ").split()[0]
        for row in result["figures"]["models"]:
            seconds = [f"{1e3 * row[kind]:.1f}" for kind in ("pass", "step")]
            over = [(row[f"{kind}_over_dense"], row[f"{kind}_per_operation"]) for kind in ("pass", "step")]
            ratios = [f"{one:.2f} ({other:.2f})" for one, other in over]
            graph = ", CUDA graph" * result["figures"]["config"].get("cuda_graph", False)
            case = [f"{backend}, {gpu}{graph}", f"`{row['model']}`", str(row.get("experts", ""))]
            rows.append([*case, *seconds, *ratios, f"{row['most_mib']:,.0f}"])
        made[f"{backend}: {versions(result['versions'])}"] = None
    head = ["on", "case", "experts", "pass, ms", "step, ms", "pass / dense", "step / dense", "most MiB"]
    return "\n\n".join([page.table(head, rows), f"{'; '.join(made)}."])


def of_recipes(recipes: Any) -> str:
    head = ["recipe", "topology", "parameters", "FLOPs / count", "GB accessed", "temporary MiB"]
    rows = []
    for row in recipes["rows"]:
        figures = [str(row.get(key, "")) for key in ("flops_over_count", "gigabytes_accessed")]
        needed = str(row.get("temporary_mib", "exceeds a core's memory"))
        rows.append([f"`{row['recipe']}`", row["topology"], f"{row['parameters'] / 1e6:,.0f} M", *figures, needed])
    return "\n\n".join([page.table(head, rows), f"{versions(recipes['versions'])}."])


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
