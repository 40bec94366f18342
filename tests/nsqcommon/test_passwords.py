from __future__ import annotations

import io
import json
import logging

import pytest

from nsqcommon import logs
from nsqcommon.passwords import mask_option, mask_passwords, mask_url, without_credentials

URL = "http://user:hunter2@host/auth"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://user:hunter2@host:80/auth?x=y", "http://user:xxxxx@host:80/auth?x=y"),
        ("http://user:@host", "http://user:xxxxx@host"),
        ("http://:hunter2@host", "http://:xxxxx@host"),
        ("http://user:p@ss:w@host/", "http://user:xxxxx@host/"),
        ('["https://a:1@b","http://c:2@d"]', '["https://a:xxxxx@b","http://c:xxxxx@d"]'),
        ("failed (http://u:p@h/x) - http://h/x: refused", "failed (http://u:xxxxx@h/x) - http://h/x: refused"),
        ("http://user@host/", "http://user@host/"),
        ("http://host:80/x?mail=a:b@c", "http://host:80/x?mail=a:b@c"),
        ("user:hunter2@host", "user:hunter2@host"),
    ],
)
def test_the_password_of_a_url_is_masked(text: str, shown: str) -> None:
    assert mask_passwords(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("user:hunter2@host:4181", "user:xxxxx@host:4181"),
        ("--auth-http-address=user:p@ss@host:4181", "--auth-http-address=user:xxxxx@host:4181"),
        ("-auth-http-address=:hunter2@host", "-auth-http-address=:xxxxx@host"),
        (URL, "http://user:xxxxx@host/auth"),
        (f"--auth-http-address={URL}", "--auth-http-address=http://user:xxxxx@host/auth"),
        ("http://host:80/x?mail=a:b@c", "http://host:80/x?mail=a:b@c"),
        ("10.0.0.1:4160", "10.0.0.1:4160"),
        ("ops@example.com", "ops@example.com"),
    ],
)
def test_an_option_may_be_an_address_without_http(text: str, shown: str) -> None:
    assert mask_option(text) == shown


def test_an_address_without_http_is_shown_without_its_credentials() -> None:
    assert without_credentials("user:hunter2@host:4181") == "host:4181"
    assert without_credentials("host:4181/x@y") == "host:4181/x@y"


@pytest.mark.parametrize("url", ["http://u:p@h:80/x", "http://u@h:80/x", "http://h:80/x"])
def test_a_url_without_credentials(url: str) -> None:
    assert without_credentials(url) == "http://h:80/x"


@pytest.mark.usefixtures("restored_logging")
@pytest.mark.parametrize("log_format", ["nsq", "json"])
def test_no_line_of_the_log_shows_a_password(log_format: str) -> None:
    stream = io.StringIO()
    logs.configure(prefix="", level=logs.LogLevel.INFO, log_format=log_format, stream=stream)
    try:
        raise ValueError(URL)
    except ValueError:
        logging.getLogger("nsqd.test").exception("asked %s", URL)
    assert "hunter2" not in stream.getvalue()
    assert stream.getvalue().count("http://user:xxxxx@") == 2
    if log_format == "json":
        assert json.loads(stream.getvalue())["message"] == "asked http://user:xxxxx@host/auth"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://hooks.example/T0/secret", "https://hooks.example/xxxxx"),
        ("https://hooks.example:8443?key=secret", "https://hooks.example:8443/xxxxx"),
        ("https://me:secret@hooks.example/", "https://hooks.example/xxxxx"),
        ("https://hooks.example#secret", "https://hooks.example/xxxxx"),
        ("https://hooks.example", "https://hooks.example"),
        ("secret", "xxxxx"),
        ("", "xxxxx"),
    ],
)
def test_a_url_whose_path_may_be_a_secret_shows_its_host_only(url: str, shown: str) -> None:
    assert mask_url(url) == shown
