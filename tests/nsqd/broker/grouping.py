"""A channel with rules about groups. A message `a1` is of group a, and one that begins with `-` is of no group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nsqcommon.wire.commands import fin, req
from nsqcommon.wire.headers import NONE, encode_headers
from nsqd.broker.channel import Channel
from nsqd.broker.groups import Groups
from nsqd.broker.rules import ChannelRules
from nsqd.log.store import DiskStore
from tests.nsqd.log.harness import OpenStore
from tests.support import node as node_module
from tests.support.fake_store import changes_in
from tests.support.given_rules import GivenRules
from tests.support.node import Client, Node

ORDER: dict[str, Any] = {"order": "group"}
SHARE: dict[str, Any] = {"share": "group"}
TWO: dict[str, Any] = {"max_in_flight_per_group": 2}


class Grouped:
    def __init__(self, *, channel: str = "c", **rules: Any) -> None:
        self.policy = GivenRules(ChannelRules(**rules))
        self.node = Node(policy=self.policy, mem_queue_size=1000)
        self.name = channel
        self.ids: dict[str, bytes] = {}
        self.attempts: dict[str, int] = {}
        self.sequences: dict[str, int] = {}
        self.node.broker.topic("t").channel(channel)

    @property
    def real(self) -> Channel:
        """The channel, as it is since the last crash."""
        return self.node.broker.topics["t"].channels[self.name]

    @property
    def groups(self) -> Groups:
        assert self.real.groups is not None
        return self.real.groups

    def publish(self, text: str, *, ttl: int = 0, **options: Any) -> None:
        """Publish these messages as one batch, in a turn of its own."""
        payload, offsets, headers = b"", [0], b""
        for word in text.split():
            self.sequences[word] = self.node.broker.topics["t"].log.tail + len(offsets) - 1
            payload += len(word).to_bytes(4, "big") + word.encode()
            offsets.append(len(payload))
            pairs = {"nsq-ttl": str(ttl)} if ttl else {}
            pairs |= {"nsq-group": word[0]} if word[0] != "-" else {}
            headers += encode_headers(pairs) if pairs else NONE
        self.node.broker.topics["t"].publish(payload, offsets, headers=headers, **options)
        self.node.turn()

    def consumer(self, ready: int = 10) -> Client:
        return self.node.consumer(channel=self.name, ready=ready)

    def got(self, client: Client) -> str:
        """Return the messages that the client has got since the last call."""
        bodies: list[str] = []
        for message in client.messages():
            bodies.append(message.body.decode())
            self.ids[bodies[-1]], self.attempts[bodies[-1]] = message.id, message.attempts
        return " ".join(bodies)

    def finish(self, client: Client, text: str) -> str:
        """Finish these messages at once. Return the messages that the client gets then."""
        client.say(b"".join(fin(self.ids[word]) for word in text.split()))
        return self.got(client)

    def requeue(self, client: Client, word: str, delay_ms: int = 0) -> str:
        client.say(req(self.ids[word], delay_ms))
        return self.got(client)

    def bury(self, client: Client, word: str) -> str:
        consumer = self.real.in_flight.owner(self.ids[word])
        assert consumer is not None
        assert self.real.bury(consumer, self.ids[word], "bad", self.node.now) is None
        self.node.turn()
        return self.got(client)

    def drain(self, client: Client, text: str = "") -> str:
        """Finish these messages, and then each one as soon as the client gets it. Return those, in order."""
        client.say(b"".join(fin(self.ids[word]) for word in text.split()))
        found: list[str] = []
        while words := self.got(client).split():
            found += words
            client.say(b"".join(fin(self.ids[word]) for word in words))
            self.node.load()
        return " ".join(found)

    def crash(self) -> None:
        """Let the process die after it has written the journal, and start again. The log has to be read then."""
        self.node.broker.record_progress()
        self.node.store.write_journal(force=True)
        self.node.crash()

    def rotate(self) -> None:
        """Begin a new journal."""
        self.node.broker.record_progress()
        self.node.store.write_journal(force=True)
        self.node.store.journal = [("snapshot", "t"), *changes_in(self.node.broker.snapshot_topic("t"))]

    def follow(self, **rules: Any) -> None:
        self.policy.of_channels = ChannelRules(**rules)
        self.node.broker.rules_changed(["t"])
        self.node.turn()

    def of(self, text: str) -> list[int]:
        return [self.sequences[word] for word in text.split()]

    def held(self) -> list[int]:
        return list(self.real.ledger.held.all())


class NodeOnDisk:
    """A node whose log is nsqd's own, in files. Its parts are replaced, so this needs the pure core."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, **rules: Any) -> None:
        self.store = OpenStore(path, mem_queue_size=100)
        monkeypatch.setattr(DiskStore, "reserved_ids", 0, raising=False)
        monkeypatch.setattr(DiskStore, "memory_capacity", None, raising=False)
        monkeypatch.setattr(node_module, "FakeStore", lambda: self.store.store)
        self.node = Node(policy=GivenRules(ChannelRules(**rules)), mem_queue_size=100)
        self.store.on_loaded = self.node.broker.loaded
        self.topic = self.node.broker.topic("t")
        self.channel = self.topic.channel("c")

    def load(self) -> None:
        """Load what the log was asked for, until nothing is left."""
        while self.store.store.reads.loads:
            self.store.load()
            self.node.turn()
