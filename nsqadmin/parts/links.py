"""The URLs of all pages. Names are fully escaped, so that `x#ephemeral` and names with a slash stay intact."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, urlencode


class Links:
    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def to(self, path: str = "/", **arguments: object) -> str:
        """Return the URL of one of our paths, with the arguments that aren't empty."""
        return (self._prefix + path if path != "/" else self._prefix or "/") + _query(arguments)

    def topic(self, topic: str, **arguments: object) -> str:
        return self.to(f"/topics/{quote(topic, safe='', errors='replace')}", **arguments)

    def channel(self, topic: str, channel: str, **arguments: object) -> str:
        return self.to(
            f"/topics/{quote(topic, safe='', errors='replace')}/{quote(channel, safe='', errors='replace')}",
            **arguments,
        )

    def node(self, address: str, **arguments: object) -> str:
        return self.to(f"/nodes/{quote(address, safe='', errors='replace')}", **arguments)

    def incident(self, key: str, **arguments: object) -> str:
        return self.to(f"/incidents/{quote(key, safe='', errors='replace')}", **arguments)

    def job(self, id: str, topic: str = "", channel: str = "") -> str:
        """Return the URL of a job; without its topic, the page looks for it."""
        if topic:
            return self.to("/jobs/job", topic=topic, channel=channel, id=id)
        return self.to(f"/jobs/{quote(id, safe='', errors='replace')}")

    def body(self, topic: str, node: str, sequence: int, log: str | None) -> str:
        """Return the URL of the bytes of a message in the topic's history."""
        path = f"/api/v2/body/{quote(topic, safe='')}"
        return self.to(path, node=node, sequence=str(sequence), log=log)

    def action(self, kind: str, **arguments: object) -> str:
        return self.to(f"/actions/{kind}", **arguments)

    def about(self, topic: str, channel: str, node: str) -> str:
        """Return the URL of the page about the subject of a finding or activity."""
        if topic and channel:
            return self.channel(topic, channel)
        if topic:
            return self.topic(topic)
        return self.node(node) if node else self.to("/")


def _query(arguments: Mapping[str, object]) -> str:
    given = {name: value for name, value in arguments.items() if value not in ("", None, (), False)}
    return "?" + urlencode(given, doseq=True, errors="replace") if given else ""
