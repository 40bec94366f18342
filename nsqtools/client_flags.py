"""`--consumer-opt` and `--producer-opt`, and the configuration that they result in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from nsqclient import Config, ConfigError, options_of_flags
from nsqcommon.option_kinds import STRINGS, OptionKind
from nsqcommon.startup import StartupError
from nsqcommon.version import NSQ_VERSION, suite_version

CONSUMER_OPT: Final = "setting of the client: name,value, or name alone for true (docs/reference/client-options.md)"
PRODUCER_OPT: Final = CONSUMER_OPT
MAX_IN_FLIGHT: Final = "most messages in flight at a time"


def _parse(text: str) -> tuple[str, ...]:
    Config.from_options(options_of_flags([text]))  # a ConfigError is a ValueError
    return (text,)


CLIENT_OPTIONS: Final[OptionKind[tuple[str, ...]]] = OptionKind(
    word="value", parse=_parse, convert=STRINGS.convert, show=STRINGS.show, is_repeated=True
)


def client_config(tool: str, options: Sequence[str], *, max_in_flight: int | None = None, **defaults: Any) -> Config:
    """Return the configuration of the flags, with `defaults` for settings without a flag. Raise StartupError.

    The flags cannot change the user agent, nor `max_in_flight` if the tool has a flag for it.
    """
    given = {name.replace("-", "_"): value for name, value in options_of_flags(options).items()}
    given["user_agent"] = f"{tool}/{NSQ_VERSION} nsqclient/{suite_version()}"
    if max_in_flight is not None:
        given["max_in_flight"] = str(max_in_flight)
    try:
        return Config.from_options(given, **defaults)
    except ConfigError as error:
        raise StartupError(str(error)) from error
