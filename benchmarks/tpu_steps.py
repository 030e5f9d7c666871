"""Compile training steps of one ViT, dense and with experts, ahead of time for a TPU. No TPU is needed.

    pip install 'moespec[jax]' libtpu
    python benchmarks/tpu_steps.py [--model vit_s16] [--images 32] [--experts 8] [CASE ...]

A step computes in bfloat16 and includes clipping and AdamW. Images have 224 pixels. MoE models have experts in every second block.
A row contains bytes, memory, the compilation time, and FLOPs relative to three times the FLOPs of a forward pass (`moespec count`). The
FLOPs that the compiler reports include the optimiser and products with one-hot rows, which `moespec count` omits.
"""

import ahead  # isort: skip  # this import comes first, because it selects the compiler
import record
import vits
from tpu_recipes import compile_step

from moespec.backends.optimizer import OptimizerConfig
from moespec.training.configuration.config import Config, TrainingConfig

RECOMPUTED = ("dense, recomputed", "softmax_token_choice, recomputed")
CASES = ("dense", RECOMPUTED[0], "softmax_token_choice", RECOMPUTED[1], *list(vits.ROUTERS)[1:])


def main() -> None:
    parser = record.parser(__doc__, model="vit_s16", images=32, experts=8, topology="v5e:2x2")
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], metavar="CASE", help=f"of: {'; '.join(CASES)}")
    options = parser.parse_args()
    device = ahead.devices(options.topology)[0]
    for case in options.cases or CASES:
        name = case.removesuffix(", recomputed")
        of = {"model": options.model, "images": options.images, "topology": options.topology, "case": case}
        if name != "dense":
            of["experts"] = options.experts
        model = vits.of_case(name, options.model, options.experts, dtype="bfloat16")
        training = TrainingConfig(batch=options.images, recompute=case != name)
        run = Config(optimizer=OptimizerConfig("adamw", clip=1.0), training=training)
        ahead.add("steps-tpu", {"of": of, **compile_step(model, run, device)}, ("of",))


if __name__ == "__main__":
    main()
