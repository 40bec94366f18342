"""Routes with several words and a prefix. tests/nsqd/http/whole/test_routing.py tests the other rules on a whole API."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from nsqcommon.routes import RouteTable


class Route(NamedTuple):
    method: str
    path: str


TABLE = RouteTable(
    [Route("GET", "/"), Route("GET", "/topics/{topic}/{channel}"), Route("GET", "/topics/all/x.js")], "/admin"
)


def test_words_are_found_by_their_names() -> None:
    found = TABLE.find("GET", "/admin/topics/Orders/bill#ephemeral")
    assert found == (Route("GET", "/topics/{topic}/{channel}"), {"topic": "Orders", "channel": "bill#ephemeral"})


def test_an_exact_path_goes_before_one_with_words() -> None:
    assert TABLE.find("GET", "/admin/topics/all/x.js") == (Route("GET", "/topics/all/x.js"), {})


@pytest.mark.parametrize("path", ["/", "/admin/", "/admin/topics/a", "/admin/topics/a/b/c", "/admin/topics//b"])
def test_unknown_paths_have_no_route(path: str) -> None:
    assert TABLE.find("GET", path) is None


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/admin/", "/admin"),
        ("/ADMIN", "/admin"),
        ("/Admin//Topics/A/B/", "/admin/topics/A/B"),
        ("/admin/x/../topics/all/X.JS", "/admin/topics/all/x.js"),
        ("/topics/a/b", None),
    ],
)
def test_paths_that_nearly_match_are_redirected(path: str, target: str | None) -> None:
    assert TABLE.redirect("GET", path) == target
    assert TABLE.redirect("POST", path) is None
