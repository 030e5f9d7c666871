"""A MoE layer, forward and backward, against the dense MLP and against one-hot einsum dispatch, in one process.

    python benchmarks/dispatch.py --backend jax

The three have the same tokens; the MoE has room for every token once (capacity factor 1), so its expert products cost
what the dense MLP costs. "einsum" is the layer as GShard writes it: the dense dispatch and combine tensors of the same
routing, contracted with the tokens. Reported are median seconds and ratios to the dense MLP.
"""

import argparse
import importlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import record
from tqdm import tqdm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("jax", "torch"), required=True)
    parser.add_argument("--groups", type=int, default=4, help="routing groups (default: 4)")
    parser.add_argument("--tokens", type=int, default=784, help="tokens of a group (default: 784)")
    parser.add_argument("--width", type=int, default=384, help="model width (default: 384)")
    parser.add_argument("--hidden", type=int, default=384, help="hidden width of an expert (default: 384)")
    parser.add_argument("--experts", type=int, default=32, help="experts (default: 32)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--steps", type=int, default=20, help="timed steps of each (default: 20)")
    options = parser.parse_args()
    B = importlib.import_module(f"moespec.backends.{options.backend}")
    figures = measure(B, options)
    for name, entry in figures["layers"].items():
        print(f"{name:40s} {entry['median_seconds'] * 1e3:9.2f} ms  {entry['times_dense']:6.2f} x dense")
    print(record.write(f"dispatch-{options.backend}", figures))


def measure(B: Any, options: argparse.Namespace) -> dict[str, Any]:
    layers = build(B, options)
    seconds = {name: [] for name in layers}
    for step in layers.values():  # Compiles, and fills caches.
        step()
        step()
    for _ in tqdm(range(options.steps), desc="timed rounds"):
        for name, step in layers.items():  # In turn, so that a drift of the machine's speed meets all of them.
            start = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - start)
    dense = statistics.median(seconds["dense MLP"])
    return {
        "config": vars(options),
        "layers": {
            name: {"median_seconds": statistics.median(values), "times_dense": statistics.median(values) / dense}
            for name, values in seconds.items()
        },
    }


def build(B: Any, options: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    """Name -> a function that runs one compiled forward and backward pass and waits for it."""
    generator = np.random.default_rng(0)
    shape = (options.groups, options.tokens, options.width)
    tokens = B.from_numpy(generator.standard_normal(shape).astype(np.float32), options.dtype)

    def mlp_params(*leading: int) -> dict[str, Any]:
        def draw(*size: int) -> Any:
            values = generator.standard_normal((*leading, *size)) / np.sqrt(size[0])
            return B.from_numpy(values.astype(np.float32), options.dtype)

        D, H = options.width, options.hidden
        return {"w1": draw(D, H), "b1": draw(H), "w2": draw(H, D), "b2": draw(D)}

    def dense(params: Any, x: Any) -> Any:
        return B.gelu(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]

    def gathers(name: str, config: Any) -> Callable[[Any, Any], Any]:
        def layer(params: Any, x: Any) -> Any:
            routing = B.ROUTERS[name].route(params["router"], x, config).routing
            return B.moe_layer(x, routing, lambda inputs: B.expert_mlp(inputs, params["experts"]))

        return layer

    def einsum(name: str, config: Any) -> Callable[[Any, Any], Any]:
        def layer(params: Any, x: Any) -> Any:
            routing = B.ROUTERS[name].route(params["router"], x, config).routing.dense()
            inputs = B.einsum("gtec,gtd->gecd", B.stop_gradient(B.cast(routing.dispatch, options.dtype)), x)
            outputs = B.expert_mlp(inputs, params["experts"])
            return B.einsum("gtec,gecd->gtd", B.cast(routing.combine, options.dtype), outputs)

        return layer

    layers = {"dense MLP": _step(B, dense, mlp_params(), tokens)}
    for name in ("softmax_token_choice", "softmax_expert_choice", "soft_moe"):
        router = B.ROUTERS[name]
        config = router.options(width=options.width, experts=options.experts, tokens=options.tokens)
        params = {"router": B.from_numpy(router.init(generator, config)), "experts": mlp_params(options.experts)}
        layers[f"{name}, gathers" if name != "soft_moe" else name] = _step(B, gathers(name, config), params, tokens)
        if name != "soft_moe":
            layers[f"{name}, one-hot einsum"] = _step(B, einsum(name, config), params, tokens)
    return layers


def _step(B: Any, layer: Callable[[Any, Any], Any], params: Any, tokens: Any) -> Callable[[], Any]:
    def loss(params: Any, x: Any) -> tuple[Any, dict[str, Any]]:
        y = B.cast(layer(params, x), "float32")
        return B.mean(y * y, (0, 1, 2)), {}

    compiled = B.compile(B.value_and_grad(loss))
    # Reading the loss on the host waits for the whole computation.
    return lambda: float(B.to_numpy(compiled(params, tokens)[0][0]))


if __name__ == "__main__":
    main()
