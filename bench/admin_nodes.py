"""Fake nodes with HTTP only: an nsqlookupd and some nsqd with many topics, for nsqadmin to poll.

`python -m bench.admin_nodes NODES TOPICS CHANNELS LIVELY` prints the nsqlookupd's port and serves until it is killed.
LIVELY is the share of topics whose numbers change from one answer to the next.
"""

from __future__ import annotations

import json
import sys
import threading
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

HOST: Final = "127.0.0.1"
_VARIANTS: Final = 6  # successive answers, made once so that they cost nothing later


class Nsqd:
    def __init__(self, topics: int, channels: int, lively: float) -> None:
        self.topics = topics
        self.channels = channels
        self.lively = int(topics * lively)
        self.asked = 0

    def stats(self, *, clients: bool) -> bytes:
        self.asked += 1
        return self._made(self.asked % _VARIANTS, clients)

    @cache  # noqa: B019 # it lives as long as the process
    def _made(self, variant: int, clients: bool) -> bytes:
        topics = [self._topic(number, variant if number < self.lively else 0, clients) for number in range(self.topics)]
        document = {"version": "1.3.0", "health": "OK", "start_time": 1, "topics": topics, "producers": []}
        return json.dumps(document, separators=(",", ":")).encode()

    def one(self, topic: str) -> bytes:
        number = int(topic.rpartition("-")[2])
        return json.dumps(
            {"version": "1.3.0", "health": "OK", "start_time": 1, "topics": [self._topic(number, 0, True)]}
        ).encode()

    def _topic(self, number: int, variant: int, clients: bool) -> dict[str, Any]:
        latency = {"count": 0, "percentiles": None}
        return {
            "topic_name": f"topic-{number}",
            "channels": [self._channel(it, number, variant, clients) for it in range(self.channels)],
            "depth": 0,
            "backend_depth": 0,
            "message_count": 10_000 + 50 * variant,
            "message_bytes": 2_000_000 + 10_000 * variant,
            "paused": False,
            "e2e_processing_latency": latency,
        }

    def _channel(self, channel: int, topic: int, variant: int, clients: bool) -> dict[str, Any]:
        return {
            "channel_name": f"channel-{channel}",
            "depth": variant * (topic % 7) if channel == 0 else 0,
            "backend_depth": 0,
            "in_flight_count": variant,
            "deferred_count": 0,
            "message_count": 10_000 + 50 * variant,
            "requeue_count": 3,
            "timeout_count": 1,
            "client_count": 1,
            "clients": [self._client(topic, channel, variant)] if clients else None,
            "paused": False,
            "e2e_processing_latency": {"count": 0, "percentiles": None},
        }

    def _client(self, topic: int, channel: int, variant: int) -> dict[str, Any]:
        return {
            "client_id": f"reader-{channel}",
            "hostname": f"reader-{channel}.example",
            "version": "V2",
            "remote_address": f"10.0.0.{channel}:{10_000 + topic}",
            "state": 3,
            "ready_count": 10,
            "in_flight_count": variant,
            "message_count": 10_000 + 50 * variant,
            "finish_count": 10_000 + 50 * variant,
            "requeue_count": 1,
            "connect_ts": 1_700_000_000,
            "user_agent": "go-nsq/1.1.0",
        }


def serve(answer: Any) -> int:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            body = answer(parts.path, {name: values[0] for name, values in parse_qs(parts.query).items()})
            self.send_response(200 if body is not None else 404)
            self.send_header("Content-Type", "application/json; charset=utf-8")
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *arguments: object) -> None:
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Log nothing: a client may go at any time."""

    server = Server((HOST, 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return int(server.server_address[1])


def nsqd_answer(node: Nsqd, path: str, query: dict[str, str]) -> bytes | None:
    if path == "/stats":
        if "topic" in query:
            return node.one(query["topic"])
        return node.stats(clients=query.get("include_clients") != "false")
    return None


def main() -> int:
    nodes, topics, channels = (int(it) for it in sys.argv[1:4])
    lively = float(sys.argv[4])
    names = [f"topic-{number}" for number in range(topics)]
    producers = []
    for number in range(nodes):
        node = Nsqd(topics, channels, lively)
        for variant in range(_VARIANTS):
            node._made(variant, False)
        port = serve(lambda path, query, node=node: nsqd_answer(node, path, query))
        producers.append(
            {
                "remote_address": f"{HOST}:{port}",
                "hostname": f"node-{number}",
                "broadcast_address": HOST,
                "tcp_port": port + 1,
                "http_port": port,
                "version": "1.3.0",
                "tombstones": [False] * topics,
                "topics": names,
            }
        )
    documents = {
        "/nodes": json.dumps({"producers": producers}).encode(),
        "/topics": json.dumps({"topics": names}).encode(),
        "/info": b'{"version":"1.3.0"}',
    }
    sys.stdout.write(f"{serve(lambda path, query: documents.get(path))}\n")
    sys.stdout.flush()
    threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
