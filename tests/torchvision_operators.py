"""torchvision, which timm and transformers import, is built for a torch with CUDA: on one without, its operators lack a declaration."""

import torch

POOLS = ("roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d")
OPERATORS = ("nms", "qnms", "qroi_align", *POOLS, *(f"_{name}_backward" for name in POOLS))

if not torch.cuda.is_available():
    library = torch.library.Library("torchvision", "DEF")
    for name in OPERATORS:
        library.define(f"{name}() -> ()")
