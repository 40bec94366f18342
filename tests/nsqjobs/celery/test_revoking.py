import json

import pytest

from nsqjobs.celery.revoking import revoked_by


def broadcast(method: str, **arguments: object) -> dict[str, object]:
    return {"content-type": "application/json", "body": json.dumps({"method": method, "arguments": arguments})}


def test_a_revoke_names_one_job_or_several() -> None:
    assert revoked_by("celery.pidbox", broadcast("revoke", task_id="1")) == ["1"]
    assert revoked_by("celery.pidbox", broadcast("terminate", task_id=["1", "2"])) == ["1", "2"]


@pytest.mark.parametrize(
    ("exchange", "message"),
    [
        ("celery.pidbox", broadcast("ping")),
        ("orders", broadcast("revoke", task_id="1")),
        ("celery.pidbox", broadcast("revoke")),
        ("celery.pidbox", {"content-type": "application/json", "body": "{"}),
        ("celery.pidbox", {"content-type": "application/x-yaml", "body": "method: revoke"}),
        ("celery.pidbox", {"content-type": "application/json", "body": "[]"}),
    ],
)
def test_nothing_else_revokes(exchange: str, message: dict[str, object]) -> None:
    assert list(revoked_by(exchange, message)) == []
