"""The policy file of a real nsqd: from the start on, changed while it runs, and with mistakes."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import StartNsqd
from tests.support.process import Nsqd, eventually, run_to_end

pytestmark = pytest.mark.e2e


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "policy.toml"


def replace_file(file: Path, text: str) -> None:
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


def policy(nsqd: Nsqd, query: str = "") -> Any:
    return nsqd.http("GET", f"/config/policy?{query}").json


def replace_and_wait(nsqd: Nsqd, file: Path, text: str) -> None:
    replace_file(file, text)
    assert eventually(lambda: policy(nsqd)["digest"] == sha256(text.encode()).hexdigest())


def test_a_changed_file_holds_without_a_restart_and_a_mistake_changes_nothing(
    start_nsqd: StartNsqd, file: Path
) -> None:
    file.write_text('[[policy]]\nack = "synced"\n')
    nsqd = start_nsqd(f"policy-file={file}")
    synced = {"ack": {"value": "synced", "line": 1, "dry_run": False}}
    assert policy(nsqd, "topic=t")["topic"] == synced
    replace_file(file, '[[policy]]\nack = "never"\nmax_atempts = 3\n')
    assert eventually(lambda: policy(nsqd)["error"])
    answer = policy(nsqd, "topic=t")
    assert answer["error"] == (
        'line 1: ack: must be one of "memory", "written", "synced", and not \'never\'; line 1: max_atempts: unknown key'
    )
    assert answer["topic"] == synced
    assert nsqd.http("GET", "/stats?format=json").json["policy_error"] == answer["error"]
    assert b"\nnsqd_policy_file_valid 0\n" in nsqd.http("GET", "/metrics").body
    assert eventually(lambda: f"{answer['error']}; what it said before still holds" in nsqd.log)
    replace_and_wait(nsqd, file, '\n[[policy]]\nack = "memory"\n')
    answer = policy(nsqd, "topic=t")
    assert (answer["error"], answer["topic"]["ack"]["line"]) == ("", 2)
    assert b"\nnsqd_policy_file_valid 1\n" in nsqd.http("GET", "/metrics").body


def test_a_start_with_mistakes_is_refused_with_all_of_them(tmp_path: Path, file: Path) -> None:
    file.write_text('[[policy]]\nack = "never"\n\n[[policy]]\nmax_atempts = 3\n')
    done = run_to_end(f"--data-path={tmp_path}", f"--policy-file={file}")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        f'failed to read policy file {file} - line 1: ack: must be one of "memory", "written", "synced", '
        "and not 'never'; line 4: max_atempts: unknown key"
    )


def synced_at_once(nsqd: Nsqd, numbers: Iterator[int]) -> bool:
    """Publish, and return whether the message was synced when the OK came."""
    number = next(numbers)
    nsqd.post("/pub?topic=t", b"x")
    return bool(nsqd.http("GET", "/topic/log?topic=t").json["next"] == number)


def test_the_acknowledgement_of_a_topic_changes_while_nsqd_runs(start_nsqd: StartNsqd, file: Path) -> None:
    file.write_text('[[policy]]\nack = "memory"\n')
    nsqd = start_nsqd(f"policy-file={file}", "topic-ack=t=synced", "sync-timeout=1h", "sync-every=1000000")
    numbers = iter(range(1, 10_000))
    assert not all(synced_at_once(nsqd, numbers) for _ in range(20))  # the file takes precedence over the option
    replace_and_wait(nsqd, file, '[[policy]]\ntopic = "t"\nack = "synced"\n')
    assert eventually(lambda: synced_at_once(nsqd, numbers))
    assert all(synced_at_once(nsqd, numbers) for _ in range(20))
    nsqd.restart()
    assert all(synced_at_once(nsqd, numbers) for _ in range(20))


def test_the_retention_of_a_topic_changes_while_nsqd_runs(start_nsqd: StartNsqd, file: Path) -> None:
    keeping = '[[policy]]\ntopic = "t"\nretention_time = "7d"\n'
    file.write_text(keeping)
    nsqd = start_nsqd(f"policy-file={file}", "max-bytes-per-file=2000")

    def first() -> int:
        return int(nsqd.http("GET", "/topic/log?topic=t").json["first"])

    with nsqd.connect() as client:
        client.subscribe("t", ready=100)
        for _ in range(3):
            client.publish("t", *[bytes(900)] * 10)
            client.finish(*client.messages(10))
        assert eventually(lambda: nsqd.channel("t")["depth"] + nsqd.channel("t")["in_flight_count"] == 0)
    nsqd.restart()  # ages are told by the files now
    assert first() == 0
    replace_and_wait(nsqd, file, '[[policy]]\ntopic = "t"\nretention_bytes = "10GB"\n')
    replace_and_wait(nsqd, file, keeping)  # a time comes to hold while nsqd runs
    nsqd.post("/pub?topic=t", b"x")
    assert first() == 0
    replace_and_wait(nsqd, file, '[[policy]]\ntopic = "t"\nretention_time = "0s"\n')
    assert eventually(lambda: first() > 0)
