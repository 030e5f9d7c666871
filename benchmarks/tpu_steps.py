"""Compile training steps of one ViT, dense and with experts, ahead of time, without a TPU.

    pip install 'moespec[jax]' libtpu
    python benchmarks/tpu_steps.py [--model vit_s16] [--images 32] [--experts 8] [CASE ...]

Whole steps in bfloat16 with AdamW and a clip, 224 pixels, experts in every second block. A row has FLOPs beside three times the
count of a forward pass (`moespec count`), bytes and memory beside those of the dense step, and the seconds to compile. The
compiler counts one turn of a loop, so that FLOPs and bytes of a router whose experts have room for all are too low. With more
experts than 8, the optimiser's work is a part of FLOPs and bytes that the count leaves out.
"""

import argparse
from collections.abc import Iterator
from typing import Any

import ahead  # isort: skip  # first: it sets which compiler is used
import record
import vits
from tpu_recipes import compile_step

from moespec.backends.optimizer import OptimizerConfig
from moespec.models.training.config import Config, TrainingConfig
from moespec.models.vit import VitConfig

OPTIMIZER = OptimizerConfig("adamw", clip=1.0)
CASES = (
    "dense",
    "dense, recomputed",
    "softmax_token_choice",
    "softmax_token_choice, recomputed",
    *list(vits.ROUTERS)[1:],
)


def parser(text: str | None) -> argparse.ArgumentParser:
    """The options of a program that compiles the cases."""
    parser = record.parser(text)
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], metavar="CASE", help=f"of: {'; '.join(CASES)}")
    parser.add_argument("--model", default="vit_s16", help="a ViT (default: %(default)s)")
    parser.add_argument("--images", type=int, default=32, help="images in the batch (default: %(default)s)")
    parser.add_argument("--experts", type=int, default=8, help="experts of a layer (default: %(default)s)")
    return parser


def cases(arguments: argparse.Namespace, **more: Any) -> Iterator[tuple[dict[str, Any], VitConfig, bool]]:
    """What identifies each case, its model, and whether blocks are recomputed."""
    for case in arguments.cases or CASES:
        name = case.removesuffix(", recomputed")
        of = {"model": arguments.model, "images": arguments.images, **more, "case": case}
        if name != "dense":
            of["experts"] = arguments.experts
        yield of, vits.of_case(name, arguments.model, arguments.experts, dtype="bfloat16"), case != name


def run(images: int, recompute: bool) -> Config:
    """The run of a step."""
    return Config(optimizer=OPTIMIZER, training=TrainingConfig(batch=images, recompute=recompute))


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--topology", default="v5e:2x2", help="name of the TPU topology (default: %(default)s)")
    arguments = options.parse_args()
    device = ahead.devices(arguments.topology)[0]
    for of, model, recompute in cases(arguments, topology=arguments.topology):
        row = {"of": of, **compile_step(model, run(arguments.images, recompute), device)}
        ahead.add("steps-tpu", row, ("of",), "jax", "libtpu")


if __name__ == "__main__":
    main()
