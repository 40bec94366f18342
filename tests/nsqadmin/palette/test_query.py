from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqadmin.palette.query import COMMAND_WORDS, Kind, Query, Verb, parse


@pytest.mark.parametrize(
    ("text", "verb", "kind", "names"),
    [
        ("pause billing", Verb.PAUSE, None, ("billing",)),
        ("  Pause   Billing ", Verb.PAUSE, None, ("Billing",)),
        ("resume billing", Verb.UNPAUSE, None, ("billing",)),
        ("purge x", Verb.EMPTY, None, ("x",)),
        ("pau billing", Verb.PAUSE, None, ("billing",)),
        ("pa billing", None, None, ("pa", "billing")),
        ("drain node n1:4151", Verb.DRAIN, Kind.NODE, ("n1:4151",)),
        ("pause channel", Verb.PAUSE, Kind.CHANNEL, ()),
        ("create topic Orders", Verb.CREATE, Kind.TOPIC, ("Orders",)),
        ("create orders/billing", Verb.CREATE, None, ("orders/billing",)),
        ("ack incident ledger", Verb.ACKNOWLEDGE, Kind.INCIDENT, ("ledger",)),
        ("go to jobs", Verb.GO, None, ("jobs",)),
        ("go to topic orders", Verb.GO, Kind.TOPIC, ("orders",)),
        ("topic orders", Verb.GO, Kind.TOPIC, ("orders",)),
        ("topics", None, None, ("topics",)),
        ("orders billing", None, None, ("orders", "billing")),
        ("", None, None, ()),
    ],
)
def test_a_text_is_a_command_and_its_object(
    text: str, verb: Verb | None, kind: Kind | None, names: tuple[str, ...]
) -> None:
    query = parse(text)
    assert (query.verb, query.kind, query.names) == (verb, kind, names)


@pytest.mark.parametrize(
    ("text", "message_id", "job_id"),
    [
        ("0d4c5e9b1f2a3b4c", "0d4c5e9b1f2a3b4c", ""),
        (" 0D4C5E9B1F2A3B4C ", "0d4c5e9b1f2a3b4c", ""),
        ("message 0D4C5E9B1F2A3B4C", "0d4c5e9b1f2a3b4c", ""),
        ("0d4c5e9b1f2a3b4", "", ""),
        ("0d4c5e9b1f2a3b4g", "", ""),
        ("\u0661" * 16, "", ""),
        ("6c1d6a3e-7c3c-4b6e-9a2e-1f2d3c4b5a69", "", "6c1d6a3e-7c3c-4b6e-9a2e-1f2d3c4b5a69"),
        ("6c1d6a3e7c3c4b6e9a2e1f2d3c4b5a69", "", "6c1d6a3e7c3c4b6e9a2e1f2d3c4b5a69"),
        ("job Order-17", "", "Order-17"),
    ],
)
def test_ids_are_known_by_their_form(text: str, message_id: str, job_id: str) -> None:
    query = parse(text)
    assert (query.message_id, query.job_id) == (message_id, job_id)


@pytest.mark.parametrize(
    ("text", "wanted", "where"),
    [
        ("order_id = 4711", "order_id = 4711", ()),
        ("order_id=4711 and total > 3 in Orders EU", "order_id=4711 and total > 3", ("orders", "eu")),
        ('note = "made in spain"', 'note = "made in spain"', ()),
        ('note = "made in spain" in topic orders', 'note = "made in spain"', ("orders",)),
        ("search timeout in orders", "timeout", ("orders",)),
        ("search timeout", "timeout", ()),
        ("orders in transit", "", ()),
    ],
)
def test_conditions_are_a_search_in_messages(text: str, wanted: str, where: tuple[str, ...]) -> None:
    query = parse(text)
    assert (query.wanted, query.where) == (wanted, where)


@given(st.text() | st.lists(st.sampled_from([*COMMAND_WORDS, *Kind, "in", "to", "a=1", '"', "x"])).map(" ".join))
def test_any_text_is_understood_somehow(text: str) -> None:
    query = parse(text)
    assert isinstance(query, Query)
    assert (query.text == "") == (not text[:500].split())
    assert set(query.objects) <= set(query.words)
