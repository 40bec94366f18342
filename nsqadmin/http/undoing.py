"""Undoing an action from a page or through `/api/v2`: the checks, and the nodes' results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqadmin.http.responses import caller_of, identity_of
from nsqcommon.http_api import HttpError

if TYPE_CHECKING:
    from starlette.requests import Request

    from nsqadmin.actions.undo import Undone, UndoRecord
    from nsqadmin.services import Services


async def undo(services: Services, request: Request, record_id: str) -> tuple[UndoRecord, tuple[Undone, ...]]:
    """Undo the action of this record on the remaining nodes. Raise 403, 404, or 409 if nothing is left."""
    executor = services.executor
    if executor is None:
        raise HttpError(403, "FORBIDDEN", details={"reason": "there is no cluster to change"})
    record = executor.undoer.records.find(record_id)
    if record is None:
        reason = "nsqadmin no longer has what the channel held: it was restarted, or has kept newer ones since"
        raise HttpError(404, "UNDO_NOT_FOUND", details={"reason": reason})
    if reason := identity_of(request).why_not(record.action.right, record.action.topic):
        executor.undoer.note_refusal(record, caller_of(request), reason)
        raise HttpError(403, "FORBIDDEN", details={"reason": reason})
    if not record.left:
        reason = f"this has been undone already, on every node where it could be: {record.words}"
        raise HttpError(409, "UNDONE_ALREADY", details={"reason": reason})
    return record, await executor.undoer.undo(record, caller_of(request))
