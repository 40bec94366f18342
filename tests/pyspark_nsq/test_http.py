"""What nsqd is asked over HTTP: connections that are kept, and nsqds that want TLS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_nsq.errors import Refused, Unreachable
from pyspark_nsq.http import Http
from pyspark_nsq.options import Access
from tests.support.certificates import make_certificates
from tests.support.http_server import HttpServer, Reply, Request
from tests.support.process import Nsqd
from tests.support.spark import address


class Taking(HttpServer):
    """Takes what is posted, except bodies that ask for something else."""

    def reply(self, request: Request) -> Reply:
        if request.body == b"vanish":
            raise ConnectionError
        return Reply(503 if request.body == b"full" else 200, b'{"message": "full"}')


@pytest.fixture
def server() -> Iterator[Taking]:
    with Taking() as server:
        yield server


def test_posts_share_a_connection_until_one_fails(server: Taking) -> None:
    http = Http(Access())
    http.post(server.address, "/mpub", b"one")
    http.post(server.address, "/mpub", b"two")
    assert server.connections == 1
    with pytest.raises(Refused, match="full"):
        http.post(server.address, "/mpub", b"full")
    with pytest.raises(Unreachable):
        http.post(server.address, "/mpub", b"vanish")
    http.post(server.address, "/mpub", b"three")
    assert server.connections == 3
    http.close()
    http.post(server.address, "/mpub", b"four")
    http.close()
    assert server.connections == 4
    assert {it.headers.get("accept") for it in server.requests} == {None}


def test_a_post_goes_on_to_the_port_that_nsqd_names_for_tls(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    tls = (f"tls-cert={made.certificate}", f"tls-key={made.key}", "tls-required=true", "https-address=127.0.0.1:0")
    with Nsqd(tmp_path / "data", *tls) as nsqd:
        plain = address(nsqd)
        http = Http(Access(ca_file=str(made.authority)))
        http.post(plain, "/pub?topic=t", b"one")
        http.post(plain, "/pub?topic=t", b"two")
        assert http.actual_address(plain).startswith("https://127.0.0.1:")
        (topic,) = http.json(plain, "/stats?format=json")["topics"]
        assert topic["message_count"] == 2
        http.close()
