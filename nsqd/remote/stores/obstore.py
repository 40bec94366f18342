"""S3, Google Cloud Storage and Azure by the library obstore, which is imported when such a store is opened.

Two things of the library are off. It would repeat a request by itself, but the sender of a slot has to know of each
failure, and repeats it itself. And large objects would go in parts, for which create-if-absent doesn't hold.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeAlias

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import AzureStore, GCSStore, S3Store

from nsqcommon.startup import StartupError
from nsqd.remote.location import StoreLocation, StoreScheme, endpoint_of
from nsqd.remote.object_store import LIST_LIMIT, Created, Names, OnUnknown, StoreFault, StoreFaultKind, ignore
from nsqd.remote.stores.answers import fault_of, says_absent, says_beyond_end
from nsqd.remote.stores.time_limits import LONG, SHORT, TimeLimits

CloudStore: TypeAlias = "S3Store | GCSStore | AzureStore"

_CLASSES: Final = {StoreScheme.S3: S3Store, StoreScheme.GS: GCSStore, StoreScheme.AZ: AzureStore}
_IN_THE_URL: Final = frozenset({"bucket", "bucket_name", "container", "container_name", "prefix"})
_FIXED: Final = frozenset({"conditional_put", "aws_conditional_put", "copy_if_not_exists"})
_NO_RETRIES: Final[Any] = {"max_retries": 0, "retry_timeout": timedelta(seconds=1)}
# Options of the connection; all others are the store's own.
_OF_CONNECTIONS: Final = frozenset(
    {
        *(
            "allow_http",
            "allow_invalid_certificates",
            "connect_timeout",
            "http1_only",
            "http2_only",
            "pool_idle_timeout",
        ),
        *("pool_max_idle_per_host", "proxy_ca_certificate", "proxy_excludes", "proxy_url", "randomize_addresses"),
        *("read_timeout", "root_certificate", "timeout", "user_agent"),
    }
)
_FILES: Final = frozenset({"proxy_ca_certificate", "root_certificate"})  # whose content the library wants
_CONNECT_TIMEOUT: Final = "5s"
_UNORDERED: Final = "--x-s3"  # the names of S3 Express buckets end so; they list names in no order


class ObstoreStore:
    """A bucket, below a prefix. `open_cloud_store` makes one out of a URL."""

    def __init__(
        self,
        store: CloudStore,
        location: StoreLocation,
        *,
        short: CloudStore | None = None,
        on_unknown: OnUnknown = ignore,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`short` is the same bucket, with less time for a request."""
        self._store = store
        self._short = short or store
        self._limits = TimeLimits()
        self._location = location
        self._on_unknown = on_unknown
        self._clock = clock

    def create(self, name: str, data: bytes | Sequence[bytes]) -> Created:
        size = len(data) if isinstance(data, bytes) else sum(map(len, data))
        store, began = self._store_for(name, size), self._clock()
        created = Created.CREATED
        try:
            obstore.put(store, name, data, mode="create", use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            created = Created.EXISTS
        except (BaseError, OSError) as error:
            self._limits.failed(name)
            self._on_unknown(self._fault(error))
            return Created.UNKNOWN
        self._limits.answered(size, self._clock() - began)
        return created

    def get(self, name: str, start: int = 0, end: int | None = None) -> bytes | None:
        try:
            return self._read(name, start, end)
        except FileNotFoundError as error:
            if says_absent(str(error)):
                return None
            raise self._fault(error) from error
        except (BaseError, OSError) as error:
            if says_beyond_end(str(error)):
                return b""
            self._limits.failed(name)
            raise self._fault(error) from error

    def delete(self, names: Sequence[str]) -> None:
        try:
            if names:
                obstore.delete(self._store, [*names])
        except FileNotFoundError as error:
            self._delete_those_there(names, error)
        except (BaseError, OSError) as error:
            raise self._fault(error) from error

    def list(self, prefix: str, after: str = "") -> Names:
        assert prefix == "" or prefix.endswith("/")
        in_order = not self._location.bucket.endswith(_UNORDERED)
        try:
            pages = obstore.list(
                self._store, prefix or None, offset=(after or None) if in_order else None, chunk_size=LIST_LIMIT
            )
            names = (entry["path"] for page in pages for entry in page if entry["path"] > after)
            return sorted(islice(names, LIST_LIMIT) if in_order else names)[:LIST_LIMIT]
        except (BaseError, OSError) as error:
            raise self._fault(error) from error

    def overwrite(self, name: str, data: bytes) -> None:
        try:
            obstore.put(self._store, name, data, mode="overwrite", use_multipart=False)
        except (BaseError, OSError) as error:
            raise self._fault(error) from error

    def _read(self, name: str, start: int, end: int | None) -> bytes:
        data: bytes
        if start == 0 and end is None:
            data = obstore.get(self._store, name).bytes().to_bytes()
        elif end is None:
            data = obstore.get(self._store, name, options={"range": {"offset": start}}).bytes().to_bytes()
        else:
            data = obstore.get_range(self._store_for(name, end - start), name, start=start, end=end).to_bytes()
        return data

    def _store_for(self, name: str, size: int) -> CloudStore:
        return self._short if self._limits.is_short(name, size) else self._store

    def _delete_those_there(self, names: Sequence[str], error: OSError) -> None:
        """Delete one by one after a bulk request that Azure or Google has refused because a name wasn't there."""
        fault = self._fault(error)
        if fault.kind is StoreFaultKind.MISSING and not says_absent(str(error)):
            raise fault from error
        for name in names:
            try:
                obstore.delete(self._store, name)
            except FileNotFoundError:
                pass
            except (BaseError, OSError) as failed:
                raise self._fault(failed) from failed

    def _fault(self, error: Exception) -> StoreFault:
        return fault_of(str(error), self._location)


def open_cloud_store(
    location: StoreLocation,
    options: Mapping[str, str],
    *,
    node: str = "",
    on_unknown: OnUnknown = ignore,
    environ: Mapping[str, str] = os.environ,
) -> ObstoreStore:
    """Open a bucket. Nothing is sent yet. Raises StartupError for options that the library doesn't know."""
    if names := options.keys() & _IN_THE_URL:
        raise StartupError(f"--remote-option={min(names)}: this belongs into the URL of --remote")
    if names := options.keys() & _FIXED:
        raise StartupError(f"--remote-option={min(names)}: nsqd has to set this itself")
    config: dict[str, Any] = {name: value for name, value in options.items() if name not in _OF_CONNECTIONS}
    if location.scheme is StoreScheme.S3:
        config["conditional_put"] = "etag"  # whatever the environment says

    def opened(timeout: float) -> CloudStore:
        store: CloudStore = _CLASSES[location.scheme](
            location.bucket,
            prefix="/".join(filter(None, (location.prefix, node))) or None,
            config=config,
            client_options=_connection_options(location.scheme, options, environ, timeout=timeout),
            retry_config=_NO_RETRIES,
        )
        return store

    try:
        store, short = opened(LONG), opened(SHORT)
    except (BaseError, ValueError, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise StartupError(f"--remote={location}: {reason}") from error
    return ObstoreStore(store, location, short=short, on_unknown=on_unknown)


def _connection_options(
    scheme: StoreScheme, options: Mapping[str, str], environ: Mapping[str, str], *, timeout: float
) -> Any:
    """Return what the library wants to know about connections.

    Addresses are taken at random, so that requests go to all servers that a name stands for.
    """
    return {
        "timeout": f"{timeout:g}s",
        "connect_timeout": _CONNECT_TIMEOUT,
        "randomize_addresses": "true",
        "user_agent": "nsqd",
        **({"allow_http": "true"} if endpoint_of(scheme, options, environ).startswith("http://") else {}),
        **{name: _value(name, value) for name, value in options.items() if name in _OF_CONNECTIONS},
    }


def _value(name: str, value: str) -> str:
    return Path(value).read_text(encoding="ascii") if name in _FILES else value
