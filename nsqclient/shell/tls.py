"""A client's TLS: inside nsqd's protocol, and for HTTPS to nsqd and nsqlookupd."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from nsqclient.shell.targets import Target, host_of
from nsqcommon.streams.tls import TlsLayer

if TYPE_CHECKING:
    from nsqclient.core.config import Config
    from nsqcommon.streams.tls import SecureLayer


def tls_maker(target: Target, config: Config) -> Callable[[], SecureLayer] | None:
    """Return a factory for the client's side of TLS, or None if TLS is off."""
    if config.tls == "off":
        return None
    context = context_of(config)
    return partial(TlsLayer, context, server_side=False, server_hostname=config.server_hostname or host_of(target))


def context_of(config: Config) -> ssl.SSLContext:
    """Return the configured certificates, or the system's."""
    return config.ssl_context or ssl.create_default_context()
