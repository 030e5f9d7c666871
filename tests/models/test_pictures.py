"""Pictures are what they look like: each kind of file is read as a viewer shows it, the right way up, on white."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from moespec.models.data.pictures import check_header, read_image
from moespec.models.errors import DataError

RAMP = np.linspace(0, 65535, 16, dtype=np.uint16).reshape(4, 4)
"""16 greys, of which 8 bits hold every one: multiples of 4369, which is 17 times 257."""
EIGHT = (RAMP // 257).astype(np.uint8)


def grey(path: Path, *, channels: int = 1) -> np.ndarray:
    """The picture in its own size of 4 x 4, so that nothing is resized."""
    return read_image(path, 4, channels=channels)[..., 0]


@pytest.mark.parametrize("ending", ["png", "tif", "ppm"])
@pytest.mark.parametrize("channels", [1, 3])
def test_grey_of_16_bits_is_scaled(tmp_path: Path, ending: str, channels: int) -> None:
    path = tmp_path / f"x.{ending}"
    Image.fromarray(RAMP).save(path)
    np.testing.assert_array_equal(grey(path, channels=channels), EIGHT)


def test_a_transparent_grey_of_16_bits_is_white(tmp_path: Path) -> None:
    Image.fromarray(RAMP).save(tmp_path / "x.png", transparency=4369)
    with Image.open(tmp_path / "x.png") as file:
        assert (file.mode, file.info["transparency"]) == ("I;16", 4369)
    expected = EIGHT.copy()
    expected[0, 1] = 255
    np.testing.assert_array_equal(grey(tmp_path / "x.png"), expected)


BLUE, HALF_BLUE = (0, 0, 255), (127, 127, 255)


def half_transparent(mode: str) -> Image.Image:
    """Blue that lets half of the page through."""
    return Image.new("RGBA", (4, 4), (*BLUE, 128)).convert(mode)


def of_palette(transparency: bytes | int | None) -> Image.Image:
    """A palette of blue and black, all pixels blue."""
    image = Image.new("P", (4, 4), 0)
    image.putpalette([*BLUE, 0, 0, 0])
    if transparency is not None:
        image.info["transparency"] = transparency
    return image


COLOURS: dict[str, tuple[Callable[[], Image.Image], tuple[int, int, int]]] = {
    "palette.png": (lambda: of_palette(None), BLUE),
    "transparent palette.png": (lambda: of_palette(bytes([127])), (128, 128, 255)),
    "transparent colour of a palette.gif": (lambda: of_palette(0), (255, 255, 255)),
    "alpha.png": (lambda: half_transparent("RGBA"), HALF_BLUE),
    "alpha.webp": (lambda: Image.new("RGBA", (4, 4), (0, 0, 0, 0)), (255, 255, 255)),
    "grey alpha.png": (lambda: Image.new("LA", (4, 4), (0, 0)), (255, 255, 255)),
    "cmyk.tif": (lambda: Image.new("CMYK", (4, 4), (255, 255, 0, 0)), BLUE),
    "cmyk.jpg": (lambda: Image.new("CMYK", (4, 4), (255, 255, 0, 0)), BLUE),
    "black and white.png": (lambda: Image.new("1", (4, 4), 1), (255, 255, 255)),
}


@pytest.mark.parametrize("name", COLOURS)
def test_colours_are_as_they_look(tmp_path: Path, name: str) -> None:
    make, colour = COLOURS[name]
    make().save(tmp_path / name)
    found = read_image(tmp_path / name, 4).astype(int)
    np.testing.assert_allclose(found, np.broadcast_to(colour, found.shape), atol=3 if name.endswith("jpg") else 1)


def test_a_transparent_colour(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4), BLUE).save(tmp_path / "x.png", transparency=BLUE)
    assert (read_image(tmp_path / "x.png", 4) == 255).all()


QUARTERS = np.kron(np.array([[0, 80], [160, 240]], np.uint8), np.ones((4, 4), np.uint8))
"""Four squares of different greys."""
STORED: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda seen: seen,
    2: np.fliplr,
    3: lambda seen: np.rot90(seen, 2),
    4: np.flipud,
    5: np.transpose,
    6: lambda seen: np.rot90(seen, 1),
    7: lambda seen: np.transpose(np.rot90(seen, 2)),
    8: lambda seen: np.rot90(seen, -1),
}
"""How a picture is stored that is to be seen as it is, by the orientation that EXIF gives it."""


@pytest.mark.parametrize("orientation", STORED)
def test_pictures_are_turned_as_exif_says(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(STORED[orientation](QUARTERS)).save(tmp_path / "x.png", exif=exif)
    np.testing.assert_array_equal(read_image(tmp_path / "x.png", 8, channels=1)[..., 0], QUARTERS)


@pytest.mark.parametrize("wide", [True, False])
def test_the_middle_square_of_a_picture_that_is_not_square(tmp_path: Path, wide: bool) -> None:
    """Its shorter side is kept whole, and as much is cut off at both ends of the longer one."""
    picture = np.zeros((8, 20), np.uint8)
    picture[:, 6:14] = QUARTERS
    picture[:, :6], picture[:, 14:] = 33, 44
    picture, expected = (picture, QUARTERS) if wide else (picture.T, QUARTERS.T)
    Image.fromarray(picture).save(tmp_path / "x.png")
    np.testing.assert_array_equal(read_image(tmp_path / "x.png", 8, channels=1)[..., 0], expected)


def test_a_turned_picture_that_is_not_square(tmp_path: Path) -> None:
    """The square is the middle of what is seen."""
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn clockwise
    stored = np.full((8, 20), 33, np.uint8)
    stored[:, 6:14] = np.rot90(QUARTERS)
    Image.fromarray(stored).save(tmp_path / "x.png", exif=exif)
    np.testing.assert_array_equal(read_image(tmp_path / "x.png", 8, channels=1)[..., 0], QUARTERS)


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (np.ones((4, 4), np.float32), r"x\.tif: its pixels are floating-point numbers, of which white is not known"),
        (np.full((4, 4), 70000, np.int32), r"x\.tif: its pixels are integers of 32 bits"),
    ],
)
def test_pixels_whose_white_is_not_known(tmp_path: Path, pixels: np.ndarray, message: str) -> None:
    Image.fromarray(pixels).save(tmp_path / "x.tif")
    for read in (check_header, lambda path: read_image(path, 4)):
        with pytest.raises(DataError, match=message):
            read(tmp_path / "x.tif")


def test_a_model_of_two_channels(tmp_path: Path) -> None:
    Image.new("L", (4, 4)).save(tmp_path / "x.png")
    with pytest.raises(DataError, match=r"x\.png: a picture is grey or RGB, but the model takes 2 channels"):
        read_image(tmp_path / "x.png", 4, channels=2)
