"""The handlers of `/hmpub`, and of `/pub` and `/mpub` when a request isn't on the fast path (`quick.py`).

A handler awaits each piece of the body, and then the receipt. Both paths share the checks in `publishing.py`, which
never waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqcommon.http_api import HttpError, Request, Response
from nsqd.http.message_headers import BadHeaders, headers_of
from nsqd.http.mpub_body import HeadedBody
from nsqd.http.publishing import INVALID_HEADERS
from nsqd.http.quick import OK

if TYPE_CHECKING:
    from nsqd.broker.batch import Receipt
    from nsqd.http.calls import Calls
    from nsqd.http.publishing import Publishing


class PubEndpoints:
    def __init__(self, calls: Calls, publishing: Publishing) -> None:
        self._calls = calls
        self._publishing = publishing

    async def pub(self, request: Request) -> Response:
        publishing = self._publishing
        refusal = publishing.pub_length(request.content_length or 0)
        if refusal is not None:
            return refusal.response
        headers = _headers(request, of_batch=False)
        body = await request.read(publishing.limits.max_message)
        with self._calls.turn():
            answer = publishing.pub(request.query_string, len(body).to_bytes(4, "big") + body, headers)
        return await self._published(answer)

    async def mpub(self, request: Request) -> Response:
        publishing = self._publishing
        refusal = publishing.mpub_length(request.content_length or 0)
        if refusal is None:
            with self._calls.turn():
                refusal = publishing.mpub_query(request.query_string)
        if refusal is not None:
            return refusal.response
        headers = _headers(request, of_batch=True)
        body = publishing.mpub_body(request.query_string)
        async for piece in request.pieces(publishing.limits.max_body):
            body.receive(piece)
            request.hold_body(body.held)
        with self._calls.turn():
            answer = publishing.mpub(request.query_string, body, headers)
        return await self._published(answer)

    async def hmpub(self, request: Request) -> Response:
        publishing = self._publishing
        refusal = publishing.mpub_length(request.content_length or 0)
        if refusal is not None:
            return refusal.response
        body = HeadedBody(publishing.limits)
        async for piece in request.pieces(publishing.limits.max_body):
            body.receive(piece)
            request.hold_body(body.held)
        with self._calls.turn():
            answer = publishing.hmpub(request.query_string, body)
        return await self._published(answer)

    async def _published(self, answer: Receipt | HttpError) -> Response:
        if isinstance(answer, HttpError):
            return answer.response
        await self._calls.settled(answer)
        # NSQ returns EXITING whatever the reason is.
        return OK if answer.error is None else HttpError(503, "EXITING").response


def _headers(request: Request, *, of_batch: bool) -> bytes:
    try:
        return headers_of(request.fields, of_batch=of_batch)
    except BadHeaders as error:
        raise HttpError(400, INVALID_HEADERS, details={"reason": str(error)}) from error
