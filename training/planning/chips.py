"""Peak performance of chips, by the makers' tables.

Google: docs.cloud.google.com/tpu/docs/v5e, .../v5p-training and .../v6e, "Peak compute per chip (bf16)", "HBM bandwidth per chip" and
"Bidirectional inter-chip interconnect (ICI) bandwidth (per chip)", read in November 2026. Of the last, half goes each way. The
memory is what libtpu 0.0.42 says a program can have ("exceeds available HBM (15.75G)"), of the 16 GB, 95 GiB and 32 GB of the tables.

NVIDIA, for the modules SXM5: the H100's table of its product page as HPC Tech reproduces it
(archive-lib.hpctech.co.jp/gpuproduct/nvidia-h100.html), whose tensor cores are "shown with sparsity, 1/2 lower without"; of the
H200, which has the same die, glennklockwood.com/garden/processors/h100 for the operations, and for memory and links NVIDIA's own
description of its system (github.com/mlcommons/inference_results_v4.1, closed/NVIDIA/systems/H200-SXM-141GBx8_TRT_MaxQ.json);
its bandwidth is that of aiwiki.ai/wiki/nvidia_h200, which quotes the product page. NVLink joins 8 of them; what joins more is slower.
"""

from typing import NamedTuple

__all__ = ["CHIPS", "Chip"]


class Chip(NamedTuple):
    """flops: operations a second in bfloat16, dense. memory: bytes. bandwidth: bytes a second of the memory. link: bytes a
    second that come in from other chips at most, on all links together. torus: its dimensions, 0 for a switch."""

    flops: float
    memory: float
    bandwidth: float
    link: float
    torus: int

    def hops(self, devices: int) -> float:
        """Links on the way from one of so many devices to another, on average, where they are as near as a torus has room for.

        On a ring of k, k even, they are k/4 away, itself among them. Sizes that are not powers of 2 are taken as if there were rings
        for them.

        >>> CHIPS["v5p"].hops(2), round(CHIPS["v5p"].hops(64), 2), CHIPS["h100"].hops(64)
        (1.0, 3.05, 1.0)
        """
        if devices == 1 or not self.torus:
            return 1.0
        mean: float = min(axes * float(devices) ** (1 / axes) / 4 for axes in range(1, self.torus + 1))
        return max(1.0, mean * devices / (devices - 1))


CHIPS = {
    # 197 TFLOPs, 819 GBps, 400 GBps both ways on a torus of two dimensions
    "v5e": Chip(197e12, 15.75 * 2**30, 819e9, 200e9, 2),
    # 459 TFLOPs, 2765 GBps, 1200 GBps both ways on a torus of three dimensions
    "v5p": Chip(459e12, 95.74 * 2**30, 2765e9, 600e9, 3),
    # 918 TFLOPs, 1638 GBps, 800 GBps both ways on a torus of two dimensions
    "v6e": Chip(918e12, 31.25 * 2**30, 1638e9, 400e9, 2),
    # 1979 TFLOPS with sparsity, 80 GB, 3350 GB/s, NVLink 900 GB/s both ways
    "h100": Chip(989.5e12, 80e9, 3350e9, 450e9, 0),
    # the same but for 141 GB and 4.8 TB/s
    "h200": Chip(989.5e12, 141e9, 4800e9, 450e9, 0),
}
