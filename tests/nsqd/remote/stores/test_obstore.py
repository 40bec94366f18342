"""Every answer of a server, as obstore hands it on: see `tests/nsqd/remote/whole` for real stores."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from threading import Event
from typing import Any
from urllib.parse import urlsplit

import pytest

from nsqcommon.startup import StartupError
from nsqd.remote.location import parse_location
from nsqd.remote.object_store import Created, ObjectStore, StoreFault, StoreFaultKind
from nsqd.remote.pacing import LARGE
from nsqd.remote.stores.opening import open_store
from tests.support.http_server import HttpServer, Reply, Request

pytestmark = pytest.mark.needs("obstore")

KEYS = {"access_key_id": "tests", "secret_access_key": "secret"}


class Server(HttpServer):
    """Answers each request with `reply_with`, as S3 does."""

    def __init__(self) -> None:
        super().__init__()
        self.reply_with: Callable[[Request], Reply] = lambda request: Reply(200, headers={"ETag": '"1"'})

    def reply(self, request: Request) -> Reply:
        return self.reply_with(request)

    def always(self, status: int, code: str = "", headers: Mapping[str, str] | None = None) -> None:
        body = f"<Error><Code>{code}</Code><Message></Message></Error>".encode() if code else b""
        self.reply_with = lambda request: Reply(status, body, headers or {})


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as it:
        yield it


@pytest.fixture
def faults() -> list[StoreFault]:
    return []


@pytest.fixture
def store(server: Server, faults: list[StoreFault]) -> ObjectStore:
    options = {"endpoint": server.url, "timeout": "300ms", **KEYS}
    return open_store(parse_location("s3://lake/nsq"), options, on_unknown=faults.append)


def lose_answers(request: Request) -> Reply:
    raise OSError


@pytest.mark.parametrize(
    ("status", "code", "expected", "kind"),
    [
        (200, "", Created.CREATED, None),
        (412, "PreconditionFailed", Created.EXISTS, None),
        (409, "ConditionalRequestConflict", Created.EXISTS, None),  # a `get` finds out that there is nothing
        (400, "ExpiredToken", Created.UNKNOWN, StoreFaultKind.DENIED),
        (401, "", Created.UNKNOWN, StoreFaultKind.DENIED),
        (403, "AccessDenied", Created.UNKNOWN, StoreFaultKind.DENIED),
        (403, "RequestTimeTooSkewed", Created.UNKNOWN, StoreFaultKind.CLOCK),
        (404, "NoSuchBucket", Created.UNKNOWN, StoreFaultKind.MISSING),
        (429, "", Created.UNKNOWN, StoreFaultKind.BUSY),
        (500, "InternalError", Created.UNKNOWN, StoreFaultKind.OTHER),
        (502, "", Created.UNKNOWN, StoreFaultKind.OTHER),
        (503, "SlowDown", Created.UNKNOWN, StoreFaultKind.BUSY),
        (504, "", Created.UNKNOWN, StoreFaultKind.OTHER),
    ],
)
def test_an_answer_to_create(
    server: Server,
    store: ObjectStore,
    faults: list[StoreFault],
    status: int,
    code: str,
    expected: Created,
    kind: StoreFaultKind | None,
) -> None:
    server.always(status, code, {"ETag": '"1"'})
    assert store.create("wal/7/00000001", b"slot") is expected
    assert [it.kind for it in faults] == [kind] * (kind is not None)
    assert len(server.requests) == 1  # the library repeats nothing


def test_create_sends_all_bytes_at_once_and_only_if_there_is_no_object(server: Server, store: ObjectStore) -> None:
    store.create("wal/7/00000001", [b"header", b"", b"x" * (8 << 20)])
    [request] = server.requests
    assert (request.method, request.path) == ("PUT", "/lake/nsq/wal/7/00000001")
    assert request.headers["if-none-match"] == "*"
    assert len(request.body) == 6 + (8 << 20)


def test_the_environment_cannot_switch_the_condition_off(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    store = open_store(parse_location("s3://lake"), {"endpoint": server.url, **KEYS})
    assert store.create("x", b"") is Created.CREATED
    assert server.requests[0].headers["if-none-match"] == "*"


@pytest.fixture
def google(server: Server) -> ObjectStore:
    """Of the three clouds it is the one that no engine of the tests speaks for."""
    names = ("client_email", "private_key", "private_key_id")
    key = json.dumps({"gcs_base_url": server.url, "disable_oauth": True, **dict.fromkeys(names, "")})
    return open_store(parse_location("gs://lake/nsq"), {"service_account_key": key, "allow_http": "true"})


def test_google_gets_its_own_condition(server: Server, google: ObjectStore) -> None:
    assert google.create("x", b"slot") is Created.CREATED
    server.always(412, "PreconditionFailed")
    assert google.create("x", b"slot") is Created.EXISTS
    assert [(it.path, it.headers.get("x-goog-if-generation-match")) for it in server.requests] == [
        ("/lake/nsq%2Fx", "0"),
        ("/lake/nsq%2Fx", "0"),
    ]


def test_google_says_whether_an_object_is_missing_or_the_bucket(server: Server, google: ObjectStore) -> None:
    server.always(404, "NoSuchKey")
    assert google.get("x") is None
    google.delete(["x", "y"])
    server.always(404, "NoSuchBucket")
    with pytest.raises(StoreFault, match="there is no bucket of this name"):
        google.get("x")
    with pytest.raises(StoreFault, match="there is no bucket of this name"):
        google.delete(["x"])


def test_one_object_of_many_that_may_not_be_deleted(server: Server, store: ObjectStore) -> None:
    body = b"<DeleteResult><Error><Key>nsq/x</Key><Code>AccessDenied</Code><Message>No</Message></Error></DeleteResult>"
    server.reply_with = lambda request: Reply(200, body)
    with pytest.raises(StoreFault, match=r"these credentials don't allow it: .* \(AccessDenied\)"):
        store.delete(["x", "y"])


def test_no_answer_at_all(server: Server, store: ObjectStore, faults: list[StoreFault]) -> None:
    server.reply_with = lose_answers
    assert store.create("x", b"") is Created.UNKNOWN
    assert [str(it) for it in faults] == ["s3://lake/nsq: it broke the connection"]
    with pytest.raises(StoreFault, match="it broke the connection"):
        store.get("x")


def test_an_answer_that_does_not_come_in_time(server: Server, store: ObjectStore, faults: list[StoreFault]) -> None:
    done = Event()

    def hang(request: Request) -> Reply:
        done.wait()
        return Reply(200)

    server.reply_with = hang
    assert store.create("x", b"") is Created.UNKNOWN
    done.set()
    assert [str(it) for it in faults] == ["s3://lake/nsq: no answer in time"]


def test_nothing_listens(faults: list[StoreFault]) -> None:
    options = {"endpoint": "http://127.0.0.1:1", **KEYS}
    store = open_store(parse_location("s3://lake"), options, on_unknown=faults.append)
    assert store.create("x", b"") is Created.UNKNOWN
    assert [str(it) for it in faults] == ["s3://lake: nothing listens there: the connection was refused"]
    for request in (lambda: store.get("x"), lambda: store.delete(["x"]), lambda: store.list("")):
        with pytest.raises(StoreFault, match="the connection was refused"):
            request()
    with pytest.raises(StoreFault, match="the connection was refused"):
        store.overwrite("hint", b"")


@pytest.mark.parametrize("status", [403, 500, 503])
def test_a_get_that_the_store_cannot_answer_finds_nothing_out(server: Server, store: ObjectStore, status: int) -> None:
    server.always(status)
    with pytest.raises(StoreFault):
        store.get("x")


def test_a_404_of_something_else_is_no_answer(server: Server, store: ObjectStore) -> None:
    """A node that took a proxy's 404 for "never written" would believe in a log that is empty."""
    server.always(404)
    with pytest.raises(StoreFault, match="this is no answer of an object store"):
        store.get("x")
    server.always(404, "NoSuchKey")
    assert store.get("x") is None


def test_a_store_that_lists_in_no_order(server: Server) -> None:
    """As buckets of S3 Express do."""
    entry = "<Contents><Key>nsq/{}</Key><LastModified>2026-01-02T03:04:05Z</LastModified><Size>1</Size></Contents>"
    body = "".join(map(entry.format, "cab")).join(("<ListBucketResult>", "</ListBucketResult>"))
    server.reply_with = lambda request: Reply(200, body.encode())
    store = open_store(parse_location("s3://lake--x-s3/nsq"), {"endpoint": server.url, **KEYS})
    assert store.list("") == ["a", "b", "c"]
    assert store.list("", after="a") == ["b", "c"]
    assert "start-after" not in server.requests[-1].arguments


def test_deleting_nothing_sends_nothing(server: Server, store: ObjectStore) -> None:
    store.delete([])
    assert server.requests == []


@pytest.mark.parametrize(
    ("url", "options", "text"),
    [
        ("s3://lake", {"endpont": "x"}, r"^--remote=s3://lake: Configuration key: 'endpont' is not valid"),
        ("s3://lake", {"timeout": "5 parsecs"}, 'failed to parse "5 parsecs"'),
        ("s3://lake", {"bucket": "sea"}, "--remote-option=bucket: this belongs into the URL"),
        ("s3://lake", {"conditional_put": "disabled"}, "nsqd has to set this itself"),
        ("s3://lake", {"root_certificate": "/no/such/file"}, "No such file"),
        ("az://lake", {}, "Account must be specified"),
        ("gs://lake", {"service_account_path": "/no/such/file"}, "Unable to open service account file"),
    ],
)
def test_an_option_that_cannot_be_used(url: str, options: dict[str, str], text: str) -> None:
    with pytest.raises(StartupError, match=text):
        open_store(parse_location(url), options)


def test_an_endpoint_of_the_environment_may_be_http(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    assert open_store(parse_location("s3://lake"), KEYS).create("x", b"") is Created.CREATED
    assert urlsplit(server.requests[0].target).path == "/lake/x"


def test_small_requests_have_less_time_until_one_fails(server: Server) -> None:
    from obstore.store import S3Store

    from nsqd.remote.stores.obstore import ObstoreStore

    config: Any = {"endpoint": server.url, **KEYS}
    long, short = (
        S3Store(
            "lake",
            config=config,
            client_options={"allow_http": True, "user_agent": name},
            retry_config={"max_retries": 0},
        )
        for name in ("long", "short")
    )
    store = ObstoreStore(long, parse_location("s3://lake"), short=short)
    store.create("a", b"slot")
    store.create("b", [bytes(LARGE)])
    server.always(404, "NoSuchKey")
    assert store.get("a", 0, 10) is None
    server.always(500)
    for _ in range(2):
        assert store.create("c", b"slot") is Created.UNKNOWN
    for _ in range(2):
        with pytest.raises(StoreFault):
            store.get("d", 0, 10)
    assert [it.headers["user-agent"] for it in server.requests] == [
        *("short", "long", "short"),
        *("short", "long", "short", "long"),
    ]
