"""The options of one worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsqcommon.options import parse
from nsqcommon.startup import StartupError
from nsqd.options import Options
from nsqd.workers.settings import check_addresses, worker_options
from nsqd.workers.supervisor import command_of


def test_a_worker_has_everything_that_two_nsqds_cannot_share() -> None:
    whole = Options(workers=3, worker=2, data_path="/d", node_id=7, broadcast_tcp_port=80, remote_name="orders")
    options = worker_options(whole, starts_again=False)
    assert options.data_path == "/d/worker-2"
    assert (options.tcp_address, options.http_address) == ("0.0.0.0:4350", "0.0.0.0:4351")
    assert options.https_address == "0.0.0.0:4352"
    assert (options.broadcast_tcp_port, options.broadcast_http_port) == (280, 0)
    assert options.node_id == 9
    assert options.remote_name == "orders-2"
    assert options.log_prefix == "[nsqd] worker-2: "


def test_a_data_path_is_taken_over_at_the_first_start_only() -> None:
    whole = Options(workers=1, worker=0, take_over=True)
    assert worker_options(whole, starts_again=False).take_over
    assert not worker_options(whole, starts_again=True).take_over


def test_the_port_of_https_counts_only_with_a_certificate() -> None:
    check_addresses(Options(workers=2, https_address="0.0.0.0:4250"))
    with pytest.raises(StartupError, match="--https-address of worker-0 and --tcp-address of worker-1"):
        check_addresses(Options(workers=2, https_address="0.0.0.0:4250", tls_cert="c"))


def test_the_command_of_a_worker_is_the_supervisors_with_its_number() -> None:
    original = ["python", "-P", "-m", "nsqd", "--config", "f"]
    command = command_of(1, workers=2, argv=["/x/nsqd/__main__.py", "--config", "f"], original=original)
    assert command[1:] == ["-P", "-m", "nsqd", "--worker=1", "--workers=2", "--config", "f"]
    original = ["python", "/bin/nsqd", "--workers=2"]
    command = command_of(0, workers=2, argv=["/bin/nsqd", "--workers=2"], original=original)
    assert command[1:] == ["/bin/nsqd", "--worker=0", "--workers=2", "--workers=2"]


def test_a_file_with_another_number_of_workers_does_not_keep_a_worker_from_starting(tmp_path: Path) -> None:
    file = tmp_path / "nsqd.toml"
    file.write_text("workers = 1\n")
    argv = ["nsqd", f"--config={file}"]
    command = command_of(2, workers=3, argv=argv, original=["python", *argv])
    options = parse(Options, command[2:], {"NSQD_WORKERS": "2"}, "nsqd")
    assert (options.worker, options.workers) == (2, 3)
