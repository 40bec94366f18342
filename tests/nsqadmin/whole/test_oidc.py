"""Login by a provider with real processes: two nsqadmins that share sessions, and a provider over TLS."""

from __future__ import annotations

import json
import ssl
import subprocess
from base64 import b64encode
from http.cookies import SimpleCookie
from pathlib import Path
from time import time
from urllib.parse import parse_qsl

from tests.support.certificates import make_certificates
from tests.support.cluster import name_of
from tests.support.http_server import HttpServer, Reply, Request
from tests.support.oidc_provider import OidcProvider
from tests.support.process import PYTHON, PYTHONPATH, Answer, Nsqadmin, Nsqd, eventually, needs_module

needs_module("starlette")
needs_module("joserfc")

ORIGIN = "https://nsq.example"
ROLES = '[[role]]\ngroups = ["sre"]\ncan = ["operator"]\n'


class ProviderServer(HttpServer):
    """Serves the provider over HTTPS."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        super().__init__(tls=tls)
        self.provider = OidcProvider(f"https://localhost:{self.port}", time)
        self.provider.redirect_uris.add(f"{ORIGIN}/login/callback")

    def reply(self, request: Request) -> Reply:
        fields = dict(parse_qsl(request.body.decode()))
        status, answer = self.provider.answer(request.path, fields, dict(request.headers))
        return Reply(status, json.dumps(answer).encode())


def ask(admin: Nsqadmin, path: str, cookies: dict[str, str]) -> Answer:
    """Open a page, and keep the cookies that it sets."""
    headers = {"host": "nsq.example", "accept": "text/html"}
    if cookies:
        headers["cookie"] = "; ".join(f"{name}={value}" for name, value in cookies.items())
    answer = admin.http("GET", path, headers=headers)
    for name, it in SimpleCookie(answer.headers.get("set-cookie", "")).items():
        cookies[name] = it.value
    return answer


def file(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_two_nsqadmins_and_a_provider_over_tls(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)
    with ProviderServer(context) as server, Nsqd(tmp_path / "data", "broadcast-address=127.0.0.1") as node:
        options = [
            f"nsqd-http-address={name_of(node)}",
            f"oidc-issuer={server.provider.issuer}",
            "oidc-client-id=nsqadmin",
            f"oidc-client-secret-file={file(tmp_path / 'secret', server.provider.client_secret)}",
            f"oidc-ca-file={made.authority}",
            f"external-url={ORIGIN}",
            f"roles-file={file(tmp_path / 'roles', ROLES)}",
            f"session-key-file={file(tmp_path / 'keys', b64encode(bytes(32)).decode())}",
        ]
        with Nsqadmin(*options) as first, Nsqadmin(*options) as second:
            cookies: dict[str, str] = {}
            asked = ask(first, "/topics", cookies)
            assert (asked.status, asked.headers["location"]) == (303, "/login?next=%2Ftopics")
            sent = ask(first, asked.headers["location"], cookies)
            back = server.provider.authorize(sent.headers["location"]).removeprefix(ORIGIN)
            done = ask(second, back, cookies)  # a load balancer may send the callback anywhere
            assert (done.status, done.headers["location"]) == (303, "/topics")
            for admin in (first, second):
                page = ask(admin, "/topics", cookies)
                assert (page.status, b"ana@example.com" in page.body) == (200, True)
            assert ask(first, back, cookies).status == 403
            headers = {"host": "nsq.example", "cookie": "; ".join(f"{name}={it}" for name, it in cookies.items())}
            made_by_api = first.http("POST", "/api/topics", b'{"topic":"orders"}', headers=headers)
            assert made_by_api.status == 200
            entries = first.http("GET", "/api/v2/activity", headers=headers).json["activity"]
            assert [it["user"] for it in entries if it["topic"] == "orders"][:1] == ["ana@example.com"]
            eventually(lambda: "logged in user=ana@example.com groups=sre" in second.log)
            assert "code=" not in second.log
        with Nsqadmin(*(it for it in options if "ca-file" not in it)) as distrustful:
            answer = ask(distrustful, "/login", {})
            assert answer.status == 503
            eventually(lambda: "failed to verify certificate" in distrustful.log)


def test_nothing_is_loaded_for_a_login_that_is_off() -> None:
    """And if it is on, only at the first login."""
    code = (
        "import sys, nsqadmin.daemon, nsqadmin.http.login, nsqadmin.site; before = set(sys.modules)\n"
        "import nsqadmin.oidc.login_flow\n"
        "print(sorted(it for it in before if it.startswith('nsqadmin.oidc')))\n"
        "print([it for it in ('joserfc', 'cryptography') if it in sys.modules])"
    )
    shown = subprocess.check_output([PYTHON, "-P", "-c", code], env={"PYTHONPATH": PYTHONPATH}, text=True)
    assert shown.splitlines() == ["['nsqadmin.oidc', 'nsqadmin.oidc.urls']", "[]"], "the options check URLs"
