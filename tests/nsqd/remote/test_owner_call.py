"""What an owner is taken to say, by what answers at its address."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from nsqcommon.remote.slot import Claimant
from nsqd.remote.owner_call import OwnerAnswer, owner_answers, owner_says
from nsqd.remote.standby import OwnerSays

LIMIT = 100.0  # seconds for an answer that comes, on a busy machine


@contextmanager
def served(status: int, answer: object, readyz: str = "", *, paths: list[str] | None = None) -> Iterator[str]:
    asked = paths if paths is not None else []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            at_readyz = self.path.startswith("/readyz") and readyz
            body = readyz.encode() if at_readyz else json.dumps(answer).encode()
            self.send_response(503 if at_readyz else status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


RUNS_OF_OWNER = ["0000000007-00000000000000aa", "0000000008-00000000000000aa"]


@pytest.mark.parametrize(
    ("status", "answer", "expected"),
    [
        *((200, {"pid": 1, "boot": "here", "run": run}, OwnerAnswer.YES) for run in RUNS_OF_OWNER),
        (200, {"pid": 1, "boot": "here", "run": "0000000007-00000000000000bb"}, OwnerAnswer.NO),
        (200, {"pid": 1, "boot": "here"}, OwnerAnswer.NO),
        (200, ["something else"], OwnerAnswer.NO),
        (404, {"message": "NOT_FOUND"}, OwnerAnswer.NO),
        (403, {}, OwnerAnswer.GUARDED),
    ],
)
def test_another_process_may_have_the_address_of_the_owner(status: int, answer: object, expected: OwnerAnswer) -> None:
    owner = "00000000000000aa"
    with served(status, answer) as address:
        assert owner_answers(Claimant("host", 1, "here", address), owner) is expected
    assert owner_answers(Claimant("host", 1, "here", address), owner) is OwnerAnswer.NO, "it refuses connections now"
    assert owner_answers(Claimant("host", 1, "here"), owner) is OwnerAnswer.NO


OWNER = {"state": "owner", "run": RUNS_OF_OWNER[0], "fault": "", "behind_seconds": 30.0, "silent_seconds": 0.5}


@pytest.mark.parametrize(
    ("status", "answer", "readyz", "expected"),
    [
        (200, OWNER, "", OwnerSays.WELL),
        (200, OWNER | {"silent_seconds": 1.0}, "", OwnerSays.CUT_OFF),
        (200, OWNER | {"silent_seconds": None}, "", OwnerSays.WELL),
        (200, OWNER | {"run": "0000000007-00000000000000bb"}, "", OwnerSays.GONE),
        (200, {"state": "standby", "chain": {"run": RUNS_OF_OWNER[0]}}, "", OwnerSays.GONE),
        (404, {"message": "NO_REMOTE"}, "", OwnerSays.NOTHING),
        (401, {}, "OK", OwnerSays.WELL),
        (403, {}, "draining", OwnerSays.WELL),
        (403, {}, "standby", OwnerSays.GONE),
        (403, {}, "NOK - no space left on device", OwnerSays.WELL),
        (403, {}, "NOK - remote: the store doesn't answer", OwnerSays.NOTHING),
    ],
)
def test_an_owner_is_well_cut_off_or_gone(status: int, answer: object, readyz: str, expected: OwnerSays) -> None:
    with served(status, answer, readyz) as address:
        assert owner_says(Claimant("host", 1, "", address), "00000000000000aa", after=1.0, timeout=LIMIT) is expected


def test_an_owner_that_refuses_connections_is_gone_and_one_that_stands_still_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        owner = Claimant("host", 1, "", f"127.0.0.1:{frozen.getsockname()[1]}")
        assert owner_says(owner, "a", after=1.0, timeout=0.01) is OwnerSays.NOTHING
    assert owner_says(owner, "a", after=1.0, timeout=LIMIT) is OwnerSays.GONE
    assert owner_says(Claimant("host", 1, ""), "a", after=1.0, timeout=LIMIT) is OwnerSays.NOTHING


def test_a_standby_tells_the_owner_where_it_is() -> None:
    paths: list[str] = []
    with served(403, {}, "OK", paths=paths) as address:
        owner_says(Claimant("host", 1, "", address), "aa", after=1.0, timeout=LIMIT, standby="[::1]:4151")
        owner_says(Claimant("host", 1, "", address), "aa", after=1.0, timeout=LIMIT)
    assert paths == [
        *("/remote?standby=%5B%3A%3A1%5D%3A4151", "/readyz?standby=%5B%3A%3A1%5D%3A4151"),
        *("/remote", "/readyz"),
    ]
