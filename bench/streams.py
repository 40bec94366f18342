"""The cost of TLS, snappy and deflate: publishing and consuming over each of them, compared with plain TCP."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Final

from bench import codec
from bench.brokers import Broker, nsqd_factory
from bench.report import Benchmark, Row
from bench.throughput import Measured
from bench.work import ROOT, SLACK, Failed, Load, Work, parsed, say

STREAMS: Final = ("plain", "tls", "snappy", "deflate", "tls+snappy", "tls+deflate")
MODES: Final = {"pub": "PUB, 128 in flight", "mpub": "MPUB of 200, 2 in flight", "sub": "consume and FIN"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=5, help="runs of each row (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=1.5, help="length of one run (default: %(default)s)")


def run(settings: argparse.Namespace, work: Work) -> list[Row]:
    key, certificate = _certificate(work.folder)
    flags = [f"--tls-key={key}", f"--tls-cert={certificate}", *settings.flag]
    fresh = nsqd_factory(work, settings.build, flags)
    figures: dict[tuple[str, str], list[Measured]] = {}
    wire: dict[tuple[str, str], float] = {}
    for number in range(settings.runs):
        at = number % len(STREAMS)  # each stream is first once
        for stream in STREAMS[at:] + STREAMS[:at]:
            with fresh() as broker:
                broker.make_channel("mpub")
                for mode in MODES:
                    load, measured = _load(broker, stream, mode, settings.seconds)
                    figures.setdefault((stream, mode), []).append(measured)
                    wire[stream, mode] = load["wire"]
                    say(f"{stream:>12} {mode:5} {measured.rate:12,.0f}  {measured.cost:6.2f} µs each")
    return [
        _row(stream, mode, figures, wire, codec.cost(stream, mode, certificate, key))
        for mode in MODES
        for stream in STREAMS[1:]
    ]


def _row(
    stream: str,
    mode: str,
    figures: dict[tuple[str, str], list[Measured]],
    wire: dict[tuple[str, str], float],
    alone: float,
) -> Row:
    mine, plain = figures[stream, mode], figures["plain", mode]
    costs = [median(one.cost for one in side) for side in (mine, plain)]
    return Row(
        f"{MODES[mode]}: {stream}",
        "msg/s",
        tuple(one.rate for one in mine),
        None,
        "plain",
        tuple(one.rate for one in plain),
        f"processor {costs[0]:.2f} µs, {costs[1]:.2f} µs a message; of the {costs[0] - costs[1]:.2f} µs more the layers "
        f"alone {alone:.2f} µs; {wire[stream, mode]:.0f} bytes, {wire['plain', mode]:.0f} bytes",
    )


def _load(broker: Broker, stream: str, mode: str, seconds: float) -> tuple[Load, Measured]:
    """Run the load: messages published with MPUB are those that are consumed."""
    topic = "singles" if mode == "pub" else "mpub"
    command = [sys.executable, "-m", "bench.stream_client", str(broker.tcp_port), stream, mode, topic, str(seconds)]
    before = broker.processor_seconds()
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=seconds + SLACK,
    )
    used = broker.processor_seconds() - before
    if done.returncode:
        raise Failed(f"{' '.join(command[1:])}: {done.stderr.decode().strip()}")
    load = parsed(done.stdout, 0)
    return load, Measured(load["msgs_per_s"], used * 1e6 / max(1.0, load["msgs"]))


def _certificate(folder: Path) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        raise Failed("the certificate needs openssl")
    key, certificate = folder / "key.pem", folder / "cert.pem"
    new = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    subprocess.run(
        ["openssl", *new, "-subj", "/CN=localhost", "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return key, certificate


BENCHMARK: Final = Benchmark("streams", "What do TLS and compression cost?", add_arguments, run, at_most=20)
