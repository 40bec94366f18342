"""Two pictures compared pixel by pixel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from PIL import Image, ImageChops

_RED: Final = (220, 0, 0)
_NOISE: Final = 8  # of 255; Chromium's rounded corners vary slightly between runs
_PALE: Final = 0.75  # how much white to mix into equal pixels


@dataclass(frozen=True, slots=True)
class Difference:
    count: int  # pixels, including the ones that only one picture has
    picture: Image.Image  # before, after, and a pale copy of `before` with the differing pixels in red


def compare(before: Image.Image, after: Image.Image) -> Difference | None:
    """Return the difference between two pictures, or None if there is only noise."""
    size = (max(before.width, after.width), max(before.height, after.height))
    first, second = (_on_canvas(it, size) for it in (before, after))
    channels = ImageChops.difference(first, second).split()
    most = channels[0]
    for channel in channels[1:]:
        most = ImageChops.lighter(most, channel)
    mask = most.point(lambda value: 255 if value > _NOISE else 0)
    count = mask.histogram()[255]
    if not count:
        return None
    marked = Image.blend(first, Image.new("RGBA", size, "white"), _PALE)
    marked.paste(_RED, mask=mask)
    picture = Image.new("RGB", (3 * size[0], size[1]))
    for place, it in enumerate((first, second, marked)):
        picture.paste(it.convert("RGB"), (place * size[0], 0))
    return Difference(count, picture)


def _on_canvas(picture: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Enlarge the picture with transparent pixels, which count as different because no screenshot has any."""
    canvas = Image.new("RGBA", size)
    canvas.paste(picture.convert("RGBA"))
    return canvas
