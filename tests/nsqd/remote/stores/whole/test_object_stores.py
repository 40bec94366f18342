"""One suite for all object stores: the one in memory, a folder, S3 by moto, and in the long form Ceph and Azurite.

The store in memory stands in for the others elsewhere, so it has to behave as they do.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from io import StringIO
from random import Random
from threading import Barrier
from uuid import uuid4

import pytest

from nsqd.remote.check import CheckVerdict, StoreCheck
from nsqd.remote.cli import NOT_CHECKED, USABLE, main
from nsqd.remote.location import parse_location
from nsqd.remote.object_store import LIST_LIMIT, Created, ObjectStore, StoreFault
from nsqd.remote.stores.opening import open_store
from tests.support.engines import BUCKET, KEY, SECRET, Azurite, Ceph, arguments
from tests.support.lengths import IS_LONG, sized
from tests.support.lying_s3 import CarelessS3, ContraryS3, ForgetfulS3, HonestS3
from tests.support.needs import faketime, need
from tests.support.object_stores import MemoryStore, Objects
from tests.support.process import ROOT
from tests.support.s3 import S3Server

ENGINES = ["memory", "folder", "moto", *sized(short=[], long=["ceph", "azurite"])]
WITH_URL = [it for it in ENGINES if it != "memory"]
SERVERS = [it for it in WITH_URL if it != "folder"]
QUICK = sized(short=["memory", "folder"], long=ENGINES)  # at which a thousand requests take no time
WRITERS = 8
RACES = sized(short=8, long=200)
ROUNDS = sized(short="8", long="200")


@dataclass(frozen=True, slots=True)
class Place:
    """An empty part of a store. Each call of `open` makes a client of its own."""

    url: str
    options: Mapping[str, str]
    open: Callable[[], ObjectStore]


def s3(url: str, **options: str) -> Place:
    keys = {"access_key_id": KEY, "secret_access_key": SECRET, **options}
    return Place(url, keys, partial(open_store, parse_location(url), keys))


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Place]]:
    need("obstore")
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield lambda: s3(server.new_uri("nsq"), endpoint=server.endpoint)


@pytest.fixture(scope="module")
def ceph() -> Iterator[Callable[[], Place]]:
    need("obstore")
    with Ceph() as server:
        yield lambda: s3(f"s3://{BUCKET}/nsq-{uuid4().hex}", endpoint=server.endpoint)


@pytest.fixture(scope="module")
def azurite() -> Iterator[Callable[[], Place]]:
    need("obstore")
    with Azurite() as server:

        def new_place() -> Place:
            url = f"az://{BUCKET}/nsq-{uuid4().hex}"
            return Place(url, server.options, partial(open_store, parse_location(url), server.options))

        yield new_place


@pytest.fixture(scope="module")
def memory() -> Callable[[], Place]:
    return lambda: Place("", {}, partial(MemoryStore, Objects()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Place]:
    def new_place() -> Place:
        url = tmp_path_factory.mktemp("store").as_uri()
        return Place(url, {}, partial(open_store, parse_location(url), {}))

    return new_place


@pytest.fixture(params=ENGINES)
def place(request: pytest.FixtureRequest) -> Place:
    new_place: Callable[[], Place] = request.getfixturevalue(request.param)
    return new_place()


@pytest.fixture
def store(place: Place) -> ObjectStore:
    return place.open()


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Place:
    new_place: Callable[[], Place] = request.getfixturevalue(request.param)
    return new_place()


NAME = "wal/0000000042-9f3c21ab7e5d0c44/00000017"


def test_a_name_is_created_once(store: ObjectStore) -> None:
    assert store.create(NAME, b"first") is Created.CREATED
    assert store.create(NAME, b"second") is Created.EXISTS
    assert store.create(NAME, b"first") is Created.EXISTS
    assert store.get(NAME) == b"first"


def test_an_object_may_come_in_pieces(store: ObjectStore) -> None:
    assert store.create(NAME, [b"head", b"", b"body" * 1000]) is Created.CREATED
    assert store.get(NAME) == b"head" + b"body" * 1000


def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    assert store.create(NAME, b"") is Created.CREATED
    assert store.get(NAME) == b""
    assert store.create(NAME, b"") is Created.EXISTS


def test_a_slot_of_the_largest_size(store: ObjectStore) -> None:
    data = os.urandom(8 << 20)
    assert store.create(NAME, data) is Created.CREATED
    assert store.get(NAME) == data


def test_what_is_absent_is_none(store: ObjectStore) -> None:
    assert store.get(NAME) is None
    store.create(NAME, b"")
    assert store.get("wal/0000000042-9f3c21ab7e5d0c44/00000018") is None
    assert store.get("node") is None
    assert store.get(NAME, 5, 10) == b""


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 3, b"012"),
        (3, 5, b"34"),
        (3, None, b"3456789"),
        (0, 10, b"0123456789"),
        (5, 100, b"56789"),
        (10, None, b""),
        (10, 20, b""),
        (11, 20, b""),
    ],
)
def test_a_part_of_an_object(store: ObjectStore, start: int, end: int | None, expected: bytes) -> None:
    store.create(NAME, b"0123456789")
    assert store.get(NAME, start, end) == expected


def test_deleted_objects_are_gone_and_the_others_stay(store: ObjectStore) -> None:
    names = [f"wal/7/{number}" for number in range(5)]
    for name in names:
        store.create(name, b"")
    store.delete([])
    store.delete([names[0], "wal/9/1", "never", *names[2:4]])
    assert [it for it in names if store.get(it) is not None] == [names[1], names[4]]
    store.delete(names)
    store.delete(names)
    assert store.list("") == []
    assert store.create(names[0], b"again") is Created.CREATED


def test_a_list_is_sorted_and_goes_on_after_a_name(store: ObjectStore) -> None:
    names = sorted(["gone/7", "gone/70", "gone-by", "gone.x", "goner/1", "node", "wal/7/2", "wal/7/10", "wal/7-2/1"])
    for name in reversed(names):
        store.create(name, b"")
    assert store.list("") == names
    assert [store.list("", after=it) for it in ("", "gone-by", "gone/7", "h", "wal/7/2", "z")] == [
        [it for it in names if it > after] for after in ("", "gone-by", "gone/7", "h", "wal/7/2", "z")
    ]
    assert store.list("gone/") == ["gone/7", "gone/70"]
    assert store.list("gone/", after="gone/7") == ["gone/70"]
    assert store.list("wal/7/") == ["wal/7/10", "wal/7/2"]
    assert store.list("none/") == []


@pytest.mark.parametrize("place", QUICK, indirect=True)
def test_a_long_list_comes_in_parts(place: Place) -> None:
    names = [f"gone/{number:04}" for number in range(LIST_LIMIT + 5)]
    store = place.open()
    with ThreadPoolExecutor(WRITERS) as threads:
        assert {*threads.map(lambda name: store.create(name, b""), names)} == {Created.CREATED}
    assert store.list("gone/") == names[:LIST_LIMIT]
    assert store.list("gone/", after=names[LIST_LIMIT - 1]) == names[LIST_LIMIT:]
    store.delete(names)
    assert store.list("") == []


@pytest.mark.parametrize("place", WITH_URL, indirect=True)
def test_each_node_has_a_part_of_its_own(place: Place) -> None:
    location = parse_location(place.url)
    one, other = (open_store(location, place.options, node=name) for name in ("nsqd-1", "nsqd-2"))
    assert other.list("") == []
    assert one.get("hint") is None
    assert one.create("node", b"1") is Created.CREATED
    assert other.create("node", b"2") is Created.CREATED
    assert (one.get("node"), other.get("node")) == (b"1", b"2")
    assert (one.list(""), place.open().list("")) == (["node"], ["nsqd-1/node", "nsqd-2/node"])


def test_the_hint_is_overwritten(store: ObjectStore) -> None:
    store.overwrite("hint", b"7")
    store.overwrite("hint", b"8")
    assert store.get("hint") == b"8"
    assert store.create("hint", b"9") is Created.EXISTS


def test_of_writers_that_race_for_a_name_one_wins_and_all_read_its_object(place: Place) -> None:
    stores = [place.open() for _ in range(WRITERS)]
    contents = [b"%d" % number * 1000 for number in range(WRITERS)]
    start = Barrier(WRITERS)

    def write(number: int, name: str) -> tuple[Created, bytes | None]:
        start.wait()
        return stores[number].create(name, contents[number]), stores[number].get(name)

    with ThreadPoolExecutor(WRITERS) as threads:
        for race in range(RACES):
            found = [*threads.map(write, range(WRITERS), [f"wal/7/{race:08}"] * WRITERS)]
            winners = [contents[number] for number, (answer, _) in enumerate(found) if answer is Created.CREATED]
            assert len(winners) == 1
            assert {content for _, content in found} == {*winners}
            assert [answer for answer, _ in found].count(Created.EXISTS) == WRITERS - 1


def check(url: str, options: Mapping[str, str]) -> tuple[int, str, str]:
    out, err = StringIO(), StringIO()
    return (
        main(["check", url, *arguments(options), "--rounds", ROUNDS], out=out, err=err),
        out.getvalue(),
        err.getvalue(),
    )


@pytest.mark.parametrize("place", WITH_URL, indirect=True)
def test_nsqd_remote_check_proves_the_store_and_leaves_nothing(place: Place) -> None:
    status, out, err = check(place.url, place.options)
    assert (status, out.splitlines()[-1]) == (USABLE, f"{place.url} can be used with --remote"), (out, err)
    assert "REFUSED" not in out
    assert place.open().list("") == []


@pytest.mark.needs("obstore")
@pytest.mark.parametrize(
    ("kind", "lies"),
    [
        (HonestS3, []),
        (CarelessS3, ["exists", "race"]),
        (ForgetfulS3, ["create", "exists", "fresh", "delete", "hint", "race"]),
        (ContraryS3, ["create", "exists", "fresh", "delete", "list", "race"]),
    ],
)
def test_a_server_that_lies_is_refused(kind: type[CarelessS3], lies: list[str]) -> None:
    with kind() as server:
        place = s3(f"s3://{BUCKET}/nsq", endpoint=server.url, skip_signature="true")
        checked = StoreCheck(
            lambda on_unknown: place.open(), random=Random(1), clock=lambda: 0.0, pause=lambda seconds: None, rounds=2
        )
        assert [it.subject for it in checked.run(is_short=True) if it.verdict is CheckVerdict.REFUSED] == lies


def test_a_missing_bucket_has_one_line(server: Place) -> None:
    url = server.url.replace(f"//{BUCKET}/", "//nonesuch/")
    status, _, err = check(url, server.options)
    assert status == NOT_CHECKED
    assert err.startswith(
        f"nsqd remote check: {url}: there is no {'container' if url.startswith('az') else 'bucket'} of"
    )
    assert err.count("\n") == 1
    store = open_store(parse_location(url), server.options)
    for request in (lambda: store.get("x"), lambda: store.list(""), lambda: store.delete(["x"])):
        with pytest.raises(StoreFault, match="there is no"):
            request()


if IS_LONG:  # moto accepts any credentials and any time

    @pytest.mark.parametrize(
        ("server", "changed", "text"),
        [
            (
                "ceph",
                {"access_key_id": "who"},
                "the store doesn't know this access key: correct AWS_ACCESS_KEY_ID (InvalidAccessKeyId)",
            ),
            (
                "ceph",
                {"secret_access_key": "what"},
                "the secret key is wrong: correct AWS_SECRET_ACCESS_KEY (SignatureDoesNotMatch)",
            ),
            ("azurite", {"account_key": "d3Jvbmc="}, "the account's key or token is wrong (AuthorizationFailure: "),
        ],
        indirect=["server"],
    )
    def test_wrong_credentials_have_one_line(server: Place, changed: Mapping[str, str], text: str) -> None:
        status, _, err = check(server.url, {**server.options, **changed})
        assert status == NOT_CHECKED
        assert err.startswith(f"nsqd remote check: {server.url}: {text}")
        assert err.count("\n") == 1

    @pytest.mark.parametrize("offset", ["+1h", "-1h"])
    def test_a_clock_that_is_off_by_an_hour_has_one_line(ceph: Callable[[], Place], offset: str) -> None:
        need("libfaketime")
        place = ceph()
        words = [sys.executable, "-m", "nsqd", "remote", "check", place.url, *arguments(place.options)]
        environ = {**os.environ, "LD_PRELOAD": str(faketime(threads=True)), "FAKETIME": offset}
        done = subprocess.run(words, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (
            NOT_CHECKED,
            f"nsqd remote check: {place.url}: the store refuses requests because this machine's clock is off: "
            "set it, by NTP for example (RequestTimeTooSkewed)\n",
        )
