"""Changes of incidents, made from a few words, and the posts about them."""

from __future__ import annotations

from nsqadmin.cluster.model import Severity
from nsqadmin.diagnosis.incident import Cause, CauseKind, ChangeKind, Incident, IncidentChange, Numbers, Open
from nsqadmin.diagnosis.rules import Family
from nsqadmin.webhook.post import Post, post_of
from tests.support.picture import NOW


def opened(subject: str = "orders/billing", severity: str = "problem", *, waiting: int = 5, began: float = NOW) -> Open:
    """Return a present incident about this."""
    cause = Cause(CauseKind.SINGLE, subject, Family.DELIVERY)
    incident = Incident(
        key=cause.key,
        cause=cause,
        severity=Severity(severity),
        subject=subject,
        verdict="No consumer is connected",
        findings=(),
        numbers=Numbers(waiting=waiting, incoming=2.5, channels=1, findings=1),
        weight=1.0,
        since=began,
    )
    return Open(incident=incident, began=began)


def change(kind: str, it: Open | None = None, *, at: float = NOW + 10) -> IncidentChange:
    return IncidentChange(kind=ChangeKind(kind), at=at, it=it or opened())


def post(kind: str = "opened", subject: str = "orders/billing", **fields: object) -> Post:
    return post_of(change(kind, opened(subject, **fields)))  # type: ignore[arg-type]
