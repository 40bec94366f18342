"""Names of places: one spelling for local paths and the stores of S3, Google and Azure, whatever the library.

A place is named once, as in `s3://lake/orders`; `s3a://` works as well. The name, the options `storage.*` and the
environment determine pyarrow's file system, deltalake's storage options and Spark's spelling, so that the three never
disagree about where a table lies or who may write it. Settings take precedence in this order:

    options `storage.*`  >  Spark's `spark.hadoop.fs.*` (see `options_of_conf`)  >  the environment

All keys come from the first of these that has any, because a session token of the environment doesn't go with a secret
from the options. The driver's keys travel to the executors inside a `Place`. If there are no keys at all, each process
looks for its own (a profile, or the role of an instance or a pod). Keys are never part of a `repr`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final
from urllib.parse import urlsplit

from pyarrow.fs import (
    AwsStandardS3RetryStrategy,
    AzureFileSystem,
    FileSystem,
    GcsFileSystem,
    LocalFileSystem,
    S3FileSystem,
)

from pyspark_nsq.options import names_for, unknown_in

PREFIX: Final = "storage."
_DEFAULT_REGION: Final = "us-east-1"
_YES: Final = ("true", "1", "yes")


class BadPlace(Exception):
    """The name or the options of a place are invalid."""


class Scheme(StrEnum):
    LOCAL = "file"
    S3 = "s3"
    GOOGLE = "gs"
    AZURE = "abfss"
    HADOOP = "hdfs"


_SPELLINGS: Final[Mapping[str, Scheme]] = {
    "file": Scheme.LOCAL,
    "s3": Scheme.S3,
    "s3a": Scheme.S3,
    "s3n": Scheme.S3,
    "gs": Scheme.GOOGLE,
    "gcs": Scheme.GOOGLE,
    "abfss": Scheme.AZURE,
    "abfs": Scheme.AZURE,
    "hdfs": Scheme.HADOOP,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAccess:
    """How to reach a store. Empty fields are left to the libraries' own defaults."""

    endpoint: str = ""
    region: str = ""
    path_style: bool | None = None
    anonymous: bool = False
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)
    token: str = field(default="", repr=False)

    @property
    def has_keys(self) -> bool:
        return bool(self.secret_key or self.token)

    @property
    def uses_path_style(self) -> bool:
        return bool(self.endpoint) if self.path_style is None else self.path_style

    def as_options(self) -> dict[str, str]:
        """Return the same as options `storage.*`, for a process that may have another environment."""
        found = {
            "storage.endpoint": self.endpoint,
            "storage.region": self.region,
            "storage.accessKey": self.access_key,
            "storage.secretKey": self.secret_key,
            "storage.token": self.token,
            "storage.pathStyle": "" if self.path_style is None else str(self.path_style).lower(),
            "storage.anonymous": "true" if self.anonymous else "",
        }
        return _given(found)


@dataclass(frozen=True, slots=True)
class Place:
    scheme: Scheme
    authority: str  # the bucket; Azure: container@account.dfs.core.windows.net; local: empty
    path: str  # within it, without a slash at either end; local: the whole path
    access: StoreAccess = field(default_factory=StoreAccess)

    def __str__(self) -> str:
        return self.path if self.is_local else f"{self.scheme}://{self.authority}/{self.path}".rstrip("/")

    @property
    def is_local(self) -> bool:
        return self.scheme is Scheme.LOCAL

    def absolute(self) -> str:
        return os.path.abspath(self.path) if self.is_local else str(self)

    def beside(self, suffix: str) -> Place:
        """Return the place whose path is this one's path with a suffix."""
        return Place(self.scheme, self.authority, self.path + suffix, self.access)

    def child(self, name: str) -> Place:
        return self.beside(f"/{name}" if self.path else name)

    # For pyarrow

    def filesystem(self, *, patient: bool = True) -> tuple[FileSystem, str]:
        """Return the file system, and the place's path within it. Unless `patient`, it gives up after one try."""
        within = f"{self._container}/{self.path}".rstrip("/")
        match self.scheme:
            case Scheme.LOCAL:
                return LocalFileSystem(), self.path
            case Scheme.S3:
                return S3FileSystem(**self._s3_arguments(patient)), within
            case Scheme.GOOGLE:
                return GcsFileSystem(**self._google_arguments(patient)), within
            case Scheme.AZURE:
                return AzureFileSystem(**self._azure_arguments()), within
            case Scheme.HADOOP:
                found, path = FileSystem.from_uri(str(self))
                return found, path

    def _s3_arguments(self, patient: bool) -> dict[str, Any]:
        access = self.access
        found: dict[str, Any] = {
            "allow_delayed_open": True,  # a small file is one request instead of three
            "region": access.region or None,
            "anonymous": access.anonymous,
            "force_virtual_addressing": not access.uses_path_style,
            "connect_timeout": 10 if patient else 2,
            "retry_strategy": AwsStandardS3RetryStrategy(max_attempts=5 if patient else 1),
        }
        if access.endpoint:
            scheme, host = _scheme_and_host(access.endpoint)
            found |= {"scheme": scheme, "endpoint_override": host}
        if access.has_keys:
            keys = {"access_key": access.access_key, "secret_key": access.secret_key, "session_token": access.token}
            found |= {name: value or None for name, value in keys.items()}
        return found

    def _google_arguments(self, patient: bool) -> dict[str, Any]:
        limit = timedelta(seconds=60 if patient else 1)
        found: dict[str, Any] = {"anonymous": self.access.anonymous, "retry_time_limit": limit}
        if self.access.endpoint:
            scheme, host = _scheme_and_host(self.access.endpoint)
            found |= {"scheme": scheme, "endpoint_override": host}
        return found

    def _azure_arguments(self) -> dict[str, Any]:
        access = self.access
        found: dict[str, Any] = {"account_name": self._account}
        if access.endpoint:
            scheme, host = _scheme_and_host(access.endpoint)
            found |= {"blob_storage_scheme": scheme, "blob_storage_authority": host}
            found |= {"dfs_storage_scheme": scheme, "dfs_storage_authority": host}
        if access.secret_key:
            found["account_key"] = access.secret_key
        elif access.token:
            found["sas_token"] = access.token
        return found

    @property
    def _container(self) -> str:
        return self.authority.partition("@")[0]

    @property
    def _account(self) -> str:
        return self.authority.partition("@")[2].partition(".")[0]

    # For deltalake

    def for_delta(self) -> dict[str, Any]:
        """Return the arguments for `DeltaTable` and its class methods to find the table."""
        return {"table_uri": str(self), "storage_options": self.storage_options() or None}

    def storage_options(self) -> dict[str, str]:
        match self.scheme:
            case Scheme.S3:
                return self._s3_options()
            case Scheme.GOOGLE:
                found = {"google_base_url": self.access.endpoint}
            case Scheme.AZURE:
                found = {
                    "azure_storage_account_key": self.access.secret_key,
                    "azure_storage_sas_key": self.access.token,
                    "azure_storage_endpoint": self.access.endpoint,
                }
            case _:
                return {}
        if self.access.anonymous:
            found["skip_signature"] = "true"
        return _given(found) | self._plain_http()

    def _s3_options(self) -> dict[str, str]:
        access = self.access
        endpoint = access.endpoint
        if endpoint and not access.uses_path_style:  # deltalake wants the bucket to be in the host already
            scheme, host = _scheme_and_host(endpoint)
            endpoint = f"{scheme}://{self.authority}.{host}"
        found = {
            # This keeps two writers of one table apart: a version of the log is only written if it doesn't exist yet.
            # It is deltalake's default; set here, no environment variable can turn it off.
            "aws_conditional_put": "etag",
            "aws_endpoint_url": endpoint,
            "aws_region": access.region or _DEFAULT_REGION,
            "aws_access_key_id": access.access_key,
            "aws_secret_access_key": access.secret_key,
            "aws_session_token": access.token,
            "aws_virtual_hosted_style_request": "" if access.uses_path_style or not endpoint else "true",
            "aws_skip_signature": "true" if access.anonymous else "",
        }
        return _given(found) | self._plain_http()

    def _plain_http(self) -> dict[str, str]:
        return {"allow_http": "true"} if self.access.endpoint.startswith("http://") else {}

    # For Spark

    def for_spark(self) -> str:
        """Return the name that Spark's file systems use: they call S3 s3a."""
        return f"s3a{str(self).removeprefix('s3')}" if self.scheme is Scheme.S3 else str(self)


def parse_place(name: str, options: Mapping[str, str] | None = None, environ: Mapping[str, str] = os.environ) -> Place:
    """Return the place of this name. Raises `BadPlace` if the name or the options are invalid."""
    scheme_word, colon, rest = name.partition("://")
    if not colon:
        return Place(Scheme.LOCAL, "", _without_end(name))
    scheme = _SPELLINGS.get(scheme_word.lower())
    if scheme is None:
        raise BadPlace(f"{name}: expected a local path or one of {', '.join(f'{it}://' for it in Scheme)}")
    if scheme is Scheme.LOCAL:
        if not rest.startswith("/"):
            raise BadPlace(f"{name}: expected file:///PATH, with three slashes")
        return Place(Scheme.LOCAL, "", _without_end(rest))
    authority, _, path = rest.partition("/")
    if not authority and scheme is not Scheme.HADOOP:
        raise BadPlace(f"{name}: expected {scheme}://BUCKET/PATH")
    if scheme is Scheme.AZURE and not all(part for part in authority.partition("@")):
        raise BadPlace(f"{name}: expected abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH")
    return Place(scheme, authority, path.strip("/"), access_to(scheme, options or {}, environ))


def is_storage_option(name: str) -> bool:
    return name.lower().startswith(PREFIX)


def _without_end(path: str) -> str:
    return path.rstrip("/") or path[:1]


def _given(found: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in found.items() if value}


def _scheme_and_host(endpoint: str) -> tuple[str, str]:
    parts = urlsplit(endpoint)
    return parts.scheme, parts.netloc + parts.path.rstrip("/")


# Settings from options, Spark's conf and the environment


def access_to(scheme: Scheme, options: Mapping[str, str], environ: Mapping[str, str]) -> StoreAccess:
    """Return how to reach a store, by options `storage.*` and then the environment. Raises BadPlace."""
    given = _known(options)
    fallback = _from_environment(scheme, environ)
    names = ("accesskey", "secretkey", "token")
    keys = given if any(given.get(name) for name in names) else fallback
    style = given.get("pathstyle", "")
    access = StoreAccess(
        endpoint=_endpoint(given.get("endpoint") or fallback.get("endpoint", "")),
        region=given.get("region") or fallback.get("region", ""),
        path_style=style.lower() in _YES if style else None,
        anonymous=given.get("anonymous", "").lower() in _YES,
        access_key=keys.get("accesskey", ""),
        secret_key=keys.get("secretkey", ""),
        token=keys.get("token", ""),
    )
    if scheme is Scheme.S3 and bool(access.access_key) != bool(access.secret_key):
        raise BadPlace(
            "an access key needs both storage.accessKey and storage.secretKey (or both from the environment)"
        )
    return StoreAccess() if scheme is Scheme.HADOOP else access


def _known(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options without their prefix, in lower case as Spark passes them.

    Raises BadPlace for an unknown option.
    """
    if (name := unknown_in(options, "store")) is not None:
        raise BadPlace(f"there is no option {name}; there are: {', '.join(names_for('store'))}")
    return {name.lower().removeprefix(PREFIX): text.strip() for name, text in options.items()}


def _endpoint(text: str) -> str:
    if text and urlsplit(text).scheme not in ("http", "https"):
        raise BadPlace(f"storage.endpoint: expected https://HOST:PORT or http://HOST:PORT, not {text}")
    return text.rstrip("/")


_ENVIRONMENT: Final[Mapping[Scheme, Mapping[str, tuple[str, ...]]]] = {
    Scheme.S3: {
        "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
        "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
        "accesskey": ("AWS_ACCESS_KEY_ID",),
        "secretkey": ("AWS_SECRET_ACCESS_KEY",),
        "token": ("AWS_SESSION_TOKEN",),
    },
    Scheme.GOOGLE: {"endpoint": ("STORAGE_EMULATOR_HOST",)},
    Scheme.AZURE: {
        "secretkey": ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY"),
        "token": ("AZURE_STORAGE_SAS_TOKEN",),
    },
}


def _from_environment(scheme: Scheme, environ: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, variables in _ENVIRONMENT.get(scheme, {}).items():
        found[name] = next((environ[variable] for variable in variables if environ.get(variable)), "")
    return found


def options_of_conf(conf: Mapping[str, str], name: str) -> dict[str, str]:
    """Translate Spark's settings `spark.hadoop.fs.*` for the store that `name` lies in into options `storage.*`."""
    place = parse_place(name, environ={})
    hadoop = {key.removeprefix("spark.hadoop."): value for key, value in conf.items()}
    if place.scheme is Scheme.AZURE:
        return _given(
            {"storage.secretKey": hadoop.get(f"fs.azure.account.key.{place.authority.partition('@')[2]}", "")}
        )
    if place.scheme is not Scheme.S3:
        return {}

    def said(word: str) -> str:
        return hadoop.get(f"fs.s3a.bucket.{place.authority}.{word}") or hadoop.get(f"fs.s3a.{word}", "")

    endpoint = said("endpoint")
    if endpoint and "://" not in endpoint:
        endpoint = f"{'http' if said('connection.ssl.enabled') == 'false' else 'https'}://{endpoint}"
    return _given(
        {
            "storage.endpoint": endpoint,
            "storage.region": said("endpoint.region"),
            "storage.accessKey": said("access.key"),
            "storage.secretKey": said("secret.key"),
            "storage.token": said("session.token"),
            "storage.pathStyle": said("path.style.access"),
        }
    )
