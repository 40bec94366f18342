"""Messages on their way to a viewer: decoded, masked and searched, and what users without `payload` never get."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from time import process_time, sleep
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from nsqadmin.access import ALL_RIGHTS, Identity, Right, Role
from nsqadmin.decoding.decoders import Decoders
from nsqadmin.messages.filters import parse_filter
from nsqadmin.messages.looking import Looking
from nsqadmin.messages.masking import Masking, parse_masks
from nsqadmin.messages.model import Message, Page, SearchResult, message_json
from nsqadmin.messages.searching import Search
from tests.nsqadmin.decoding.decoders_files import write_decoders
from tests.nsqadmin.histories import Histories, History
from tests.support import shop

RULE = """
[[decoder]]
topic = "t"
decode = "protobuf"
descriptors = "shop.desc"
message = "shop.Order"
"""
ALL = Identity(roles=(ALL_RIGHTS,))
MASKED = Identity(user="eve", roles=(Role(name="viewer", can=frozenset((Right.VIEW,)), users=("eve",)),))
MASKS = parse_masks(["$.customer.email", "$.items.*.sku", r"\d{16}"])
MSGPACK = {"content-type": "application/msgpack"}
CARD = "4929000000000001"
SECRET = shop.protobuf_order(7, card=CARD, photo=CARD.encode(), items=[{"sku": "tea"}], rate=0.5)


@pytest.fixture(scope="module")
def protobuf(tmp_path_factory: pytest.TempPathFactory) -> Decoders:
    return Decoders(write_decoders(tmp_path_factory.mktemp("decoders"), RULE))


def search(cluster: Histories, wanted: str = "", identity: Identity = ALL, **more: Any) -> SearchResult:
    asked = Search(topic="t", wanted=parse_filter(wanted), identity=identity, **{"limit": 100, "seconds": 30.0, **more})

    async def run() -> SearchResult:
        return await cluster.searcher.search(cluster.picture, asked)

    return trio.run(run)


def page(cluster: Histories, identity: Identity = ALL, wanted: str = "", limit: int = 100) -> Page:
    async def run() -> Page:
        return await cluster.reader().page(
            cluster.picture, "t", identity=identity, wanted=parse_filter(wanted), place="latest", limit=limit
        )

    return trio.run(run)


def sequences(found: SearchResult | Page) -> list[int | None]:
    return [it.sequence for it in found.messages]


def texts(found: SearchResult | Page) -> str:
    """Return all that an API or a page could show of these messages."""
    forms = [json.dumps(message_json(it, most=None, raw=raw)) for it in found.messages for raw in (False, True)]
    return "".join([repr(found), *forms])


def orders(count: int, every: int = 10) -> list[bytes]:
    return [shop.protobuf_order(it, "DE" if it % every == 0 else "FR") for it in range(count)]


# Searching


def test_a_search_finds_fields_of_protobuf_messages(protobuf: Decoders) -> None:
    found = search(Histories(protobuf, n1=History(orders(1200, every=400))), "customer.country = DE")
    assert sequences(found) == [800, 400, 0]
    decoded = found.messages[0].decoded
    assert decoded is not None
    assert (decoded.how, json.loads(decoded.content or b"")["id"]) == ("Protobuf shop.Order", 800)
    assert found.messages[0].body == shop.protobuf_order(800)
    assert sequences(search(Histories(protobuf, n1=History(orders(30))), "ada7@SHOP")) == [7]
    assert sequences(page(Histories(protobuf, n1=History(orders(30))), wanted="id >= 28")) == [28, 29]


def test_three_thousand_protobuf_messages_are_searched_in_a_fraction_of_the_limit(protobuf: Decoders) -> None:
    cluster = Histories(protobuf, n1=History(orders(3000, every=1000)))
    began = process_time()
    found = search(cluster, "customer.country = DE and id > 5")
    assert sequences(found) == [2000, 1000]
    assert found.is_whole
    assert process_time() - began < 2.0  # 30 s is the limit of a search; 40,000 may take 5 s


def test_messages_come_out_in_their_order_whichever_of_them_are_decoded() -> None:
    bodies = [b"%d" % it if it % 3 else gzip.compress(b"%d" % it) for it in range(700)]

    async def run() -> list[int]:
        looking = Looking[int](Decoders(), Masking(), ALL, "t", parse_filter(""))
        ready = []
        for at, body in enumerate(bodies):
            headers = {} if at % 3 else {"content-encoding": "gzip"}
            ready += await looking.add(at, message(body, headers))
            ready += await looking.add(at, None) if at % 50 == 0 else []
        ready += await looking.rest()
        assert [int(it.message.readable or b"") for it in ready if it.message is not None] == list(range(700))
        return [it.of for it in ready]

    assert sorted(found := trio.run(run)) == found


def test_a_look_that_was_cancelled_goes_on_where_it_was(protobuf: Decoders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsqadmin.messages.looking.SLICE", 0.0)  # each message has a turn of its own
    in_thread, turns, scope = protobuf.in_thread, 0, trio.CancelScope()

    async def cancelling(work: Callable[[], Any]) -> Any:
        nonlocal turns
        done = await in_thread(work)
        turns += 1
        if turns % 10 == 0:
            scope.cancel()
        return done

    monkeypatch.setattr(protobuf, "in_thread", cancelling)

    async def run() -> list[int]:
        nonlocal scope
        looking = Looking[int](protobuf, Masking(), ALL, "t", parse_filter(""))
        for at in range(400):
            assert await looking.add(at, message(SECRET)) == []
        for _ in range(3):
            with trio.CancelScope() as scope:
                await looking.rest()
            assert scope.cancelled_caught
        assert turns == 30
        return [it.of for it in await looking.rest()]

    assert trio.run(run) == list(range(400))


def test_a_message_whose_headers_do_not_match_is_not_decoded(protobuf: Decoders) -> None:
    cluster = Histories(protobuf, n1=History([b"\xff"] * 5, headers={"job-id": "a"}))
    assert sequences(search(cluster, "header.job-id = b")) == []
    assert sequences(search(cluster, "header.job-id = a")) == [4, 3, 2, 1, 0]


# Bodies that don't fit


def test_a_body_that_does_not_fit_says_why_and_is_shown_as_it_is(protobuf: Decoders) -> None:
    (one,) = page(Histories(protobuf, n1=History([b"\x1a\x05te"]))).messages
    assert message_json(one, most=None)["not_decoded"] == (
        "Protobuf shop.Order: field 3 (items) has 5 bytes, of which only 2 are there, at byte 1"
    )
    assert (one.readable, message_json(one, most=None)["body"]) == (b"\x1a\x05te", "\x1a\x05te")


def test_a_content_type_that_needs_a_rule_says_so() -> None:
    cluster = Histories(n1=History([SECRET], headers={"content-type": "application/x-protobuf"}))
    (one,) = page(cluster).messages
    assert "name it for this topic in the decoders file" in message_json(one, most=None)["not_decoded"]


def test_the_bodies_of_a_page_have_a_time_together(protobuf: Decoders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsqadmin.messages.looking._MOST_SECONDS", -1.0)
    (one,) = page(Histories(protobuf, n1=History(orders(1)))).messages
    assert "the other bodies have taken" in message_json(one, most=None)["not_decoded"]
    assert sequences(search(Histories(protobuf, n1=History(orders(1))), "customer.country = DE")) == [0]


def test_the_decoded_bodies_of_a_page_have_a_size_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand bytes of gzip may become six million of JSON, and a page has hundreds of messages."""
    monkeypatch.setattr("nsqadmin.messages.looking._MOST_DECODED", 5 << 20)
    body = gzip.compress(msgspec.msgpack.encode("\x01" * (1 << 19)))  # 3 MiB of JSON
    packed = History([body] * 4, headers={**MSGPACK, "content-encoding": "gzip"})
    whole = page(Histories(n1=packed)).messages
    assert [len(it.decoded.content or b"") >> 20 for it in whole if it.decoded is not None] == [3, 0, 0, 0]
    assert "because the other bodies have more than 5 MiB" in message_json(whole[1], most=None)["not_decoded"]
    assert sequences(search(Histories(n1=packed), "u0001")) == [3, 2, 1, 0], "a hit is a hit"
    for masked in (page(Histories(None, parse_masks(["x"]), n1=packed), MASKED).messages,):
        assert [it.readable is None for it in masked] == [False, True, True, True]


def test_a_search_among_slow_bodies_goes_on_and_blames_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    built = Decoders.built

    def slowly(decoders: Decoders, choice: Any) -> Any:
        sleep(0.03)
        return built(decoders, choice)

    monkeypatch.setattr("nsqadmin.messages.looking.SLICE", 0.0)
    monkeypatch.setattr(Decoders, "built", slowly)
    bodies = [b'{"a":1}', *[b'{"a":0}'] * 15, b'{"a":1}']
    cluster = Histories(n1=History([gzip.compress(it) for it in bodies], headers={"content-encoding": "gzip"}))
    found: list[int | None] = []
    cursor, goes_on, steps = "", True, 0
    while goes_on:
        step = search(cluster, "a = 1", seconds=0.1, cursor=cursor)
        assert step.silent == ()
        assert step.cursor != cursor
        found += sequences(step)
        cursor, goes_on, steps = step.cursor, step.goes_on, steps + 1
    assert found == [16, 0]
    assert steps > 1


def test_hostile_bodies_let_other_tasks_run(protobuf: Decoders) -> None:
    hostile = [b"\x1a\x00" * 400_000, b"\x0a" * 800_000, gzip.compress(bytes(1 << 20)), b"\x7a\x7f" * 300_000]

    async def run() -> float:
        longest = 0.0

        async def watch() -> None:
            nonlocal longest
            while True:
                before = trio.current_time()
                await trio.sleep(0.001)
                longest = max(longest, trio.current_time() - before)

        looking = Looking[None](protobuf, Masking(), ALL, "t", parse_filter(""))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            seen = []
            for at in range(8):
                seen += await looking.add(None, message(hostile[at % 4]))
            seen += await looking.rest()
            nursery.cancel_scope.cancel()
        assert len(seen) == 8
        assert all(it.message is not None and it.message.decoded and it.message.decoded.problem for it in seen)
        return longest

    assert trio.run(run) < 1.0  # some hundredths of a second; a busy machine takes longer


# What users without the right never get


def test_without_the_right_a_decoded_body_is_masked(protobuf: Decoders) -> None:
    cluster = Histories(protobuf, MASKS, n1=History([SECRET], headers={"card": CARD}))
    (one,) = page(cluster, MASKED).messages
    assert one.body is None
    assert one.is_masked
    found = json.loads(one.readable or b"")
    assert found["customer"] == {"name": "Ada", "email": "***", "country": "DE"}
    assert (found["items"], found["card"], found["photo"]) == ([{"sku": "***", "price": 0.0}], "***", "***")
    shown = texts(page(cluster, MASKED))
    for secret in (CARD, "ada7@", "tea", "NDkyOTAw", SECRET.hex()):
        assert secret not in shown
    assert CARD in texts(page(cluster))


@pytest.mark.parametrize(
    "wanted",
    [
        "customer.email = ada7@shop.example",
        "ada7@shop",
        CARD,
        f"card = {CARD}",
        "items.0.sku = tea",
        "photo = NDkyOTAwMDAwMDAwMDAwMQ==",
        "NDkyOTAw",
        f"header.card = {CARD}",
    ],
)
def test_without_the_right_a_search_is_no_oracle(protobuf: Decoders, wanted: str) -> None:
    cluster = Histories(protobuf, MASKS, n1=History([SECRET], headers={"card": CARD}))
    assert sequences(search(cluster, wanted)) == [0]
    assert sequences(search(cluster, wanted, MASKED)) == []
    assert sequences(page(cluster, MASKED, wanted)) == []


def test_without_the_right_half_a_character_hides_no_page() -> None:
    bodies = [rb'{"customer": {"email": "ada7@shop.example"}, "half": "\ud800"}', b'{"a": 1}']
    found = page(Histories(None, MASKS, n1=History(bodies)), MASKED)
    assert sequences(found) == [0, 1]
    assert "ada7" not in texts(found)


def test_without_the_right_a_search_finds_what_is_shown(protobuf: Decoders) -> None:
    cluster = Histories(protobuf, MASKS, n1=History([SECRET]))
    assert sequences(search(cluster, "customer.country = DE", MASKED)) == [0]
    assert sequences(search(cluster, "customer.email = ***", MASKED)) == [0]


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (CARD.encode(), {}),  # no Protobuf, and text that an expression could mask
        (b'{"customer": {"email": "ada7@shop.example"}}', {}),
        (f'{{"card": "{CARD}", "email": "ada7@"}}'.encode(), MSGPACK),
    ],
)
def test_without_the_right_a_body_that_does_not_fit_is_hidden(
    protobuf: Decoders, body: bytes, headers: dict[str, str]
) -> None:
    cluster = Histories(Decoders() if headers else protobuf, MASKS, n1=History([body], headers=headers))
    (one,) = page(cluster, MASKED).messages
    assert one.readable is None
    shown = texts(page(cluster, MASKED))
    assert "does not fit" in shown
    assert "byte" not in shown.replace("bytes", "")
    assert not any(it in shown for it in (CARD, "ada7@", "email"))
    assert sequences(search(cluster, "ada7@", MASKED)) == []


def test_without_the_right_and_without_masks_nothing_is_shown(protobuf: Decoders) -> None:
    cluster = Histories(protobuf, n1=History([SECRET]))
    (one,) = page(cluster, MASKED).messages
    assert one.readable is None
    assert message_json(one, most=None)["body_withheld"] is True


def test_paths_mask_msgpack_and_packed_json_by_content_type() -> None:
    body = msgspec.msgpack.encode({"customer": {"email": "ada7@shop.example"}, "n": int(CARD)})
    cluster = Histories(None, MASKS, n1=History([body], headers=MSGPACK))
    assert json.loads(page(cluster).messages[0].readable or b"")["n"] == int(CARD)
    (one,) = page(cluster, MASKED).messages
    assert one.readable == b'{"customer": {"email": "***"}, "n": ***}'
    packed = gzip.compress(b'{"customer":{"email":"ada7@shop.example"}}')
    cluster = Histories(None, MASKS, n1=History([packed], headers={"content-encoding": "gzip"}))
    (one,) = page(cluster, MASKED).messages
    assert one.readable == b'{"customer": {"email": "***"}}'


# Downloads


def test_a_file_has_the_decoded_form_or_the_bytes(protobuf: Decoders) -> None:
    (one,) = page(Histories(protobuf, n1=History([b"\x08\xff\x01"]))).messages
    decoded, raw = message_json(one, most=None), message_json(one, most=None, raw=True)
    assert (json.loads(decoded["body"])["id"], decoded["decoded"]) == (255, "Protobuf shop.Order")
    assert "body_base64" not in decoded
    assert raw["body_base64"] == "CP8B"
    assert "decoded" not in raw
    assert message_json(one, most=9)["body"] == '{"id": 25'


def message(body: bytes, headers: dict[str, str] | None = None) -> Message:
    return Message(
        node="n1:4151", id="0" * 16, timestamp=1.0, size=len(body), body=body, sequence=1, headers=headers or {}
    )
