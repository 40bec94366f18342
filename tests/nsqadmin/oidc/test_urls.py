"""Own URLs, and those of the provider."""

from __future__ import annotations

import pytest

from nsqadmin.oidc.urls import OwnUrls, why_not_a_url

ROOT = OwnUrls("https://nsq.example", "")
BELOW = OwnUrls("https://nsq.example:8443", "/nsqadmin")


@pytest.mark.parametrize(
    "path", ["/", "/topics", "/topics/a%2Fb?x=1&y=//z", "/topics?next=https://x", "/nodes#a", "/log.in"]
)
def test_our_own_paths_are_kept(path: str) -> None:
    assert ROOT.safe_path(path) == path
    assert BELOW.safe_path(f"/nsqadmin{path}") == f"/nsqadmin{path}"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "topics",
        "//evil.example",
        "///evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "/topics\\..",
        "https://evil.example",
        "https:evil.example",
        "javascript:alert(1)",
        "/\t/evil.example",
        "/ /evil.example",
        "/\r\nset-cookie: a=b",
        "/..",
        "/a/../../b",
        "/%2e%2e/b",
        "/.%2E/b",
        "/a/%2e%2e%2fb",
        "/a%5c..%5cb",
        "/ä",
        "/" + "x" * 500,
        "/login",
        "/login/callback?code=x",
        "/logout",
        "/password",
    ],
)
def test_all_others_lead_home(path: str) -> None:
    assert ROOT.safe_path(path) == "/"
    assert BELOW.safe_path(path) == "/nsqadmin"
    assert BELOW.safe_path(f"/nsqadmin{path}") in ("/nsqadmin", "/nsqadmin//evil.example", "/nsqadmin///evil.example")


def test_a_path_beside_the_base_path_leads_home() -> None:
    for path in ("/topics", "/nsqadmin2", "/nsqadminx/y", "/nsqadmin/../x"):
        assert BELOW.safe_path(path) == "/nsqadmin"
    assert BELOW.safe_path("/nsqadmin?x=1") == "/nsqadmin?x=1"


def test_the_host_of_a_request_is_compared_with_its_port() -> None:
    assert ROOT.is_called_by("nsq.example")
    assert ROOT.is_called_by("NSQ.example:443")
    assert not ROOT.is_called_by("nsq.example:4171")
    assert BELOW.is_called_by("nsq.example:8443")
    assert not BELOW.is_called_by("nsq.example")
    assert not ROOT.is_called_by("")


@pytest.mark.parametrize(
    "url", ["https://idp", "https://idp:8443/x?y", "http://localhost:9", "http://127.0.0.1", "http://[::1]:1"]
)
def test_a_provider_is_reached_over_https_or_on_this_machine(url: str) -> None:
    assert why_not_a_url(url) == ""


@pytest.mark.parametrize(
    "url",
    [
        "http://idp",
        "http://localhost.evil",
        "ftp://idp",
        "idp",
        "https://",
        "https://u:p@idp",
        "https://idp#x",
        "https://a:b",
    ],
)
def test_other_urls_of_a_provider_are_refused(url: str) -> None:
    assert why_not_a_url(url)
