"""Which requests another site's page has caused, and which host names are a server's own."""

from __future__ import annotations

import pytest

from nsqcommon.origin import OwnHosts, is_from_browser, why_foreign


@pytest.mark.parametrize(
    ("site", "origin", "host"),
    [
        ("", "", "admin:4171"),
        ("", "http://admin:4171", "admin:4171"),
        ("", "https://admin", "admin"),
        ("", "https://admin", "admin:443"),
        ("", "http://[::1]:4171", "[::1]:4171"),
        ("same-origin", "https://admin.example", "behind-a-proxy:80"),
        ("none", "", "admin"),
    ],
)
def test_programs_and_our_own_pages_are_let_in(site: str, origin: str, host: str) -> None:
    assert not why_foreign(site, origin, host)


@pytest.mark.parametrize(
    ("site", "origin", "host"),
    [
        ("", "http://evil", "admin:4171"),
        ("", "http://admin:4172", "admin:4171"),
        ("", "null", "admin:4171"),
        ("", "http://admin.evil", "admin"),
        ("cross-site", "http://admin", "admin"),
        ("same-site", "http://other.admin", "admin"),
        ("", "http://[broken", "admin"),
    ],
)
def test_pages_of_others_are_not(site: str, origin: str, host: str) -> None:
    assert why_foreign(site, origin, host)


@pytest.mark.parametrize(
    ("site", "origin", "user_agent", "is_browser"),
    [
        ("same-origin", "", "", True),
        ("", "null", "", True),
        ("", "", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0", True),
        ("", "", "curl/8.5.0", False),
        ("", "", "Prometheus/3.0", False),
        ("", "", "", False),
    ],
)
def test_browsers_are_told_from_programs(site: str, origin: str, user_agent: str, is_browser: bool) -> None:
    assert is_from_browser(site, origin, user_agent) is is_browser


@pytest.mark.parametrize(
    "host",
    [
        "",
        "localhost",
        "LOCALHOST:4171",
        "localhost.:4171",
        "nsq.localhost:4171",
        "127.0.0.1:4171",
        "127.9.8.7",
        "10.1.2.3:80",
        "[::1]:4171",
        "[2001:db8::1]",
        "Box:4171",
        "box.",
        "nsqadmin:4171",
        "ADMIN.example:443",
    ],
)
def test_addresses_and_the_servers_own_names_are_its_own(host: str) -> None:
    assert OwnHosts(["box", "0.0.0.0", ""], ["nsqadmin", "admin.example"]).has(host)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:4171",
        "box.evil.example",
        "localhost.evil.example",
        "notlocalhost",
        "127.0.0.1.evil.example:4171",
        "[evil]:4171",
        "2130706433:80x",
        "boxx",
        ":4171",
    ],
)
def test_other_names_are_not(host: str) -> None:
    own = OwnHosts(["box", ""], ["nsqadmin"])
    assert not own.has(host)
    assert "--allowed-host=" in own.why_not(host, "--allowed-host")


def test_a_star_allows_every_name() -> None:
    assert OwnHosts([], ["*"]).has("evil.example")


@pytest.mark.parametrize("text", ["admin.example:4171", "http://admin.example", "*.example", "", "a b"])
def test_what_is_no_name_cannot_be_allowed(text: str) -> None:
    with pytest.raises(ValueError, match="is not a host name"):
        OwnHosts([], [text])
