"""Measure the time of the loss and gradients of ViTs: dense models, MoE models, and other projects' ViTs.

    python benchmarks/steps.py --backend torch
    python benchmarks/steps.py --backend jax

The default model is ViT-S/16 in float32, with 8 images of 224 pixels. All models take turns on one core, in one process. `times_dense` is
the minimum CPU time over the rounds, divided by the minimum of the dense model. MoE models have 8 experts in every second block. For torch,
the other ViT is built from torch's modules (`nn.TransformerEncoder`). For JAX, the other ViTs come from google-research/vmoe, if installed.
"""

import argparse
import importlib
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from layers import Pass, measure, one_pass  # isort: skip  # this import comes first, because it pins the process to one core
import record
import vits

from moespec.models import vit
from moespec.training.objectives.classification import make_loss

CASES = ("dense", "softmax_token_choice", "softmax_token_choice, k = 2", "softmax_expert_choice", "soft_moe")


def main() -> None:
    sizes = {"model": "vit_s16", "image_size": 224, "images": 8, "experts": 8}
    options = record.parser(__doc__, backends=True, **sizes, rounds=5).parse_args()
    rows = measure(dict(passes(options)), options.rounds)
    for name, row in rows.items():
        row["times_dense"] = round(row["cpu_seconds"] / rows["dense"]["cpu_seconds"], 3)
        print(f"{name:32s} {row['cpu_seconds']:7.2f} s {row['times_dense']:7.3f} x dense")
    print(record.write(f"steps-{options.backend}", {"config": vars(options), "steps": rows}))


def passes(options: argparse.Namespace) -> Iterator[tuple[str, Pass]]:
    B = importlib.import_module(f"moespec.backends.{options.backend}")
    of_images = {"image_size": options.image_size, "channels": 3, "classes": 1000}
    for name in CASES:
        config = vits.of_case(name, options.model, options.experts, **of_images)
        batch = vits.batch_of(config, options.images)
        yield name, one_pass(B, make_loss(B, config, "softmax"), vit.init(config), batch, "norm")
    config = vits.of_case("dense", options.model, 0, **of_images)
    images, targets = batch["images"], batch["targets"]
    if options.backend == "torch":
        yield "torch.nn.TransformerEncoder", of_torch(config, images, targets)
    elif find_spec("vmoe"):
        for name, router in (
            ("vmoe dense", None),
            ("vmoe indices, k = 1", {"num_selected_experts": 1, "dispatcher": {"name": "indices"}}),
            ("vmoe soft", {"name": "vmoe.projects.soft_moe.router.SoftRouter"}),
        ):
            yield name, of_vmoe(config, router, options.experts, images, targets)


def of_vmoe(config: vit.VitConfig, router: Any, experts: int, images: Any, targets: Any) -> Pass:
    """Return a pass of the ViT of google-research/vmoe, with experts if `router` is set."""
    import jax
    import jax.numpy as jnp

    moe: dict[str, Any] = {"layers": ()}
    if router:
        if "dispatcher" in router:
            router["dispatcher"] |= {"capacity_factor": 1.0, "batch_priority": False, "bfloat16": False}
        layers = tuple(range(1, config.depth, 2))
        moe = {"layers": layers, "num_experts": experts, "group_size": config.sequence, "router": router}
    encoder = {"num_layers": config.depth, "mlp_dim": config.hidden, "num_heads": config.heads, "moe": moe}
    model = importlib.import_module("vmoe.nn.vit_moe").VisionTransformerMoe(
        num_classes=1000,
        patch_size=(config.patch_size, config.patch_size),
        hidden_size=config.width,
        classifier="gap",
        encoder=encoder,
        deterministic=not router,
    )
    x, y = jnp.asarray(images), jnp.asarray(targets)
    keys = {"params": jax.random.PRNGKey(0), "gating": jax.random.PRNGKey(1)}
    params = model.init(keys, x)

    def loss(params: Any) -> Any:
        logits, metrics = model.apply(params, x, rngs={"gating": keys["gating"]})
        auxiliary = jnp.mean(metrics["auxiliary_loss"]) if "auxiliary_loss" in metrics else 0.0
        return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * y, axis=1)) + auxiliary

    run = jax.jit(jax.value_and_grad(loss))
    return lambda: jax.block_until_ready(run(params))


def of_torch(config: vit.VitConfig, images: Any, targets: Any) -> Pass:
    """Return a pass of a dense ViT that consists of torch's modules."""
    import torch
    from torch import nn

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Conv2d(3, config.width, config.patch_size, config.patch_size)
            self.positions = nn.Parameter(torch.randn(1, config.sequence, config.width) / 50)
            layer = nn.TransformerEncoderLayer(
                *(config.width, config.heads, config.hidden, 0.0), "gelu", batch_first=True, norm_first=True
            )
            self.encoder = nn.TransformerEncoder(
                layer, config.depth, nn.LayerNorm(config.width), enable_nested_tensor=False
            )
            self.head = nn.Linear(config.width, 1000)

        def forward(self, x: Any) -> Any:
            tokens = self.embedding(x).flatten(2).mT + self.positions
            return self.head(self.encoder(tokens).mean(1))

    model, x, y = Plain(), torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(targets)

    def one() -> None:
        loss = nn.functional.cross_entropy(model(x), y)
        torch.autograd.grad(loss, list(model.parameters()))

    return one


if __name__ == "__main__":
    main()
