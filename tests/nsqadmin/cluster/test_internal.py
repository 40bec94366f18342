from __future__ import annotations

import pytest

from nsqadmin.cluster.internal import is_internal


@pytest.mark.parametrize(
    "topic",
    [
        "nsqjobs.outcomes#ephemeral",
        "celery.pidbox#ephemeral",
        "celeryev#ephemeral",
        "reply.celery.pidbox.b4a3e8f2-4c1d-3a5e#ephemeral",
        "reply.celery.pidbox.b4a3e8f2-1234567890abcdef#ephemeral",
    ],
)
def test_topics_between_workers_are_internal(topic: str) -> None:
    assert is_internal(topic)


@pytest.mark.parametrize(
    "topic", ["celery", "celeryev", "orders#ephemeral", "nsqjobs.outcomes", "pidbox", "my.pidboxes"]
)
def test_topics_of_users_are_not(topic: str) -> None:
    assert not is_internal(topic)
