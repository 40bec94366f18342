"""`/config`: shows an option, or changes it if it may change at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from nsqcommon.http_api import JSON, V1, HttpError, Request, Response, json, text
from nsqcommon.options import change, table_of

if TYPE_CHECKING:
    from nsqd.options import Options

MOST_LOOKUPDS: Final = 100  # each needs a task and a connection, and all connect at the same time
_LONGEST_VALUE: Final = 64 * 1024


class ConfigSettings(Protocol):
    """Holds the current options, and applies new ones."""

    @property
    def options(self) -> Options: ...

    def replace(self, options: Options, /) -> None: ...


class ConfigEndpoints:
    def __init__(self, settings: ConfigSettings, *, max_message: int) -> None:
        self._settings = settings
        self._longest = min(max_message, _LONGEST_VALUE)

    async def get_option(self, request: Request) -> Response:
        return _show_option(self._settings.options, request.words["option"])

    async def put_option(self, request: Request) -> Response:
        body = await request.read(self._longest)
        if not 0 < len(body) <= self._longest:
            raise HttpError(413, "INVALID_VALUE")
        key = request.words["option"]
        try:
            value = body.decode()
            options = change(self._settings.options, key, value)
        except KeyError:
            raise HttpError(400, "INVALID_OPTION") from None
        except ValueError:
            raise HttpError(400, "INVALID_VALUE") from None
        if len(options.lookupd_tcp_address) > max(MOST_LOOKUPDS, len(self._settings.options.lookupd_tcp_address)):
            raise HttpError(400, "INVALID_VALUE", details={"reason": f"more than {MOST_LOOKUPDS} addresses"})
        self._settings.replace(options)
        # In NSQ, `null` turns a list into a nil slice, which is printed as null and not as [].
        return json(None) if value.strip() == "null" else _show_option(options, key)


def _show_option(options: Options, key: str) -> Response:
    """Return the value of an option: a string as plain text, everything else as JSON."""
    for row in table_of(type(options)):
        if row.key == key and not row.is_deprecated:
            value: Any = getattr(options, row.name)
            shown = row.kind.render(value)
            return text(shown) if isinstance(value, str) else Response(body=shown.encode(), headers=(JSON, V1))
    raise HttpError(400, "INVALID_OPTION")
