"""TLS and tokens for the source and the sink, without Spark."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_nsq.cluster import Cluster
from pyspark_nsq.errors import NsqError
from pyspark_nsq.http import Http
from pyspark_nsq.options import source_options
from pyspark_nsq.source.rows import COLUMNS
from pyspark_nsq.source.stream_source import NsqStreamReader
from tests.support.certificates import make_certificates
from tests.support.http_server import HttpServer, Reply, Request
from tests.support.process import Nsqd
from tests.support.spark import KEPT, address

RIGHTS = """
[[allow]]
name = "pipeline"
token_sha256 = "{digest}"
roles = ["publish", "read"]
"""


def guarded(folder: Path) -> tuple[Nsqd, dict[str, str]]:
    """Run an nsqd that demands TLS and a token, and return the options for it."""
    made = make_certificates(folder)
    rights = folder / "rights.toml"
    rights.write_text(RIGHTS.format(digest=sha256(b"secret").hexdigest()))
    nsqd = Nsqd(
        folder / "data",
        KEPT,
        f"tls-cert={made.certificate}",
        f"tls-key={made.key}",
        "tls-required=true",
        "https-address=127.0.0.1:0",
        f"rights-file={rights}",
    )
    return nsqd, {"caFile": str(made.authority), "token": "secret"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"token": "wrong"}, "answers 401 UNAUTHORIZED"),
        ({"caFile": ""}, "CERTIFICATE_VERIFY_FAILED"),
        ({"caFile": "/nowhere/ca.pem"}, "caFile"),
    ],
)
def test_a_refused_client_learns_why(tmp_path: Path, change: dict[str, str], says: str) -> None:
    nsqd, access = guarded(tmp_path)
    with nsqd:
        options = source_options({"nsqd": address(nsqd), "topic": "orders", **access, **change})
        with pytest.raises(NsqError, match=says):
            Cluster(options, Http(options.access)).heads()


def test_allowing_loss_does_not_hide_that_one_may_not(tmp_path: Path) -> None:
    nsqd, access = guarded(tmp_path)
    with nsqd:
        options = {"nsqd": address(nsqd), "topic": "orders", "failOnDataLoss": "false", **access, "token": "wrong"}
        reader = NsqStreamReader(source_options(options), pa.schema([("body", COLUMNS["body"])]))
        with pytest.raises(NsqError, match="answers 401 UNAUTHORIZED"):
            reader.initialOffset()


class _Listening(HttpServer):
    """Answers everything with a list that names itself, and tells which requests had a token."""

    def reply(self, request: Request) -> Reply:
        return Reply(body=b'{"producers": []}')

    @property
    def shown(self) -> list[bool]:
        return ["authorization" in it.headers for it in self.requests]


@pytest.mark.parametrize(
    ("given", "is_near", "shown"),
    [
        ({"lookupd": "{}"}, True, False),
        ({"lookupd": "{}", "tokenTo": "10.0.0.0/8,nsqd-*"}, True, False),
        ({"lookupd": "{}", "tokenTo": "127.0.0.0/8"}, True, True),
        ({"lookupd": "{}", "tokenTo": "127.0.0.0/8"}, False, False),
        ({"lookupd": "{}", "tokenTo": "127.0.0.0/8", "tokenOverHttp": "true"}, False, True),
        ({"nsqd": "{}"}, True, True),
        ({"nsqd": "{}"}, False, False),
        ({"nsqd": "{}", "tokenOverHttp": "true"}, False, True),
    ],
)
def test_the_token_is_shown_to_nsqd_that_are_named_where_nobody_else_can_read_it(
    given: dict[str, str], is_near: bool, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_near:
        monkeypatch.setattr("pyspark_nsq.http.is_loopback", lambda peer: False)
    with _Listening() as server:
        options = {name: text.format(server.address) for name, text in given.items()}
        http = Http(source_options({**options, "topic": "orders", "token": "secret"}).access)
        http.json(server.address, "/topic/log")
        http.json(server.address, "/nodes", is_lookupd=True)
        assert server.shown == [shown, False]


def test_what_token_to_names_is_checked() -> None:
    with pytest.raises(NsqError, match=r"tokenTo: '10\.0\.0' is neither a network"):
        source_options({"lookupd": "l:4161", "topic": "orders", "tokenTo": "10.0.0"})
