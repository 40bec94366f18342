"""Edit and run: a form with the body of a message, or with the arguments of a job, the consequences, and the receipt."""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING, Final

from nsqadmin.access import EDIT, Right
from nsqadmin.actions.plan import Consequence
from nsqadmin.cluster.model import Paused, Severity
from nsqadmin.http.app import Route
from nsqadmin.http.responses import caller_of, form_of, require
from nsqadmin.jobs.editing import BadArguments, Call, CannotEdit, call_in, problem_with_json
from nsqadmin.messages.deferred_actions import parse_when
from nsqadmin.messages.editing import REPEATABLE, CannotRun, EditedMessage
from nsqadmin.messages.endpoints import MOST_BODY
from nsqadmin.messages.lists import BadRequest
from nsqadmin.pages.error import refusal_page
from nsqadmin.pages.publish import number_in
from nsqadmin.parts.messages import messages_of
from nsqcommon.http_api import HttpError
from nsqcommon.wire.groups import GROUP

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.cluster.model import Channel
    from nsqadmin.messages.editing import EditReceipt
    from nsqadmin.messages.model import Message
    from nsqadmin.parts.painter import Painter
    from nsqadmin.services import Services

REFUSED: Final = "Nothing was run"
_REFUSED_NOW: Final = "Nothing was run now"
_MAY_HAVE_RUN: Final = "If you sent this form before, the copy may have run then."
MOST: Final = 1 << 20  # bytes of a body in a form
_NAMED: Final = ("topic", "channel", "node", "sequence", "log", "id", "place")  # arguments that name the message
_LINE_ENDS: Final = "\r\n", "\n"  # browsers send the first for the second


def routes(services: Services, painter: Painter) -> list[Route]:
    if services.messages is None:
        return []
    pages = _EditPages(services, painter)
    return [Route("GET", f"/actions/{EDIT}", pages.form), Route("POST", f"/actions/{EDIT}", pages.run)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """The message that a user wants to edit."""

    channel: Channel
    message: Message
    body: bytes
    call: Call | None  # its arguments, if it is a job
    no_call: str  # why they can't be edited by themselves

    @property
    def is_text(self) -> bool:
        """True if a form returns the body as it is."""
        try:
            return not {"\r", "\0"}.intersection(self.body.decode())
        except UnicodeDecodeError:
            return False

    @property
    def is_json(self) -> bool:
        return self.is_text and not problem_with_json(self.body.decode())


class _Unreadable(HttpError):
    """The message is gone, or its node doesn't answer."""

    def __init__(self, status: int, code: str, reason: str) -> None:
        super().__init__(status, code, details={"reason": reason})
        self.reason = reason


class _Invalid(Exception):
    """The form is wrong; the message says why."""


class _EditPages:
    def __init__(self, services: Services, painter: Painter) -> None:
        self._services = services
        self._painter = painter

    async def form(self, request: Request) -> Response:
        values = dict(request.query_params)
        try:
            source = await self._source(request, values)
            return await self._form(request, source, values)
        except HttpError as error:
            return await refusal_page(self._painter, request, error, REFUSED)

    async def run(self, request: Request) -> Response:
        """Run the edited copy, or show the form again with what is wrong."""
        try:
            values = await form_of(request, limit=MOST_BODY)
            try:
                source = await self._source(request, values)
            except _Unreadable as error:  # a node that hung may have carried out an earlier request, and then gone
                reason = f"{error.reason} {_MAY_HAVE_RUN}"
                refusal = HttpError(error.status, error.code, details={"reason": reason})
                return await refusal_page(self._painter, request, refusal, _REFUSED_NOW)
            try:
                wanted = self._wanted(source, values)
            except _Invalid as error:
                return await self._form(request, source, values, f"{error}.", status=400)
            try:
                receipt = await messages_of(self._services).edit(wanted, caller_of(request))
            except CannotRun as error:
                return await self._not_run(request, source, values, error)
            return await self._receipt(request, source, receipt)
        except HttpError as error:
            return await refusal_page(self._painter, request, error, REFUSED)

    async def _source(self, request: Request, values: Mapping[str, str]) -> _Source:
        """Read the message that the form names. Raise 403, 404, 409, 413."""
        topic = values.get("topic", "")
        identity = require(request, Right.VIEW, topic)
        if reason := identity.why_not_edit(topic):
            raise HttpError(403, "FORBIDDEN", details={"reason": reason})
        channel = (await self._painter.picture(request)).channel(topic, values.get("channel", ""))
        if channel is None:
            raise HttpError(404, "CHANNEL_NOT_FOUND", details={"reason": "This channel does not exist any more."})
        sequence = number_in(values, "sequence", -1)
        message, why = await messages_of(self._services).message_to_edit(
            channel, identity, values.get("node", ""), sequence, values.get("place", "")
        )
        if message is None or message.body is None:
            raise _Unreadable(404, "MESSAGE_NOT_FOUND", f"The message cannot be read: {why}.")
        if values.get("id", message.id) != message.id:
            reason = "The topic has been deleted and created again: the message is gone."
            raise _Unreadable(409, "ANOTHER_LOG", reason)
        if message.size > MOST:
            reason = f"The body has {message.size:,} bytes, more than a form can hold. Use nsqd's POST /channel/edit."
            raise HttpError(413, "TOO_LARGE", details={"reason": reason})
        call, no_call = None, ""
        if message.job is not None:
            try:
                call = call_in(message.body, message.job.library)
            except CannotEdit as error:
                no_call = str(error)
        return _Source(channel=channel, message=message, body=message.body, call=call, no_call=no_call)

    def _wanted(self, source: _Source, values: Mapping[str, str]) -> EditedMessage:
        """Return the request to the node. Raise _Invalid."""
        message = source.message
        try:
            body = _body_in(source, values)
            delay = parse_when(values.get("when", "now"), time())
        except (BadArguments, BadRequest) as error:
            raise _Invalid(f"{error}") from error
        if not body:
            raise _Invalid("A message cannot be empty")
        return EditedMessage(
            topic=source.channel.topic,
            channel=source.channel.name,
            node=message.node,
            sequence=message.sequence or 0,
            log=values.get("log", ""),
            body=body,
            token=values.get("token", "")[:64] or secrets.token_hex(16),
            is_again=values.get("again") == "yes",
            delay_ms=round(delay * 1000),
        )

    async def _not_run(
        self, request: Request, source: _Source, values: Mapping[str, str], error: CannotRun
    ) -> Response:
        """Show the form again, with all that was typed."""
        if error.place:
            text = f"The message cannot be replaced: {error.reason}"
        elif error.code == "NO_ANSWER":
            text = f"{source.message.node}: {error.reason}"
        else:
            text = f"{source.message.node} has refused: {error.reason}. Nothing was run"
        return await self._form(request, source, values, f"{text}.", status=409, can_repeat=error.place in REPEATABLE)

    async def _form(
        self,
        request: Request,
        source: _Source,
        values: Mapping[str, str],
        problem: str = "",
        *,
        status: int = 200,
        can_repeat: bool = False,
    ) -> Response:
        message, call = source.message, source.call
        named = {name: values[name] for name in _NAMED if values.get(name)}
        named |= {"id": message.id, "log": values.get("log") or message.log or ""}
        by_arguments = call is not None and values.get("as") != "body"
        if by_arguments and call is not None:
            shown = {"args": values.get("args", call.args), "kwargs": values.get("kwargs", call.kwargs)}
        elif source.is_text:
            shown = {"body": values.get("body", source.body.decode())}
        else:
            shown = {"base64": values.get("base64", base64.b64encode(source.body).decode())}
        is_repeatable = can_repeat or values.get("again") == "yes"
        return self._painter.page(
            request,
            "edit.html",
            await self._painter.picture(request),
            current="Topics" if message.job is None else "Jobs",
            status=status,
            channel=source.channel,
            message=message,
            named=named,
            token=values.get("token") or secrets.token_hex(16),
            problem=problem,
            shown={name: text.replace(*_LINE_ENDS) for name, text in shown.items()},
            by_arguments=by_arguments,
            no_call=source.no_call,
            other_form=self._painter.links.action(EDIT, **named, **({"as": "body"} if by_arguments else {}))
            if call is not None
            else "",
            when=values.get("when", "now"),
            can_repeat=is_repeatable,
            is_again=values.get("again") == "yes",
            is_odd=source.is_json and "body" in shown and bool(problem_with_json(shown["body"])),
            consequences=tuple(_consequences(source, is_repeatable=is_repeatable)),
            back=self._back(source),
        )

    async def _receipt(self, request: Request, source: _Source, receipt: EditReceipt) -> Response:
        channel, job = source.channel, source.message.job
        links = self._painter.links
        log = source.message.log or ""
        places = [
            (
                "Open the copy",
                links.to(
                    "/message",
                    topic=channel.topic,
                    node=receipt.node,
                    sequence=str(receipt.sequence),
                    log=log,
                    channel=channel.name,
                ),
            )
        ]
        if job is not None and job.id:
            places.insert(0, ("Open the job", links.job(job.id, channel.topic, channel.name)))
        return self._painter.page(
            request,
            "edit.html",
            await self._painter.picture(request),
            current="Topics" if job is None else "Jobs",
            channel=channel,
            message=source.message,
            receipt=receipt,
            places=places,
            back=self._back(source),
        )

    def _back(self, source: _Source) -> str:
        job, channel = source.message.job, source.channel
        if job is not None and job.id:
            return self._painter.links.job(job.id, channel.topic, channel.name)
        return self._painter.links.channel(channel.topic, channel.name, tab="messages")


def _body_in(source: _Source, values: Mapping[str, str]) -> bytes:
    """Return the edited body. Raise BadArguments, _Invalid."""
    if source.call is not None and "args" in values:
        args, kwargs = (values.get(name, "").replace(*_LINE_ENDS) for name in ("args", "kwargs"))
        return source.call.edited(args, kwargs)
    if "base64" in values:
        try:
            return base64.b64decode("".join(values["base64"].split()), validate=True)
        except binascii.Error as error:
            raise _Invalid(f"This is not Base64: {error}") from error
    text = values.get("body", "").replace(*_LINE_ENDS)
    if source.is_json and values.get("odd") != "yes" and (problem := problem_with_json(text)):
        raise _Invalid(f"The body was JSON and is none now: {problem}")
    return text.encode()


def _consequences(source: _Source, *, is_repeatable: bool) -> Iterator[Consequence]:
    channel, message, job = source.channel, source.message, source.message.job
    name = f"{channel.topic}/{channel.name}"
    if is_repeatable:
        text = f"If you run it anyway, the copy runs in {name} in addition to the message."
        yield Consequence(text=text, severity=Severity.WARNING)
    else:
        text = f"The message is discarded in {name} and the edited copy runs there instead, in one operation."
        yield Consequence(text=text)
        yield Consequence(text="This cannot be undone.", severity=Severity.WARNING)
    is_grouped = GROUP in message.headers
    ahead = "" if is_grouped else " It is delivered before new messages."
    yield Consequence(text=f"The copy gets a new message id, and attempts restart at 1.{ahead}")
    if job is not None:
        yield Consequence(text="It keeps its job id, so the job's result and timeline continue.")
    if is_grouped:
        group = message.headers[GROUP][:100]
        yield Consequence(text=f"It stays in its group, {group}, behind the group's other messages.")
    yield Consequence(text="Other channels of the topic don't get the copy, and keep the message as it was.")
    row = next((it for it in channel.nodes if it.node == message.node), None)
    if channel.paused is not Paused.NO:
        text = "The channel is paused: the copy waits until it is unpaused."
        yield Consequence(text=text, severity=Severity.WARNING)
    elif row is None or not row.client_count:
        text = f"No consumer is connected to {message.node}: the copy waits there."
        yield Consequence(text=text, severity=Severity.WARNING)
