"""The cost of TLS, snappy and deflate: publishing and consuming over each of them, compared with plain TCP."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from bench import codec
from bench.brokers import nsqd_factory
from bench.certificate import Certificate
from bench.report import Benchmark, Row
from bench.runner import Compared, Measured
from bench.settings import Settings
from bench.work import Work
from scripts.command_line import option

PLAIN: Final = "plain"
STREAMS: Final = (PLAIN, "tls", "snappy", "deflate", "tls+snappy", "tls+deflate")
MODES: Final = {"pub": "PUB, 128 in flight", "mpub": "MPUB of 200, 2 in flight", "sub": "consume and FIN"}
_WIRE: Final = " on the wire"  # of the name of a row with bytes


@dataclass(kw_only=True)
class StreamsSettings(Settings):
    runs: int = option(5, "runs of each row")
    seconds: float = option(1.5, "length of one run")


def run(settings: StreamsSettings, work: Work) -> list[Row]:
    certificate = Certificate.make(work.folder)
    sides = {stream: partial(_measure, settings, work, certificate, stream) for stream in STREAMS}
    compared = Compared(sides, settings.runs)
    return [_row(compared, stream, mode, certificate) for mode in MODES for stream in STREAMS[1:]]


def _row(compared: Compared, stream: str, mode: str, certificate: Certificate) -> Row:
    alone = codec.cost(stream, mode, certificate.certificate, certificate.key)
    mine, plain = (compared.cost(side, mode) for side in (stream, PLAIN))
    wire = [compared.values(side, mode + _WIRE)[-1] for side in (stream, PLAIN)]
    note = (
        f"processor {mine:.2f} µs, {plain:.2f} µs a message; of the {mine - plain:.2f} µs more the layers "
        f"alone {alone:.2f} µs; {wire[0]:.0f} bytes, {wire[1]:.0f} bytes"
    )
    return compared.row(mode, f"{MODES[mode]}: {stream}", stream, PLAIN, note=note)


def _measure(
    settings: StreamsSettings, work: Work, certificate: Certificate, stream: str, number: int
) -> dict[str, Measured]:
    """Run the loads: messages published with MPUB are those that are consumed."""
    flags = [f"--tls-key={certificate.key}", f"--tls-cert={certificate.certificate}", *settings.flag]
    found = {}
    with nsqd_factory(work, settings.build, flags)() as broker:
        broker.make_channel("mpub")
        for mode in MODES:
            topic, before = "singles" if mode == "pub" else "mpub", broker.processor_seconds()
            words = (broker.tcp_port, stream, mode, topic, settings.seconds)
            load = work.python("bench.clients.stream_load", *words, at_most=settings.seconds)
            used = broker.processor_seconds() - before
            found[mode] = Measured(load["msgs_per_s"], used * 1e6 / max(1.0, load["msgs"]))
            found[mode + _WIRE] = Measured(load["wire"])
    return found


BENCHMARK: Final = Benchmark("streams", "What do TLS and compression cost?", StreamsSettings, run, at_most=20)
