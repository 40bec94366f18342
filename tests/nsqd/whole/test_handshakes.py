"""A crowd of TLS handshakes, half of them garbage: other clients do not notice, and nothing is left behind.

`HANDSHAKES=1000 HANDSHAKE_ROUNDS=12 HANDSHAKE_WAIT=60 scripts/test tests/nsqd/whole/test_handshakes.py -rP` is the long form.
It looks again a minute after the last crowd, and prints its figures.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from tests.support.brokers import StartNsqd
from tests.support.certificates import Certificates, make_certificates
from tests.support.lengths import sized
from tests.support.process import Nsqd, eventually

CROWD: Final = Path(__file__).parents[2] / "e2e" / "peers" / "handshake_crowd.py"
COUNT: Final = int(os.environ.get("HANDSHAKES") or sized(short=60, long=200))
ROUNDS: Final = int(os.environ.get("HANDSHAKE_ROUNDS", "3"))
WAIT: Final = float(os.environ.get("HANDSHAKE_WAIT", "0"))  # seconds; 0: /debug/freememory is called instead
LIMIT: Final = 0.1  # seconds of processor time until a message has come; usual: 0.01


class Bystander:
    """Publishes and consumes without TLS, one message at a time."""

    def __init__(self, nsqd: Nsqd) -> None:
        self._nsqd = nsqd
        self._producer, self._consumer = nsqd.connect(), nsqd.connect()
        self._consumer.subscribe("bystander", ready=1)
        self._pass_one()

    def _pass_one(self) -> float:
        """Return how long nsqd has worked on other things as well, whatever else the machine does."""
        began = self._nsqd.cpu_seconds
        self._producer.publish("bystander", b"x")
        self._consumer.finish(self._consumer.message())
        return self._nsqd.cpu_seconds - began

    def watch(self, crowd: subprocess.Popen[str]) -> list[float]:
        """Return how long nsqd has worked until each message had come, until the crowd has gone."""
        times = [self._pass_one()]
        while crowd.poll() is None:
            times.append(self._pass_one())
            time.sleep(0.005)
        return times


def crowd(nsqd: Nsqd, certificates: Certificates) -> subprocess.Popen[str]:
    arguments = [str(nsqd.tcp[1]), str(certificates.authority), str(COUNT)]
    return subprocess.Popen([sys.executable, str(CROWD), *arguments], stdout=subprocess.PIPE, text=True)


def test_a_crowd_of_handshakes_half_of_them_garbage_disturbs_nobody(start_nsqd: StartNsqd, tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path)
    nsqd = start_nsqd(
        f"tls-cert={certificates.certificate}", f"tls-key={certificates.key}", "https-address=127.0.0.1:0"
    )
    bystander = Bystander(nsqd)
    before = nsqd.descriptors
    resident = []
    for number in range(ROUNDS):
        with crowd(nsqd, certificates) as process:
            times = sorted(bystander.watch(process))
            assert process.stdout is not None
            welcome, ended = json.loads(process.stdout.read())
        assert (welcome, ended) == (COUNT // 2, COUNT // 2)
        assert times[-1] < LIMIT
        assert eventually(lambda: nsqd.descriptors <= before)
        if number == 0 or not WAIT:  # the memory that the first crowd needs is kept
            nsqd.http("POST", "/debug/freememory")
        resident.append(nsqd.resident_bytes)
        middle, most = times[len(times) // 2] * 1000, times[-1] * 1000
        print(f"{COUNT} handshakes: {len(times)} messages meanwhile, median {middle:.1f} ms, longest {most:.0f} ms")
    assert waiting_for_the_collector(nsqd) < 10
    if WAIT:
        time.sleep(WAIT)
        resident.append(nsqd.resident_bytes)
    print("resident MiB after each round: " + ", ".join(f"{it / (1 << 20):.1f}" for it in resident))
    assert resident[-1] < resident[0] * 1.05
    assert "Traceback" not in nsqd.log


def waiting_for_the_collector(nsqd: Nsqd) -> int:
    """Return how many clients still exist, or a number that is not lower; two are connected.

    Only the most frequent types are listed, so there are no more of one that is missing than of the rarest listed one.
    """
    heap = nsqd.http("GET", "/debug/pprof/heap?debug=1").body.decode()
    counts = {name: int(count) for count, name in re.findall(r"^ *(\d+) (\S+)$", heap, re.MULTILINE)}
    return counts.get("nsqd.client.protocol.ClientProtocol", min(counts.values()))
