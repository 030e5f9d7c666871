"""What is done to training images, against the code of those whose recipes it comes from, written out in NumPy."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from moespec.spec.errors import ConfigError
from moespec.training.data import transforms as colours
from moespec.training.data.augment import by_turns, cutmix, one_hot
from moespec.training.data.dataset import Dataset, Split
from moespec.training.data.datasets import load
from moespec.training.data.loader import training_batch
from moespec.training.data.options import DataConfig
from moespec.training.data.randaugment import OPERATIONS, randaugment
from moespec.training.data.transforms import cut_out, erase, inception_box, torchvision_box, with_changes
from moespec.training.rng import PICTURE, generator

COARSE = Image.fromarray(np.random.default_rng(0).integers(30, 226, (7, 9, 3), np.uint8))
PICTURE_OF_224 = COARSE.resize((224, 224), Image.Resampling.BICUBIC)
PIXELS = np.asarray(PICTURE_OF_224)


@pytest.mark.parametrize("sides", [(500, 375), (375, 500), (60, 300), (9, 7), (2, 2), (1, 1)])
@pytest.mark.parametrize("find", [inception_box, torchvision_box])
def test_crops_are_inside(find: Callable[..., Any], sides: tuple[int, int]) -> None:
    random = np.random.default_rng(1)
    boxes = np.array([find(*sides, random, area=0.2) for _ in range(2000)])
    assert (boxes >= [0, 0, 1, 1]).all()
    assert (boxes[:, :2] + boxes[:, 2:] <= sides).all()


class At:
    """Random numbers that are all at one place between the smallest, 0, and the largest, 1, that can be drawn."""

    def __init__(self, place: float) -> None:
        self.place = place

    def random(self) -> float:
        return self.place

    def uniform(self, low: float, high: float) -> float:
        return low + self.place * (high - low)

    def integers(self, low: int, high: int | None = None) -> int:
        low, high = (0, low) if high is None else (low, high)
        return low + round(self.place * (high - 1 - low))


def test_crops_worked_out_by_hand() -> None:
    """TensorFlow's kernel: at ratio 0.75 of 400 x 200, share 0.25: lrint(sqrt(20000 / 0.75)) = 163, lrint(163 * 0.75) = 122.

    These are less than 20000 pixels, so it is made 164 high, and lrint(164 * 0.75) = 123 wide.
    At ratio 1.33 the largest is as high as the picture, 200, and lrint(200 * 1.33) = 266 wide; the last place that is drawn
    is one before the last. torchvision: share 0.25 at 3/4 is 122 wide and 163 high; share 1 does not fit, and ten times not,
    so the middle is taken with the ratio 4/3, round(200 * 4 / 3) = 267 wide.
    What is uniform is seen half-way: Inception's ratio (0.75 + 1.33) / 2 = 1.04 and its height, 131 of 69 to 192; torchvision's
    share, 0.625, and the logarithm of its ratio, which is 1.
    """
    assert inception_box(400, 200, At(0), area=0.25) == (0, 0, 123, 164)
    assert inception_box(400, 200, At(1), area=0.25) == (400 - 266 - 1, 0, 266, 200)
    assert torchvision_box(400, 200, At(0), area=0.25) == (0, 0, 122, 163)
    assert torchvision_box(400, 200, At(1), area=0.25) == ((400 - 267) // 2, 0, 267, 200)
    assert torchvision_box(100, 400, At(1), area=1) == (0, (400 - 133) // 2, 100, 133)
    assert inception_box(200, 200, At(0.5), area=0.125) == (32, 34, 136, 131)
    assert torchvision_box(200, 200, At(0.5), area=0.25) == (21, 21, 158, 158)


def test_what_is_cut_out_is_what_the_box_says() -> None:
    split = Split(lambda indices: PIXELS[None], np.zeros(8, np.int64), lambda index: PICTURE_OF_224)
    dataset, indices = Dataset("one", split, split, ("0", "1"), (16, 16, 3), 255), np.arange(4)
    config = DataConfig(crop="torchvision", crop_area=0.08)
    images = cut_out(dataset, config, indices, seed=5, positions=100 + np.arange(len(indices)))
    for place, image in enumerate(images):
        left, top, wide, tall = torchvision_box(224, 224, generator(5, PICTURE, 100 + place), area=0.08)
        part = Image.fromarray(PIXELS[top : top + tall, left : left + wide])
        np.testing.assert_array_equal(image, np.asarray(part.resize((16, 16), Image.Resampling.BILINEAR)))


def blend(first: np.ndarray, second: np.ndarray, factor: float) -> np.ndarray:
    """`blend` of big_vision's autoaugment.py."""
    return np.clip(first.astype(np.float32) + factor * (second.astype(np.float32) - first), 0, 255).astype(np.uint8)


def luma(image: np.ndarray) -> np.ndarray:
    return np.broadcast_to((image @ [0.299, 0.587, 0.114])[..., None], image.shape).round().astype(np.uint8)


def equalize(image: np.ndarray) -> np.ndarray:
    result = image.copy()
    for channel in range(3):
        histogram = np.bincount(image[..., channel].ravel(), minlength=256)
        nonzero = histogram[histogram != 0]
        step = (nonzero.sum() - nonzero[-1]) // 255
        table = np.clip(np.concatenate([[0], ((np.cumsum(histogram) + step // 2) // step)[:-1]]), 0, 255)
        result[..., channel] = table[image[..., channel]]
    return result


def autocontrast(image: np.ndarray) -> np.ndarray:
    low, high = (getattr(image, name)(axis=(0, 1)).astype(float) for name in ("min", "max"))
    return np.clip((image - low) * (255 / (high - low)), 0, 255).astype(np.uint8)


def smooth(image: np.ndarray) -> np.ndarray:
    kernel, result = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13, image.copy()
    windows = np.lib.stride_tricks.sliding_window_view(image.astype(float), (3, 3), axis=(0, 1))
    result[1:-1, 1:-1] = np.clip(np.einsum("hwcij,ij->hwc", windows, kernel), 0, 255).astype(np.uint8)
    return result


def moved(image: np.ndarray, x: Callable[..., Any], y: Callable[..., Any]) -> np.ndarray:
    """Each pixel from the nearest place of `contrib_image.transform`, 128 where there is none."""
    rows, columns = np.mgrid[: image.shape[0], : image.shape[1]]
    from_x, from_y = np.rint(x(columns, rows)).astype(int), np.rint(y(columns, rows)).astype(int)
    inside = (from_x >= 0) & (from_x < image.shape[1]) & (from_y >= 0) & (from_y < image.shape[0])
    return np.where(inside[..., None], image[from_y.clip(0, 223), from_x.clip(0, 223)], np.uint8(128))


def cut(image: np.ndarray) -> np.ndarray:
    """A square whose centre is the upper left corner, of half `int(1.2 * 40)` pixels."""
    result = image.copy()
    result[:48, :48] = 128
    return result


WRITTEN_OUT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "AutoContrast": autocontrast,
    "Equalize": equalize,
    "Invert": lambda image: 255 - image,
    "Posterize": lambda image: image >> 4 << 4,
    "Solarize": lambda image: np.where(image < 307, image, 255 - image),
    "SolarizeAdd": lambda image: np.where(image < 128, np.clip(image.astype(int) + 132, 0, 255), image),
    "Color": lambda image: blend(luma(image), image, 2.26),
    "Contrast": lambda image: blend(np.full_like(image, round(luma(image).mean())), image, 2.26),
    "Brightness": lambda image: blend(np.zeros_like(image), image, 2.26),
    "Sharpness": lambda image: blend(smooth(image), image, 2.26),
    "ShearX": lambda image: moved(image, lambda x, y: x + 0.36 * y, lambda x, y: y),
    "ShearY": lambda image: moved(image, lambda x, y: x, lambda x, y: y + 0.36 * x),
    "TranslateX": lambda image: moved(image, lambda x, y: x + 120, lambda x, y: y),
    "TranslateY": lambda image: moved(image, lambda x, y: x, lambda x, y: y + 120),
    "Cutout": cut,
    "Rotate": lambda image: np.asarray(
        Image.fromarray(image).rotate(36, Image.Resampling.NEAREST, fillcolor=(128,) * 3)
    ),
}
"""The operations at magnitude 12 of 10, those with a sign turned to the side of the plus."""
ROUNDING = {"Color": 3, "Contrast": 3, "Sharpness": 3, "AutoContrast": 1}
"""Where Pillow rounds and TensorFlow cuts off, times the factor."""


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_is_that_of_the_recipes(name: str) -> None:
    """The share of pixels that differ is that of edges, where a place is half-way between two pixels."""
    found = np.asarray(OPERATIONS[name](PICTURE_OF_224, 1.2, At(0))).astype(int)
    expected = WRITTEN_OUT[name](PIXELS).astype(int)
    differs = np.abs(found - expected) > ROUNDING.get(name, 0)
    assert differs.mean() < (0.002 if name.startswith("Shear") else 1e-9)
    if name != "Solarize":  # at a magnitude above 10 its threshold is beyond white
        assert (found != PIXELS).any()


def test_signs_levels_and_small_images() -> None:
    """A drawn sign turns a move about; at magnitude 0 what can be undone is; moves shrink with images below 224 pixels."""

    for name in ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"):
        one, other = (np.asarray(OPERATIONS[name](PICTURE_OF_224, 1.0, At(place))) for place in (0, 0.9))
        assert (one != other).mean() > 0.3, name
        assert (np.asarray(OPERATIONS[name](PICTURE_OF_224, 0.0, At(0))) == PIXELS).all(), name
    np.testing.assert_array_equal(
        np.asarray(OPERATIONS["Solarize"](PICTURE_OF_224, 0.5, At(0))), np.where(PIXELS < 128, PIXELS, 255 - PIXELS)
    )
    for level, kept in ((0.0, 1), (0.3, 1), (1.0, 4), (5.0, 8)):
        mask = 256 - (1 << (8 - kept))
        np.testing.assert_array_equal(np.asarray(OPERATIONS["Posterize"](PICTURE_OF_224, level, At(0))), PIXELS & mask)
    shifted = np.asarray(OPERATIONS["TranslateX"](PICTURE_OF_224.crop((0, 0, 56, 56)), 1.2, At(0)))
    np.testing.assert_array_equal(shifted[:, :26], PIXELS[:56, 30:56])


def test_randaugment_draws_every_operation_and_takes_grey() -> None:
    for seed in range(60):
        random = np.random.default_rng(seed)
        image = randaugment(PICTURE_OF_224.convert("L"), random, operations=2, magnitude=15)
        assert (image.mode, image.size) == ("L", (224, 224))
    once = {
        np.asarray(randaugment(PICTURE_OF_224, np.random.default_rng(s), operations=1, magnitude=8)).tobytes()
        for s in range(200)
    }
    random_free = {
        name for name in OPERATIONS if name not in ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY", "Cutout")
    }
    for name in random_free:
        assert np.asarray(OPERATIONS[name](PICTURE_OF_224, 0.8, At(0))).tobytes() in once, name


def test_hue_turns_as_in_hsv() -> None:
    red = Image.new("RGB", (2, 2), (255, 0, 0))
    np.testing.assert_allclose(np.asarray(colours.shift_hue(red, 1 / 3))[0, 0], (0, 255, 0), atol=8)
    np.testing.assert_allclose(np.asarray(colours.shift_hue(red, -1 / 3))[0, 0], (0, 0, 255), atol=8)
    assert colours.shift_hue(red.convert("L"), 0.3).mode == "L"


def test_jitter_changes_each_thing_within_its_bounds() -> None:
    none = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0}
    flat = Image.new("RGB", (2, 2), (100, 100, 100))
    values = [
        np.asarray(colours.jitter(flat, np.random.default_rng(s), **{**none, "brightness": 0.4}))[0, 0, 0]
        for s in range(300)
    ]
    assert (59 <= min(values) <= 63, 137 <= max(values) <= 140) == (True, True)
    for name in none:
        changed = np.asarray(colours.jitter(PICTURE_OF_224, np.random.default_rng(1), **{**none, name: 0.4}))
        assert (changed != PIXELS).any(), name


def test_grey_solarise_and_blur() -> None:
    np.testing.assert_allclose(np.asarray(colours.grey(PICTURE_OF_224)), luma(PIXELS), atol=1)
    np.testing.assert_array_equal(
        np.asarray(colours.solarise(PICTURE_OF_224)), np.where(PIXELS < 128, PIXELS, 255 - PIXELS)
    )
    point = np.zeros((41, 41), np.uint8)
    point[20, 20] = 255
    blurred = np.asarray(colours.blur(Image.fromarray(point), At(1))).astype(float)  # the largest radius, 2 pixels
    spread = np.sqrt((blurred * (np.arange(41) - 20) ** 2).sum() / blurred.sum())
    assert 1.6 < spread < 2.3


def test_erasing_fills_a_rectangle_of_the_papers_shares() -> None:
    shares, ratios = [], []
    for seed in range(400):
        image = np.full((100, 100, 1), 77, np.uint8)
        erase(image, np.random.default_rng(seed), maximum=16)
        rows, columns = np.nonzero(image[..., 0] != 77)
        tall, wide = np.ptp(rows) + 1, np.ptp(columns) + 1
        assert (image[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1] <= 16).all(), "one full rectangle"
        shares.append(tall * wide / 1e4)
        ratios.append(tall / wide)
    assert 0.015 < min(shares) < 0.04
    assert 0.35 < max(shares) < 0.42
    assert 0.25 < min(ratios) < 0.4
    assert 2.5 < max(ratios) < 3.7


def test_cutmix_mixes_targets_by_area() -> None:
    images = np.arange(6, dtype=np.float32).reshape(6, 1, 1, 1).repeat(20, axis=1).repeat(30, axis=2)
    targets = np.eye(6, dtype=np.float32)
    shares = []
    for step in range(50):
        mixed, soft = cutmix(images, targets, alpha=1.0, seed=3, step=step)
        foreign = mixed != images
        rows, columns = np.nonzero(foreign[1, ..., 0])
        assert foreign.any(axis=0)[..., 0].sum() == (0 if not len(rows) else (np.ptp(rows) + 1) * (np.ptp(columns) + 1))
        assert (mixed[1][foreign[1]] == 0).all(), "from the image before it"
        share = foreign[1].mean()
        np.testing.assert_allclose(soft, (1 - share) * targets + share * np.roll(targets, 1, axis=0), atol=1e-6)
        shares.append(share)
    assert 0.1 < np.mean(shares) < 0.5


def test_mixup_and_cutmix_by_turns() -> None:
    assert 60 < sum(by_turns(seed=0, step=step) for step in range(200)) < 140
    digits = load("digits")
    both = DataConfig(mixup=0.5, cutmix=1.0)
    for step in range(6):
        alone = replace(both, mixup=0.0) if by_turns(seed=1, step=step) else replace(both, cutmix=0.0)
        batches = [training_batch(digits, config, batch=8, seed=1, step=step) for config in (both, alone)]
        for name in ("images", "targets"):
            np.testing.assert_array_equal(batches[0][name], batches[1][name])


def test_labels_are_smoothed_over_all_classes() -> None:
    rows = one_hot(np.array([2, 0]), 4, smoothing=0.2)
    np.testing.assert_allclose(rows, [[0.05, 0.05, 0.85, 0.05], [0.85, 0.05, 0.05, 0.05]], rtol=1e-6)
    digits = load("digits")
    batch = training_batch(digits, DataConfig(mixup=0.0, label_smoothing=0.1), batch=4, seed=0, step=0)
    np.testing.assert_allclose(np.sort(batch["targets"], axis=1), [[0.01] * 9 + [0.91]] * 4, rtol=1e-5)


PROBABLE: dict[str, Any] = {"jitter": 0.5, "grey": 0.5, "blur": 0.5, "solarise": 0.5, "erase": 0.5, "randaugment": 1}
IMAGES = np.stack([PIXELS[:32, :32], PIXELS[64:96, 64:96], PIXELS[128:160, 96:128], PIXELS[9:41, 9:41]] * 4)


def changed(seed: int = 1, position: int = 40, **fields: Any) -> np.ndarray:
    at = np.arange(len(IMAGES))
    return with_changes(IMAGES, DataConfig(**fields), maximum=255, seed=seed, positions=position + at, indices=at)


@pytest.mark.parametrize("name", PROBABLE)
def test_each_change_depends_on_seed_and_position_alone(name: str) -> None:
    fields = {name: PROBABLE[name]}
    first = changed(**fields)
    np.testing.assert_array_equal(changed(**fields), first)
    for other in (changed(seed=2, **fields), changed(position=41, **fields)):
        assert (other != first).any()
    at = np.array([5])
    alone = with_changes(IMAGES[5:6], DataConfig(**fields), maximum=255, seed=1, positions=at + 40, indices=at)
    np.testing.assert_array_equal(alone[0], first[5], "an image's changes do not depend on the batch")
    if name != "randaugment":
        touched = (first != IMAGES).any(axis=(1, 2, 3))
        assert 0 < touched.sum() < len(IMAGES), "with that probability"
        sure = changed(**{name: 1.0})
        least = 1.0 if name != "blur" else 0.6  # a blur of a tenth of a pixel changes nothing
        assert (sure != IMAGES).any(axis=(1, 2, 3)).mean() >= least


def darker(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return (image // 2 + random.integers(0, 2, image.shape)).astype(np.uint8)


def as_floats(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return image / 255


def failing(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return image if (image != IMAGES[2]).any() else np.array(int("a\nb"))


def test_a_function_of_the_user() -> None:
    name = f"{__name__}:"
    found = changed(transform=f"{name}darker")
    np.testing.assert_allclose(found.astype(int), IMAGES // 2, atol=1)
    np.testing.assert_array_equal(found, changed(transform=f"{name}darker"))
    with pytest.raises(
        ConfigError, match=r"data\.transform=.*as_floats', image 0: returned float64 .*, expected uint8 \(32, 32, 3\)"
    ):
        changed(transform=f"{name}as_floats")
    with pytest.raises(ConfigError, match=r"failing', image 2: raised ValueError: invalid .*, at .*py:\d+ in failing$"):
        changed(transform=f"{name}failing")
