"""Peak performance of chips, from the manufacturers' tables.

Google: docs.cloud.google.com/tpu/docs/v5e, .../v5p-training and .../v6e, "Peak compute per chip (bf16)", "HBM bandwidth per chip" and
"Bidirectional inter-chip interconnect (ICI) bandwidth (per chip)", read in November 2026. Half of the ICI bandwidth goes each way.
Memory: the limit that libtpu 0.0.42 reports for a program ("exceeds available HBM (15.75G)"). The tables list 16 GB, 95 GiB and 32 GB.
The links of the v4 (.../v4) come from table 4 of "TPU v4: An Optically Reconfigurable Supercomputer" (ISCA 2023), "6 links @ 50 GB/s";
glennklockwood.com/garden/processors/TPUv4 adds that each direction has this rate, "400G bandwidth in each direction".

NVIDIA, the A100 as an SXM4 module: the data sheet (r4), as glennklockwood.com/garden/processors/A100 reproduces it, "300+300 GB/s NVLink".
L40S: the product page, as mullet.se/product.html?product_id=355414 reproduces it: "BFLOAT16 362.05 | 733*", "TF32 183 | 366*", "* With
Sparsity". RTX 4090: waredb.com/processor/nvidia-geforce-rtx-4090, the rate of 512 tensor cores at 2.52 GHz that accumulate in float32. The
L40S and the RTX 4090 have no NVLink. PCIe 4.0 x16 has 16 lanes of 16 GT/s, and 128 of 130 bits are data, which gives 31.5 GB/s each way.

NVIDIA, SXM5 modules. H100: the table on the product page, as HPC Tech reproduces it
(archive-lib.hpctech.co.jp/gpuproduct/nvidia-h100.html); the tensor cores are "shown with sparsity, 1/2 lower without". H200, which
has the same die: operations from glennklockwood.com/garden/processors/h100, memory and links from NVIDIA's description of its system
(github.com/mlcommons/inference_results_v4.1, closed/NVIDIA/systems/H200-SXM-141GBx8_TRT_MaxQ.json), memory bandwidth from
aiwiki.ai/wiki/nvidia_h200, which quotes the product page. NVLink joins 8 GPUs; links to more GPUs are slower.

All rates are for dense operations. The float32 rates of GPUs are rates of TF32, which only JAX uses by default. TPUs
compute float32 as bfloat16 by default. A GB of memory counts as 10**9 bytes, slightly less than the cards have.
"""

import math
from contextlib import suppress
from typing import Any, NamedTuple

from moespec.spec.errors import ConfigError
from moespec.spec.names import near_it

__all__ = ["CHIPS", "Chip", "chip_of"]


class Chip(NamedTuple):
    """flops: dense bfloat16 operations per second. memory: capacity in bytes. bandwidth: bytes per second between memory and cores.
    link: maximum bytes per second received from other chips, over all links. torus: the number of torus dimensions; 0 for a switch.
    float32: operations per second of a float32 model, by default `flops`."""

    flops: float
    memory: float
    bandwidth: float
    link: float
    torus: int = 0
    float32: float | None = None

    def peak(self, dtype: str) -> float:
        """The operations per second of a model that computes in `dtype`."""
        return self.float32 if self.float32 and dtype == "float32" else self.flops

    def hops(self, devices: int) -> float:
        """The mean number of links on a path between two devices, if `devices` devices are placed as compactly as the torus allows.

        On a ring of k devices, with k even, the mean distance is k/4, including the distance of a device to itself. For
        other numbers of devices, which do not form such rings, the formula is an estimate.

        >>> CHIPS["v5p"].hops(2), round(CHIPS["v5p"].hops(64), 2), CHIPS["h100"].hops(64)
        (1.0, 3.05, 1.0)
        """
        if devices == 1 or not self.torus:
            return 1.0
        mean: float = min(axes * float(devices) ** (1 / axes) / 4 for axes in range(1, self.torus + 1))
        return max(1.0, mean * devices / (devices - 1))


CHIPS = {
    # 275 TFLOPs, 32 GiB for its two cores together, 1200 GBps, 300 GB/s each way on a torus of three dimensions
    "v4": Chip(275e12, 30.75 * 2**30, 1200e9, 300e9, 3),
    # 197 TFLOPs, 819 GBps, 400 GBps both ways on a torus of two dimensions
    "v5e": Chip(197e12, 15.75 * 2**30, 819e9, 200e9, 2),
    # 459 TFLOPs, 2765 GBps, 1200 GBps both ways on a torus of three dimensions
    "v5p": Chip(459e12, 95.74 * 2**30, 2765e9, 600e9, 3),
    # 918 TFLOPs, 1638 GBps, 800 GBps both ways on a torus of two dimensions
    "v6e": Chip(918e12, 31.25 * 2**30, 1638e9, 400e9, 2),
    # 1979 TFLOPS with sparsity, 80 GB, 3350 GB/s, NVLink 900 GB/s both ways
    "h100": Chip(989.5e12, 80e9, 3350e9, 450e9, float32=494.75e12),
    # like the H100, but with 141 GB and 4.8 TB/s
    "h200": Chip(989.5e12, 141e9, 4800e9, 450e9, float32=494.75e12),
    # 312 TFLOPS, TF32 156, 1555 and 2039 GB/s, NVLink 600 GB/s both ways
    "a100-40": Chip(312e12, 40e9, 1555e9, 300e9, float32=156e12),
    "a100-80": Chip(312e12, 80e9, 2039e9, 300e9, float32=156e12),
    # 362.05 and 165.15 TFLOPS, TF32 183 and 82.58, 48 and 24 GB, 864 and 1008 GB/s
    "l40s": Chip(362.05e12, 48e9, 864e9, 31.5e9, float32=183e12),
    "rtx4090": Chip(165.15e12, 24e9, 1008e9, 31.5e9, float32=82.58e12),
}
FIGURES = "flops=312e12,memory=80e9,bandwidth=2039e9,link=300e9"


def chip_of(text: str) -> Chip:
    """Parses the name or the properties of a chip. Raises ConfigError for any other text.

    >>> chip_of("flops=312e12,memory=80e9,bandwidth=2039e9,link=300e9,float32=156e12") == CHIPS["a100-80"]
    True
    """
    if text in CHIPS:
        return CHIPS[text]
    if "=" not in text:
        raise ConfigError(f"chip={text!r}: expected one of {', '.join(CHIPS)}, or figures such as {FIGURES}")
    figures: dict[str, Any] = {}
    for name, _, value in (figure.strip().partition("=") for figure in text.split(",")):
        if name not in Chip._fields or name in figures:
            once = f"expected each of {', '.join(Chip._fields)} at most once, comma-separated"
            raise ConfigError(f"chip.{name}={value!r}: {once}{near_it(name, Chip._fields)}")
        with suppress(ValueError):
            figures[name] = int(value) if name == "torus" else float(value)
        if not (figures.get(name) in range(4) if name == "torus" else 0 < figures.get(name, 0) < math.inf):
            kind = "0, 1, 2 or 3" if name == "torus" else "a finite number greater than 0, such as 312e12"
            raise ConfigError(f"chip.{name}={value!r}: expected {kind}")
    if missing := [name for name in Chip._fields[:4] if name not in figures]:
        raise ConfigError(f"chip={text!r}: the figures {', '.join(missing)} are missing, expected {FIGURES}")
    return Chip(**figures)
