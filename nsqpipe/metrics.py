"""A Prometheus page about running streams, from what Spark reports after each batch."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

from nsqpipe.failures import PipeFailed
from nsqpipe.lanes import lag_of, lanes_of, rows_of

if TYPE_CHECKING:
    from nsqpipe.upkeep import Tended

OBSERVED: Final = "quality"  # under which counts of broken rules come in Spark's reports
TYPES: Final[Mapping[str, tuple[str, str]]] = {
    "nsqpipe_rows_total": ("counter", "rows read"),
    "nsqpipe_batches_total": ("counter", "batches that were committed"),
    "nsqpipe_batch_seconds": ("gauge", "how long the last batch took"),
    "nsqpipe_lag_messages": ("gauge", "messages in the logs that were not read yet"),
    "nsqpipe_lane_next": ("gauge", "the next sequence to read of a lane"),
    "nsqpipe_table_files": ("gauge", "files that the table names"),
    "nsqpipe_files_joined_total": ("counter", "small files that became part of a large one"),
    "nsqpipe_files_removed_total": ("counter", "files removed that no version needs, or that a crash has left"),
    "nsqpipe_upkeep_failures_total": ("counter", "looks at the table that failed; each is tried again"),
    "nsqpipe_rule_broken_total": ("counter", "rows that broke a rule, or could not be parsed"),
}


class Metrics:
    """Written by the job's thread, read by the server's."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._lock = threading.Lock()

    def observe(self, query: str, report: Mapping[str, Any]) -> None:
        with self._lock:
            self._add("nsqpipe_rows_total", rows_of(report), query=query)
            self._add("nsqpipe_batches_total", 1, query=query)
            self._set("nsqpipe_batch_seconds", report["durationMs"].get("triggerExecution", 0) / 1000, query=query)
            self._set("nsqpipe_lag_messages", sum(lag_of(report)), query=query)
            for source in report.get("sources", ()):
                for lane, place in lanes_of(source.get("endOffset")).items():
                    self._set("nsqpipe_lane_next", place, query=query, lane=lane)
            for rule, count in (report.get("observedMetrics", {}).get(OBSERVED) or {}).items():
                self._add("nsqpipe_rule_broken_total", count, query=query, rule=rule)

    def observe_upkeep(self, done: Tended) -> None:
        with self._lock:
            self._add("nsqpipe_upkeep_failures_total", bool(done.failed), table=done.table)
            if not done.failed:
                self._set("nsqpipe_table_files", done.files, table=done.table)
                self._add("nsqpipe_files_joined_total", done.joined, table=done.table)
                self._add("nsqpipe_files_removed_total", done.removed, table=done.table)

    def _set(self, name: str, value: float, **labels: str) -> None:
        self._values[name, tuple(sorted(labels.items()))] = value

    def _add(self, name: str, value: float, **labels: str) -> None:
        key = name, tuple(sorted(labels.items()))
        self._values[key] = self._values.get(key, 0) + value

    def page(self) -> str:
        with self._lock:
            values = dict(self._values)
        lines = []
        for name, (kind, text) in TYPES.items():
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            for (here, labels), value in sorted(values.items()):
                if here == name:
                    written = ",".join(f'{key}="{_escaped(word)}"' for key, word in labels)
                    lines.append(f"{name}{{{written}}} {value:g}")
        return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def serve(metrics: Metrics, address: str) -> ThreadingHTTPServer:
    """Answers `/metrics` until `shutdown()`, in a thread of its own that ends with the process."""
    host, _, port = address.rpartition(":")

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_ours = self.path == "/metrics"
            body = metrics.page().encode() if is_ours else b"see /metrics\n"
            self.send_response(200 if is_ours else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nobody needs a line for each scrape."""

    try:
        server = ThreadingHTTPServer((host or "127.0.0.1", int(port)), Page)
    except (OSError, ValueError, OverflowError) as error:
        raise PipeFailed(f"--metrics-address {address}: {error}") from None
    threading.Thread(target=server.serve_forever, daemon=True, name="metrics").start()
    return server


@contextmanager
def serving(metrics: Metrics, address: str) -> Iterator[None]:
    """Meanwhile; without an address nobody asks."""
    if not address:
        yield
        return
    server = serve(metrics, address)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
