"""`--remote=URL` and `--remote-option=NAME=VALUE`: which store, and which part of it.

s3://BUCKET/PREFIX      Amazon S3, and everything that speaks its protocol
gs://BUCKET/PREFIX      Google Cloud Storage
az://CONTAINER/PREFIX   Azure Blob Storage
file:///FOLDER          a folder that both machines see, on NFS or CephFS for example
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import unquote, urlsplit

_KNOWN: Final = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///FOLDER"
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=@+-]*")  # no store and no library writes these otherwise
_LIKELY: Final = {"gcs": "gs", "s3a": "s3", "s3n": "s3", "azure": "az", "abfs": "az", "abfss": "az", "wasb": "az"}


class StoreScheme(StrEnum):
    S3 = "s3"
    GS = "gs"
    AZ = "az"
    FILE = "file"


_ENDPOINTS: Final[Mapping[StoreScheme, tuple[str, ...]]] = {
    StoreScheme.S3: ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    StoreScheme.AZ: ("AZURE_STORAGE_ENDPOINT",),
}


@dataclass(frozen=True, slots=True)
class StoreLocation:
    scheme: StoreScheme
    bucket: str  # or the container; a folder has none
    prefix: str  # without slashes at its ends; of a folder its path

    def __str__(self) -> str:
        if self.scheme is StoreScheme.FILE:
            return f"file://{self.prefix}"
        return f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")


def parse_location(text: str) -> StoreLocation:
    """Return the location that a URL names. Raises ValueError with a text that completes "--remote ..."."""
    word, colon, _ = text.partition(":")
    if not colon or word not in list(StoreScheme):
        hint = f": write {_LIKELY[word]}:// for {word}://" if word in _LIKELY else ""
        if word in ("http", "https"):
            hint = ": give the server's address by --remote-option=endpoint=URL, and the bucket here"
        raise ValueError(f"must be {_KNOWN}{hint}")
    parts = urlsplit(text)
    if "@" in parts.netloc:
        raise ValueError("must not contain credentials: put them into the environment")
    if parts.query or parts.fragment:
        raise ValueError(f"must be {_KNOWN}, without ? and #")
    path = unquote(parts.path)
    scheme = StoreScheme(word)
    if scheme is StoreScheme.FILE:
        return StoreLocation(scheme, "", _folder(parts.netloc, path))
    if not _BUCKET.fullmatch(parts.netloc):
        raise ValueError(f"must be {_KNOWN}: {parts.netloc!r} can't be the name of a bucket")
    prefix = path.strip("/")
    if prefix and not all(map(_WORD.fullmatch, prefix.split("/"))):
        raise ValueError("must have a prefix of letters, digits and . _ - = @ +, such as nsq/production")
    return StoreLocation(scheme, parts.netloc, prefix)


def parse_node_name(text: str) -> str:
    """Return a name that a node may have in a store, where it is a part of all names. Raises ValueError."""
    if not _WORD.fullmatch(text):
        raise ValueError("must be a name of letters, digits and . _ - = @ +, such as nsqd-1")
    return text


def _folder(host: str, path: str) -> str:
    if host not in ("", "localhost"):
        raise ValueError(f"must name a folder by its full path: write file:///{host}{path} for file://{host}{path}")
    if not path.strip("/"):
        raise ValueError("must name a folder, as in file:///mnt/shared/nsq")
    if ".." in path.split("/"):
        raise ValueError("must name a folder without ..")
    return "/" + path.strip("/")


def parse_remote_option(text: str) -> tuple[str, str]:
    """Return the name and the value of a `--remote-option`. Raises ValueError."""
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch("[a-z][a-z0-9_]*", name):
        raise ValueError("must be NAME=VALUE, as in endpoint=http://127.0.0.1:9000")
    return name, value


def endpoint_of(scheme: StoreScheme, options: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """Return the URL of a server that isn't the cloud's own, from the options or the environment, or ""."""
    named = [value for name, value in options.items() if name.endswith(("endpoint", "endpoint_url_s3"))]
    return next(filter(None, [*named, *map(environ.get, _ENDPOINTS.get(scheme, ()))]), None) or ""


def host_of(location: StoreLocation, options: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """Return the host that requests go to. A folder has none: ""."""
    if endpoint := endpoint_of(location.scheme, options, environ):
        return urlsplit(endpoint).hostname or ""
    account = options.get("account_name") or environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")
    region = options.get("region") or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    return {
        StoreScheme.S3: f"s3.{region}.amazonaws.com",
        StoreScheme.GS: "storage.googleapis.com",
        StoreScheme.AZ: f"{account}.blob.core.windows.net",
        StoreScheme.FILE: "",
    }[location.scheme]
