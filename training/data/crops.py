"""Where a random crop is cut out of a picture, as the two code bases do it that recipes refer to.

Both say where, `(left, top, width, height)` in whole pixels; what is cut out is resized to the size of the model's images.
"""

import math

import numpy as np

__all__ = ["Box", "inception_box", "torchvision_box"]

Box = tuple[int, int, int, int]

RATIO_LIMIT = 1e-7


def inception_box(width: int, height: int, random: np.random.Generator, *, area: float) -> Box:
    """The crop of Inception, which covers a share of the picture from `area` to 1 and is 0.75 to 1.33 times as wide as high.

    The ratio is uniform; for it the height, a whole number, is uniform between those of the smallest and the largest share.
    After 100 ratios without a fitting crop it is the whole picture. The last place on each axis is never taken, unless it is
    the only one.

    Source: tensorflow/tensorflow, core/kernels/image/sample_distorted_bounding_box_op.cc, GenerateRandomCrop, with the
    arguments of google-research/big_vision, pp/ops_image.py, decode_jpeg_and_inception_crop.
    """
    for _ in range(100):
        ratio = float(random.uniform(0.75, 1.33))
        smallest, largest = area * width * height, float(width * height)
        low, high = round(math.sqrt(smallest / ratio)), round(math.sqrt(largest / ratio))
        if round(high * ratio) > width:
            high = int((width + 0.5 - RATIO_LIMIT) / ratio)
            high -= round(high * ratio) > width
        high = min(high, height)
        tall = int(random.integers(min(low, high), high + 1))
        wide = round(tall * ratio)
        if wide * tall < smallest:
            tall += 1
            wide = round(tall * ratio)
        if wide * tall > largest:
            tall -= 1
            wide = round(tall * ratio)
        if smallest <= wide * tall <= largest and 0 < wide <= width and 0 < tall <= height:
            top = int(random.integers(max(height - tall, 1)))
            left = int(random.integers(max(width - wide, 1)))
            return left, top, wide, tall
    return 0, 0, width, height


def torchvision_box(width: int, height: int, random: np.random.Generator, *, area: float) -> Box:
    """The crop of `RandomResizedCrop`: a share uniform from `area` to 1, a ratio of sides from 3/4 to 4/3, its logarithm uniform.

    After 10 that do not fit it is the middle, as much as has a ratio of sides in that interval.

    Source: pytorch/vision, torchvision/transforms/transforms.py, RandomResizedCrop.get_params.
    """
    narrowest, widest = 3 / 4, 4 / 3
    for _ in range(10):
        share = width * height * random.uniform(area, 1)
        ratio = math.exp(random.uniform(math.log(narrowest), math.log(widest)))
        wide, tall = round(math.sqrt(share * ratio)), round(math.sqrt(share / ratio))
        if 0 < wide <= width and 0 < tall <= height:
            top = int(random.integers(height - tall + 1))
            left = int(random.integers(width - wide + 1))
            return left, top, wide, tall
    wide, tall = width, height
    if width < narrowest * height:
        tall = round(width / narrowest)
    elif width > widest * height:
        wide = round(height * widest)
    return (width - wide) // 2, (height - tall) // 2, wide, tall
