"""A kombu message as the body of an nsqd message, with headers about the job."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from kombu.utils.json import dumps, loads

from nsqcommon.wire.groups import GROUP as GROUP_HEADER
from nsqjobs.groups import GROUP, group_text
from nsqjobs.headers import Job, eta_of_time

TTL: Final = "nsq-ttl"  # milliseconds; nsqd drops messages that wait longer
_LONGEST_KEY: Final = 64


@dataclass(frozen=True, slots=True)
class Publication:
    """How a message is published."""

    body: bytes
    headers: dict[str, bytes]
    eta: float | None  # seconds since 1970
    key: str | None  # for revoking it; only with an eta
    group: str | None = None


def encode(message: Mapping[str, Any]) -> bytes:
    text: str = dumps(message)
    return text.encode()


def decode(body: bytes) -> dict[str, Any]:
    """Parse the message. Raise ValueError for a body that isn't kombu's."""
    try:
        message = loads(body)
    except RecursionError as error:
        raise ValueError(str(error)) from error
    if not isinstance(message, dict) or not isinstance(message.get("properties"), dict):
        raise ValueError("not a message of kombu")
    if not isinstance(message["properties"].get("delivery_info"), dict) or "body" not in message:
        raise ValueError("not a message of kombu")
    return message


def let_run(message: dict[str, Any], now: float) -> dict[str, Any]:
    """Remove an eta in the future, and return the message.

    nsqd has delivered the job, so it is due: an operator wants it to run, or this machine's clock is slow. With an eta,
    Celery would hold it.
    """
    said = message.get("headers")
    if isinstance(said, dict) and (eta := _eta(said.get("eta"))) is not None and eta > now:
        message["headers"] = {**said, "eta": None}
    return message


def publication(message: Mapping[str, Any]) -> Publication:
    """Build the publish of a message to a lasting queue. Raise ValueError for an invalid group."""
    said = message.get("headers") or {}
    group = group_text(message["properties"].get(GROUP) or said.get(GROUP_HEADER))
    if group is not None:  # among the headers, because Celery gives those to a retry
        message = {**message, "headers": {**said, GROUP_HEADER: group}}
    headers: dict[str, bytes] = {}
    eta, key = None, None
    if "task" in said and "id" in said:
        job = _job(said)
        headers = job.headers()
        eta = job.eta
        key = job_key(job.id, job.retries, _count(said.get("replaced_task_nesting"))) if eta is not None else None
    return Publication(encode(message), {**headers, **ttl_of(message)}, eta, key, group)


def ttl_of(message: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the header with the time that a message may wait; empty if there is no limit."""
    expiration = _count(message["properties"].get("expiration"))
    return {TTL: b"%d" % expiration} if expiration else {}


def _job(said: Mapping[str, Any]) -> Job:
    return Job(
        library="celery",
        name=str(said["task"]),
        id=str(said["id"]),
        retries=_count(said.get("retries")),
        eta=_eta(said.get("eta")),
    )


def _eta(text: object) -> float | None:
    if not isinstance(text, str):
        return None
    try:
        return eta_of_time(datetime.fromisoformat(text))
    except ValueError:
        return None  # Celery reports it in the worker


def _count(value: object) -> int:
    try:
        return max(int(value), 0)  # type: ignore[call-overload, no-any-return]  # whatever a header has
    except (TypeError, ValueError):
        return 0


def job_key(id: str, retries: int, nesting: int = 0) -> str:
    """Return the key of a job with an eta.

    nsqd stores one message per key, so a job, each of its retries, and a job that replaces it need different keys: all
    of them have the same id.
    """
    key = f"{id}:{retries}:{nesting}" if nesting else f"{id}:{retries}"
    if len(key) <= _LONGEST_KEY and key.isascii() and key.isprintable() and " " not in key:
        return key
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:_LONGEST_KEY]
