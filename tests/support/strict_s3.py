"""An S3 server in a thread that looks at who asks, when, and for which bucket, as a real one does. moto accepts anything."""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from tests.support.engines import BUCKET, KEY, SECRET
from tests.support.http_server import Reply, Request
from tests.support.lying_s3 import HonestS3

_SKEW: Final = 900  # seconds that S3 tolerates
_STAMP: Final = "%Y%m%dT%H%M%SZ"


class StrictS3(HonestS3):
    """Change its attributes to have it refuse what it has accepted."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: Mapping[str, str] = {KEY: SECRET}
        self.bucket = BUCKET
        self.clock_is_off_by = 0.0  # seconds

    def remote_options(self, **changed: str) -> tuple[str, ...]:
        """Return nsqd's options for this store, without their dashes."""
        options = {"endpoint": self.url, "access_key_id": KEY, "secret_access_key": SECRET, **changed}
        return f"remote=s3://{BUCKET}/nsq", *(f"remote-option={name}={value}" for name, value in options.items())

    def reply(self, request: Request) -> Reply:
        return self._refusal(request) or super().reply(request)

    def _refusal(self, request: Request) -> Reply | None:
        signed = re.fullmatch(
            r"AWS4-HMAC-SHA256 Credential=(\S+?)/(\S+), SignedHeaders=(\S+), Signature=(\S+)",
            request.headers.get("authorization", ""),
        )
        if signed is None:
            return _error(403, "AccessDenied")
        key, scope, names, signature = signed.groups()
        if key not in self.keys:
            return _error(403, "InvalidAccessKeyId")
        now = time.time() + self.clock_is_off_by
        stamp = request.headers["x-amz-date"]
        sent = datetime.strptime(stamp, _STAMP).replace(tzinfo=UTC).timestamp()
        if abs(now - sent) > _SKEW:
            return _error(
                403, "RequestTimeTooSkewed", ServerTime=f"{datetime.fromtimestamp(now, UTC):%Y-%m-%dT%H:%M:%SZ}"
            )
        if signature != _signature(request, self.keys[key], scope, names, stamp):
            return _error(403, "SignatureDoesNotMatch")
        if request.path.split("/")[1] != self.bucket:
            return _error(404, "NoSuchBucket")
        return None


def _signature(request: Request, secret: str, scope: str, names: str, stamp: str) -> str:
    path, _, query = request.target.partition("?")
    words = sorted(word if "=" in word else f"{word}=" for word in query.split("&") if word)
    headers = "".join(f"{name}:{request.headers[name].strip()}\n" for name in names.split(";"))
    body = request.headers["x-amz-content-sha256"]
    asked = "\n".join([request.method, path, "&".join(words), headers, names, body])
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(asked.encode()).hexdigest()])
    key = f"AWS4{secret}".encode()
    for word in scope.split("/"):
        key = hmac.digest(key, word.encode(), "sha256")
    return hmac.digest(key, text.encode(), "sha256").hex()


def _error(status: int, code: str, **more: str) -> Reply:
    inner = "".join(f"<{name}>{text}</{name}>" for name, text in {"Code": code, **more}.items())
    return Reply(status, f"<Error>{inner}</Error>".encode())
