"""Pictures of two checkouts: what counts as a difference, and that a second program sees what the first has seen."""

from __future__ import annotations

import urllib.request

import pytest
from PIL import Image

from scripts.compare_pictures.pixels import compare
from scripts.compare_pictures.recorder import Recorder
from tests.support.http_server import HttpServer, Reply, Request


def picture(*spots: tuple[int, int], size: tuple[int, int] = (4, 3)) -> Image.Image:
    made = Image.new("RGB", size, "white")
    for spot in spots:
        made.putpixel(spot, (240, 255, 255))  # light text on white differs by more
    return made


def test_equal_pictures_do_not_differ() -> None:
    assert compare(picture((1, 1)), picture((1, 1))) is None


def test_each_pixel_that_differs_is_counted_and_marked() -> None:
    difference = compare(picture((0, 0), (3, 2)), picture((3, 2), (1, 1)))
    assert difference is not None
    assert difference.count == 2
    assert difference.picture.size == (12, 3)
    marked = [(x, y) for x in range(8, 12) for y in range(3) if difference.picture.getpixel((x, y)) == (220, 0, 0)]
    assert marked == [(8, 0), (9, 1)]


def test_rounding_at_corners_is_no_difference() -> None:
    rounded = picture()
    rounded.putpixel((1, 1), (248, 249, 249))
    assert compare(picture(), rounded) is None


@pytest.mark.parametrize("size", [(4, 4), (5, 3)])
def test_what_only_one_picture_has_differs_also_if_it_is_white(size: tuple[int, int]) -> None:
    for pair in ((picture(), picture(size=size)), (picture(size=size), picture())):
        difference = compare(*pair)
        assert difference is not None
        assert difference.count == size[0] * size[1] - 12


class Counter(HttpServer):
    """Each answer is another one."""

    count = 0

    def reply(self, request: Request) -> Reply:
        self.count += 1
        return Reply(body=b"%s %d" % (request.target.encode(), self.count))


def test_the_second_side_is_answered_as_the_first_was_in_each_chapter() -> None:
    with Counter() as node, Recorder("n1") as recorder:
        recorder.upstream = ("127.0.0.1", node.port)

        def ask(target: str, data: bytes | None = None) -> str:
            with urllib.request.urlopen(recorder.url + target, data) as answer:
                said: bytes = answer.read()
            return said.decode()

        seen = []
        for side in (0, 1):
            recorder.side = side
            asked = ("/a?b=1,2&c=", "/a?b=1%2C2")[side]  # the same
            seen.append([ask(asked), ask(asked), ask("/do", b"it"), ask(asked), ask("/b")])
        assert seen[0] == seen[1]
        assert [it.partition(" ")[2] for it in seen[0]] == ["1", "1", "2", "3", "4"]
        assert ask("/c") == "/c 5"
        assert recorder.asked_only_by(1) == ["n1: GET /c?"]
        assert recorder.asked_only_by(0) == []
