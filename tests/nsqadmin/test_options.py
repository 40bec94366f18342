"""The options of nsqadmin."""

from __future__ import annotations

import pytest

from nsqadmin.options import Options, clean_base_path
from nsqcommon.options import format_value, parse
from nsqcommon.startup import StartupError

NODE = "--nsqd-http-address=127.0.0.1:4151"
OIDC = (
    "--oidc-issuer=https://idp.example",
    "--oidc-client-id=x",
    "--external-url=https://nsq.example",
    "--roles-file=r",
)


def options(*arguments: str) -> Options:
    return parse(Options, arguments, {}, "nsqadmin")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "--nsqd-http-address or --lookupd-http-address required"),
        ([NODE, "--lookupd-http-address=a:1"], "use --nsqd-http-address or --lookupd-http-address not both"),
        ([NODE, "--http-client-tls-cert=c"], "--http-client-tls-key must be specified with --http-client-tls-cert"),
        ([NODE, "--http-client-tls-key=k"], "--http-client-tls-cert must be specified with --http-client-tls-key"),
        (["--lookupd-http-address=http://a:1"], "failed to resolve --lookupd-http-address (http://a:1) - "),
        (["--nsqd-http-address=a"], "failed to resolve --nsqd-http-address (a) - address a: missing port in address"),
        ([NODE, "--proxy-graphite", "--graphite-url=::"], "failed to parse --graphite-url (::) - "),
        ([NODE, "--allow-config-from-cidr=x"], "failed to parse --allow-config-from-cidr (x) - "),
        (
            [NODE, "--incident-webhook=ftp://h/secret"],
            "failed to parse --incident-webhook (ftp://h/xxxxx) - expected http",
        ),
        ([NODE, "--incident-webhook=hooks.example"], "failed to parse --incident-webhook (xxxxx) - expected http"),
        ([NODE, "--external-url=nsq.example"], "failed to parse --external-url (nsq.example) - expected http"),
        ([NODE, "--trusted-proxy=10.0.0.1"], "failed to parse --trusted-proxy (10.0.0.1) - "),
        ([NODE, "--oidc-client-id=x"], "--oidc-client-id needs --oidc-issuer"),
        ([NODE, "--session-key-file=x"], "--session-key-file needs --oidc-issuer"),
        ([NODE, OIDC[0]], "--oidc-issuer needs --oidc-client-id"),
        ([NODE, *OIDC[:2]], "--oidc-issuer needs --external-url: the provider leads"),
        ([NODE, *OIDC[:3]], "--oidc-issuer needs --roles-file: otherwise everyone"),
        (
            [NODE, "--oidc-issuer=http://idp.example", *OIDC[1:]],
            "failed to parse --oidc-issuer (http://idp.example) - ",
        ),
        ([NODE, *OIDC, "--external-url=https://nsq.example/x"], "--external-url (https://nsq.example/x) must be"),
        ([NODE, *OIDC, "--oidc-scope=email"], "--oidc-scope needs openid, too"),
        (
            [NODE, *OIDC, "--oidc-authorization-parameter=state=x"],
            "failed to parse --oidc-authorization-parameter (state=x)",
        ),
        ([NODE, *OIDC, "--oidc-authorization-parameter=x"], "failed to parse --oidc-authorization-parameter (x)"),
    ],
)
def test_what_cannot_work_is_refused_in_nsqs_words(arguments: list[str], text: str) -> None:
    with pytest.raises(StartupError) as failure:
        options(*arguments)
    assert str(failure.value).startswith(f"failed to instantiate nsqadmin - {text}")


def test_a_list_is_one_entry_for_each_flag() -> None:
    assert options("--nsqd-http-address=a:1", "--nsqd-http-address=b:2").nsqd_http_address == ("a:1", "b:2")


@pytest.mark.parametrize(
    ("given", "clean"), [("", "/"), ("/", "/"), ("nsqadmin/", "/nsqadmin"), ("//a/./b/../c/", "/a/c")]
)
def test_the_base_path_is_cleaned(given: str, clean: str) -> None:
    assert clean_base_path(given) == clean
    assert options(NODE, f"--base-path={given}").base_path == clean


def test_the_paths_of_webhooks_are_shown_nowhere() -> None:
    urls = ("https://hooks.example/T0/hunter2", "https://me:hunter2@h.example?key=hunter2", "https://h.example")
    chosen = options(NODE, *(f"--incident-webhook={url}" for url in urls))
    assert chosen.incident_webhook == urls
    shown = '["https://hooks.example/xxxxx","https://h.example/xxxxx","https://h.example"]'
    assert format_value(chosen, "incident_webhooks") == shown
