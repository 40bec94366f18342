"""nsqadmin and nodes that speak TLS."""

from __future__ import annotations

from pathlib import Path

from tests.support.certificates import make_certificates
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
