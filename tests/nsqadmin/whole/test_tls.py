"""nsqadmin and nodes that speak TLS."""

from __future__ import annotations

import ssl
from pathlib import Path

from tests.support.certificates import Certificates, copy_certificate, make_certificates, replace_file
from tests.support.cluster import name_of
from tests.support.process import Nsqadmin, Nsqd, eventually, needs_module

needs_module("starlette")


def test_a_node_that_speaks_tls_only_is_asked_where_it_does(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    token = tmp_path / "token"
    token.write_text("nobody's\n")
    tls = (f"tls-cert={made.certificate}", f"tls-key={made.key}", "tls-required=true", "https-address=127.0.0.1:0")
    with Nsqd(tmp_path / "data", *tls, "broadcast-address=127.0.0.1") as node:
        options = (f"nsqd-http-address={name_of(node)}", f"http-client-tls-root-ca-file={made.authority}")
        with Nsqadmin(*options, f"nsqd-token-file={token}") as admin:
            assert admin.json("GET", "/api/nodes").json["nodes"][0]["http_port"] == node.http_address[1]
            eventually(lambda: admin.json("GET", "/api/v2/nodes").json["nodes"][0]["health"] == "ok")
        with Nsqadmin(options[0]) as distrustful:
            answer = distrustful.json("GET", "/api/topics")
            assert answer.status == 502
            assert "certificate" in answer.json["message"]
            option = "--http-client-tls-root-ca-file"
            eventually(lambda: option in distrustful.json("GET", "/api/v2/nodes").json["nodes"][0]["explanation"])


def test_a_renewed_authority_is_trusted_and_a_renewed_certificate_shown_without_a_restart(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    old, new = make_certificates(tmp_path / "old"), make_certificates(tmp_path / "new")
    trusted = tmp_path / "trusted.pem"
    replace_file(trusted, old.authority.read_bytes())
    ours = Certificates(trusted, tmp_path / "cert.pem", tmp_path / "key.pem")
    copy_certificate(old, ours)
    tls = (f"tls-cert={new.certificate}", f"tls-key={new.key}", "tls-required=true", "https-address=127.0.0.1:0")
    with (
        Nsqd(tmp_path / "data", *tls, "broadcast-address=127.0.0.1") as node,
        Nsqadmin(
            f"nsqd-http-address={name_of(node)}",
            f"http-client-tls-root-ca-file={trusted}",
            "https-address=127.0.0.1:0",
            f"tls-cert={ours.certificate}",
            f"tls-key={ours.key}",
            "sample-interval=200ms",
        ) as admin,
    ):
        by_old = ssl.create_default_context(cafile=old.authority)
        by_new = ssl.create_default_context(cafile=new.authority)
        assert admin.http("GET", "/ping", tls=by_old).status == 200
        eventually(lambda: admin.json("GET", "/api/v2/nodes").json["nodes"][0]["health"] != "ok")
        replace_file(trusted, new.authority.read_bytes())
        copy_certificate(new, ours)
        eventually(lambda: admin.json("GET", "/api/v2/nodes").json["nodes"][0]["health"] == "ok")

        def is_new() -> bool:
            try:
                return admin.http("GET", "/ping", tls=by_new).status == 200
            except ssl.SSLCertVerificationError:
                return False

        eventually(is_new)
        loaded = "TLS: loaded the certificate for listeners subject=CN=localhost"
        eventually(lambda: admin.log.count(loaded) >= 2)  # its log is read by another thread
        assert admin.log.count(loaded) == 2
