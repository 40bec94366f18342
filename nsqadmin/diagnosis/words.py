"""The wording of evidence."""

from __future__ import annotations

from nsqadmin import numbers
from nsqadmin.cluster.model import Client, Evidence

TOO_MANY_NODES = (
    "Only the nodes that were known before and those listed first are shown. If there really are that many, raise "
    "--max-nodes; otherwise find out who registers them."
)


def say(label: str, value: str) -> Evidence:
    return Evidence(label=label, value=value)


def number(label: str, value: int) -> Evidence:
    return Evidence(label=label, value=f"{value:,}")


def rate(label: str, value: float) -> Evidence:
    return Evidence(label=label, value=numbers.rate(value))


def age(label: str, seconds: float, *, at_least: bool = False) -> Evidence:
    return Evidence(label=label, value=f"{'at least ' if at_least else ''}{numbers.duration(seconds)}")


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def in_minutes(seconds: float) -> str:
    """Write a duration in whole minutes, which doesn't change at every sample: 46 min, 3h 12m; below a minute, 35 s."""
    minutes = int(seconds // 60)
    if not minutes:
        return numbers.duration(seconds)
    return f"{minutes} min" if minutes < 60 else numbers.duration(60 * minutes)


def name_of(client: Client) -> str:
    return client.client_id if client.hostname in ("", client.client_id) else f"{client.hostname} ({client.client_id})"
