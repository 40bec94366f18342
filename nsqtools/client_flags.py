"""`--consumer-opt` and `--producer-opt`, and the resulting configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from nsqclient import Config, ConfigError, options_of_flags
from nsqcommon.option_kinds import STRINGS, OptionKind
from nsqcommon.startup import StartupError
from nsqcommon.version import NSQ_VERSION, suite_version

CONSUMER_OPT: Final = "client setting: name,value, or just name for true (docs/reference/client-options.md)"
PRODUCER_OPT: Final = CONSUMER_OPT
MAX_IN_FLIGHT: Final = "maximum number of messages in flight"


def _parse(text: str) -> tuple[str, ...]:
    Config.from_options(options_of_flags([text]))  # a ConfigError is a ValueError
    return (text,)


CLIENT_OPTIONS: Final[OptionKind[tuple[str, ...]]] = OptionKind(
    word="value", parse=_parse, convert=STRINGS.convert, show=STRINGS.show, is_repeated=True
)


def client_config(tool: str, options: Sequence[str], *, max_in_flight: int | None = None, **defaults: Any) -> Config:
    """Return the configuration from the flags, with `defaults` for the rest. Raise StartupError.

    The flags can't change the user agent, or `max_in_flight` if the tool has a flag for it.
    """
    given = {name.replace("-", "_"): value for name, value in options_of_flags(options).items()}
    given["user_agent"] = f"{tool}/{NSQ_VERSION} nsqclient/{suite_version()}"
    if max_in_flight is not None:
        given["max_in_flight"] = str(max_in_flight)
    try:
        return Config.from_options(given, **defaults)
    except ConfigError as error:
        raise StartupError(str(error)) from error
