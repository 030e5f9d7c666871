"""Compile training steps of one ViT, dense and with experts, ahead of time for a TPU. No TPU is needed.

    pip install 'moespec[jax]' libtpu
    python benchmarks/tpu_steps.py [--model vit_s16] [--images 32] [--experts 8] [CASE ...]

Complete steps in bfloat16 with AdamW and clipping, 224 pixels, experts in every second block. A row has FLOPs relative to three times the
count of a forward pass (`moespec count`), bytes and memory relative to the dense step, and the seconds to compile. With more than 8
experts, FLOPs and bytes include optimiser work that the count omits. Products with one-hot rows are not counted.
"""

import ahead  # isort: skip  # first: it selects the compiler
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
