"""A small shop for tests of the palette, and users with some rights."""

from __future__ import annotations

from typing import Any

from nsqadmin.access import ALL_RIGHTS, Identity, Right, parse_roles
from nsqadmin.cluster.model import Finding, Health, Severity, Snapshot
from nsqadmin.diagnosis.incident_book import Book
from nsqadmin.palette.commands import Context
from nsqadmin.palette.index import Index
from nsqadmin.palette.results import Answer, find
from nsqadmin.parts.links import Links
from tests.support.picture import channel, channel_node, node, snapshot, topic

EVERYTHING = Identity(user="ana", roles=(ALL_RIGHTS,), can_publish=True)


def user(*rights: Right, topics: tuple[str, ...] = ("*",)) -> Identity:
    given = {"can": [it.value for it in rights], "topics": list(topics)}
    roles = parse_roles(f"[[role]]\nname = 'some'\nusers = ['ben']\ncan = {given['can']}\ntopics = {given['topics']}")
    return Identity(user="ben", roles=roles, can_publish=True)


def shop() -> Snapshot:
    """Return a snapshot with orders/billing, orders/fraud (paused, a problem), payments/ledger (buried) and three nodes."""
    stuck = Finding(
        rule="D5", severity=Severity.PROBLEM, verdict="stuck", advice="", topic="orders", channel="fraud", weight=9.0
    )
    return snapshot(
        topic(
            channel(topic="orders", name="billing"),
            channel(channel_node(paused=True), topic="orders", name="fraud"),
            name="orders",
        ),
        topic(channel(channel_node(buried_count=3), topic="payments", name="ledger"), name="payments"),
        nodes=(
            node("n1:4151"),
            node("n2:4151", draining=True),
            node("n3:4151", health=Health.DOWN, answered_at=1.0),
            node("go:4151", has_history=False),
        ),
        findings=(stuck,),
    )


def context(identity: Identity = EVERYTHING, picture: Snapshot | None = None, **more: Any) -> Context:
    picture = shop() if picture is None else picture
    book = Book()
    book.observe(picture)
    known = {"incidents": book.seen_by(identity)}
    return Context(snapshot=picture, identity=identity, links=Links("/nsq"), **{**known, **more})


def answer(text: str, identity: Identity = EVERYTHING, picture: Snapshot | None = None, **more: Any) -> Answer:
    within = context(identity, picture, **more)
    return find(Index(within.snapshot), within, text)


def commands(text: str, identity: Identity = EVERYTHING, **more: Any) -> list[str]:
    """Return the names of the commands that are offered."""
    return [it.name for it in answer(text, identity, **more).hits if it.kind == "command"]
