"""A client of schema registries with Confluent's HTTP API. A number's schema never changes, so we cache it."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final
from urllib.parse import unquote, urlsplit

from nsqcommon.blocking_http import BlockingHttp
from nsqcommon.bodies.parsing import Cause, Unfit

_TIMEOUT: Final = 10.0  # seconds for an answer
_TRIES: Final = 3
_LARGEST: Final = 16 << 20  # bytes of an answer
_NO_SUCH_SCHEMA: Final = 40403  # a registry's own code; a plain 404 may come from a proxy, or from a wrong path


class RegistryFailed(Exception):
    """The registry does not answer, or answers nonsense.

    This isn't the bodies' fault, so the job ends or tries again.
    """


@dataclass(frozen=True, slots=True)
class Registry:
    url: str = field(repr=False)  # http://user:secret@host:8081/prefix

    def avro_schema(self, number: int) -> str:
        """Return the schema of this number.

        Raises Unfit if there is none, and RegistryFailed if we can't find out.
        """
        return _avro_schema(self, number)

    def check(self) -> None:
        """Raise RegistryFailed unless a registry answers."""
        status, _ = self._get("/schemas/types")
        if status != 200:
            raise RegistryFailed(f"{self.shown} answers {status} to /schemas/types: is it a schema registry?")

    @property
    def shown(self) -> str:
        """The address, without its user and password."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def fetch(self, number: int) -> str:
        """Request a schema from the registry; see `avro_schema`, which caches the answer."""
        status, text = self._get(f"/schemas/ids/{number}")
        if status == 404 and _code_of(text) == _NO_SUCH_SCHEMA:
            raise Unfit(Cause.UNKNOWN_SCHEMA, f"the registry has no schema {number}")
        if status != 200:
            raise RegistryFailed(f"{self.shown} answers {status} when asked for schema {number}")
        try:
            found = json.loads(text)
            schema, kind = found["schema"], found.get("schemaType", "AVRO")
        except (ValueError, KeyError, AttributeError, TypeError):
            raise RegistryFailed(f"{self.shown} has no schema in its answer for {number}") from None
        if kind != "AVRO":
            raise Unfit(Cause.UNKNOWN_SCHEMA, f"number {number} is for {kind}, not AVRO")
        if found.get("references"):
            raise Unfit(Cause.UNKNOWN_SCHEMA, f"number {number} refers to other schemas, which is not supported")
        return str(schema)

    def _get(self, path: str) -> tuple[int, bytes]:
        parts = urlsplit(self.url)
        host = parts.netloc.rpartition("@")[2]  # with its port, and the brackets of IPv6
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        target = f"{parts.path.rstrip('/')}{path}"
        headers = _headers(parts.username, parts.password).items()
        for left in reversed(range(_TRIES)):
            try:
                with BlockingHttp(host, timeout=_TIMEOUT, tls=tls) as http:
                    return http.request("GET", target, headers=headers, most=_LARGEST)
            except OSError as error:
                if not left:
                    raise RegistryFailed(f"{self.shown} cannot be reached: {error}") from None
        raise AssertionError


@lru_cache(maxsize=1024)
def _avro_schema(registry: Registry, number: int) -> str:
    """Fetch a schema once in each worker process."""
    return registry.fetch(number)


def _code_of(text: bytes) -> object:
    """Return the `error_code` of an answer that has one."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found.get("error_code") if isinstance(found, dict) else None


def _headers(user: str | None, secret: str | None) -> Mapping[str, str]:
    headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
    if user is not None:
        pair = f"{unquote(user)}:{unquote(secret or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    return headers
