from __future__ import annotations

from collections.abc import Callable, Mapping
from io import StringIO
from pathlib import Path

import pytest

from nsqcommon.startup import StartupError
from nsqd.remote import cli
from nsqd.remote.cli import NOT_CHECKED, REFUSED, USABLE, main
from nsqd.remote.location import StoreLocation
from nsqd.remote.object_store import ObjectStore, OnUnknown, StoreFault, StoreFaultKind
from tests.support.object_stores import IgnoresCondition, MemoryStore, Objects

URL = "s3://lake/nsq"


def check(
    *arguments: str,
    kind: Callable[..., ObjectStore] = MemoryStore,
    url: str = URL,
    environ: Mapping[str, str] | None = None,
) -> tuple[int, list[str], str]:
    out, err = StringIO(), StringIO()
    objects = Objects()

    def open_store(location: StoreLocation, options: Mapping[str, str], *, on_unknown: OnUnknown) -> ObjectStore:
        return kind(objects, on_unknown=on_unknown)

    status = main(
        ["check", url, "--rounds=2", *arguments],
        out=out,
        err=err,
        environ={"AWS_ENDPOINT_URL": "http://127.0.0.1:9000"},
        open_store=open_store,
    )
    return status, out.getvalue().splitlines(), err.getvalue()


def test_a_store_that_can_be_used() -> None:
    status, lines, err = check()
    assert (status, err) == (USABLE, "")
    assert lines[0] == f"checking {URL} at 127.0.0.1 (addresses: 1), with 8 writers that choose one at random"
    assert lines[-1] == f"{URL} can be used with --remote"
    assert [line.split()[:2] for line in lines[1:4]] == [["ok", "create"], ["ok", "exists"], ["ok", "fresh"]]


def test_a_store_that_lies_is_refused_with_a_line_for_each_lie() -> None:
    status, lines, err = check(kind=IgnoresCondition)
    assert (status, err) == (REFUSED, "")
    assert [line for line in lines if line.startswith("REFUSED")] == [
        "REFUSED  exists   the second create of a name was accepted, too: this store ignores If-None-Match: *",
        "REFUSED  race     8 of 8 writers were the first to create one name, in race 1: with this store, two nsqds could own one log",
    ]
    assert lines[-1] == f"{URL} must not be used with --remote: acknowledged messages would be lost"


class Denies(MemoryStore):
    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes | None:
        raise StoreFault(f"{URL}: the secret key is wrong (SignatureDoesNotMatch)", StoreFaultKind.DENIED)


def test_a_store_that_does_not_let_us_in_has_one_line() -> None:
    status, lines, err = check(kind=Denies)
    assert (status, len(lines)) == (NOT_CHECKED, 1)
    assert err == f"nsqd remote check: {URL}: the secret key is wrong (SignatureDoesNotMatch)\n"


def raise_startup_error(objects: Objects, *, on_unknown: OnUnknown) -> MemoryStore:
    raise StartupError(f"--remote={URL} needs the library obstore: pip install '.[remote]', in a checkout of nsq-suite")


def raise_interrupt(objects: Objects, *, on_unknown: OnUnknown) -> MemoryStore:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (
            raise_startup_error,
            f"--remote={URL} needs the library obstore: pip install '.[remote]', in a checkout of nsq-suite",
        ),
        (raise_interrupt, "interrupted"),
    ],
)
def test_a_check_that_cannot_be_made(kind: Callable[..., ObjectStore], text: str) -> None:
    status, _, err = check(kind=kind)
    assert (status, err) == (NOT_CHECKED, f"nsqd remote check: {text}\n")


def test_the_cost_is_that_of_the_intervals_that_are_asked_for() -> None:
    _, lines, _ = check("--remote-interval=250ms", "--remote-delay=10s")
    costs = [line.removeprefix("cost").strip() for line in lines if line.startswith("cost")]
    assert costs == [
        "idle: at most 259,200 GET a month, 0.10 $ at S3 Standard",
        "while there is something to store, a slot each 10s: at most 259,200 PUT a month, 1.30 $ at S3 Standard",
        "while publishers wait for it, a slot each 250ms: at most 10,368,000 PUT a month, 51.84 $ at S3 Standard",
    ]


def test_a_folder_costs_nothing(tmp_path: Path) -> None:
    _, lines, _ = check(url=f"file://{tmp_path}")
    assert lines[0] == f"checking file://{tmp_path}, with 8 writers on this machine"
    assert not [line for line in lines if line.startswith("cost")]


def test_progress_is_shown_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "PROGRESS_INTERVAL", 0.0)
    _, _, err = check()
    assert err == "race 1 of 2\nrace 2 of 2\n"


def test_a_host_that_no_one_knows_is_the_stores_to_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **named: object) -> None:
        raise OSError

    monkeypatch.setattr("socket.getaddrinfo", refuse)
    assert check()[1][0] == f"checking {URL} at 127.0.0.1"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["check", "https://lake"], "must be s3://BUCKET/PREFIX"),
        (["check", URL, "--remote-option=endpoint"], "must be NAME=VALUE"),
        (["check", URL, "--rounds=0"], "must be a number, 1 or more"),
        (["check", URL, "--remote-interval=0"], "must be > 0"),
        (["check"], "the following arguments are required: URL"),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_arguments_that_are_wrong(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == NOT_CHECKED
    assert text in capsys.readouterr().err


def test_a_refused_value_that_may_be_a_secret_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", URL, "--remote-option=AWS_SECRET_ACCESS_KEY=hunter2"]) == NOT_CHECKED
    said = capsys.readouterr().err
    assert "invalid value for flag -remote-option: must be NAME=VALUE" in said
    assert "hunter2" not in said


def test_help_says_what_is_checked_and_what_the_status_means(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--help"]) == 0
    said = capsys.readouterr().out
    for text in (
        "s3://BUCKET/PREFIX",
        "--remote-option NAME=VALUE",
        "exit status:",
        "  1          the store doesn't keep",
    ):
        assert text in said
