"""`/config/<option>`: reads any option and changes two of them, for clients in the allowed network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqadmin.access import Right, is_within, networks
from nsqadmin.http.app import Route
from nsqadmin.http.responses import body_of, identity_of, raw_json, text_answer
from nsqcommon import logs
from nsqcommon.http_api import HttpError
from nsqcommon.option_kinds import STRING
from nsqcommon.options import change, format_value, table_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.access import Identity
    from nsqadmin.options import Options


class Settings:
    """Holds the current options. Some can be changed at run time."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def replace(self, options: Options) -> None:
        if options.log_level != self.options.log_level:
            logs.set_level(options.log_level)
        self.options = options


def routes(settings: Settings) -> list[Route]:
    config = _Config(settings)
    return [Route("GET", "/config/{option}", config.get), Route("PUT", "/config/{option}", config.put)]


class _Config:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        allowed = settings.options.allow_config_from_cidr
        self._allowed = networks([allowed]) if allowed else None

    async def get(self, request: Request) -> Response:
        self._check_peer(request)
        return self._shown(str(request.path_params["option"]))

    async def put(self, request: Request) -> Response:
        self._check_peer(request)
        reason = self._why_not(identity_of(request))
        if reason:
            raise HttpError(403, "FORBIDDEN", details={"reason": reason})
        key = str(request.path_params["option"])
        body = await body_of(request)
        if not body:
            raise HttpError(413, "INVALID_VALUE")
        try:
            self._settings.replace(change(self._settings.options, key, body.decode()))
        except KeyError:
            raise HttpError(400, "INVALID_OPTION") from None
        except ValueError:
            raise HttpError(400, "INVALID_VALUE") from None
        return self._shown(key)

    def _why_not(self, identity: Identity) -> str:
        """Return why the user may not change options, or "".

        With roles, the client's address isn't enough: behind a proxy on this machine all clients have the same one.
        With only `--admin-user` it is enough, as in NSQ.
        """
        return identity.why_not_everywhere(Right.ADMIN) if self._settings.options.roles_file else identity.refusal

    def _check_peer(self, request: Request) -> None:
        """Refuse clients outside of the allowed network. This uses the connection's own address, never a header."""
        if self._allowed is None:
            return
        client = request.scope.get("client")
        try:
            if client is None:
                raise ValueError("a unix socket")
            if is_within(client[0], self._allowed):
                return
        except ValueError:
            raise HttpError(400, "INVALID_REMOTE_ADDR") from None
        raise HttpError(403, "FORBIDDEN")

    def _shown(self, key: str) -> Response:
        options = self._settings.options
        try:
            value = format_value(options, key)
        except KeyError:
            raise HttpError(400, "INVALID_OPTION") from None
        is_text = any(row.key == key and row.kind is STRING for row in table_of(type(options)))
        return text_answer(value) if is_text else raw_json(value.encode())
