"""Whether a request that changes something comes from another site's page."""

from __future__ import annotations

import pytest

from nsqadmin.access.origin import why_foreign


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "admin:4171"},
        {"host": "admin:4171", "origin": "http://admin:4171"},
        {"host": "admin", "origin": "https://admin"},
        {"host": "admin:443", "origin": "https://admin"},
        {"host": "[::1]:4171", "origin": "http://[::1]:4171"},
        {"host": "behind-a-proxy:80", "origin": "https://admin.example", "sec-fetch-site": "same-origin"},
        {"host": "admin", "sec-fetch-site": "none"},
    ],
)
def test_programs_and_our_own_pages_are_let_in(headers: dict[str, str]) -> None:
    assert not why_foreign(headers)


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "admin:4171", "origin": "http://evil"},
        {"host": "admin:4171", "origin": "http://admin:4172"},
        {"host": "admin:4171", "origin": "null"},
        {"host": "admin", "origin": "http://admin.evil"},
        {"host": "admin", "origin": "http://admin", "sec-fetch-site": "cross-site"},
        {"host": "admin", "origin": "http://other.admin", "sec-fetch-site": "same-site"},
        {"host": "admin", "origin": "http://[broken"},
    ],
)
def test_pages_of_others_are_not(headers: dict[str, str]) -> None:
    assert why_foreign(headers)
