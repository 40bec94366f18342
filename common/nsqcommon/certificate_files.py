"""TLS files that are loaded at the start and again when they have been renewed, without a restart.

A renewed certificate counts for new handshakes. Connections that are already open keep theirs, because OpenSSL copies
it into each of them.

Tools renew files in different ways, so we look at the files themselves and not for events: certbot renames one file
after the other, Kubernetes and cert-manager swap a symbolic link to a folder, and a script may copy the certificate,
and the key a moment later. To look means to ask for the status of the file behind any links. We load changed files once
they have stayed the same from one look to the next, so that we rarely meet a half-written one:

    look: changed ──► look: still changing ──► look: same as before ──► load ──► valid: use it for new handshakes
                                                                             └─► not: log why, keep the old one

We go on trying to load what was refused, because the reason may go away without a change of the files: a certificate
may become valid later, or a folder readable.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from time import time
from typing import Any, Final, Generic, TypeVar

import trio

from nsqcommon.certificate import Certificate, read_certificate
from nsqcommon.prometheus import Metric, Sample
from nsqcommon.startup import StartupError

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_INTERVAL: Final = 1.0  # seconds

_Status = tuple[int, int, int, int, int]


class CertificateFiles(Generic[T]):
    """A certificate with its key and authorities, and `now`, which was built from their newest valid version."""

    def __init__(
        self,
        use: str,
        paths: Iterable[str],
        build: Callable[[], T],
        *,
        certificate: str = "",
        clock: Callable[[], float] = time,
    ) -> None:
        """Load the files. `build` reads them, and raises StartupError, OSError or ValueError if it can't use them.

        `use` names in logs and metrics what the files are for. `certificate` is the path of our own certificate among
        the `paths`, if there is one. Here, unlike later, it may have expired, because a broker with an old certificate
        is better than none: not all clients verify it.
        """
        self.use = use
        self.error = ""  # why the newest version of the files isn't in use
        self.paths = tuple(dict.fromkeys(path for path in paths if path))
        self._build = build
        self._path = certificate
        self._clock = clock
        self._loaded = self._seen = self._look()
        self._refused: tuple[object, str] | None = None
        self.now = build()
        self.certificate = self._read()

    @property
    def is_expired(self) -> bool:
        return self.certificate is not None and self._clock() >= self.certificate.expires

    async def follow(self) -> None:
        """Log which certificate is in use, and load each renewed version, until cancelled."""
        self._log_loaded()
        while True:
            await trio.sleep(LOOK_INTERVAL)
            await self.load_if_renewed()

    async def load_if_renewed(self) -> None:
        """Look at the files, and load them if they have changed and then stayed the same since the last look."""
        seen, before = self._look(), self._seen
        self._seen = seen
        if seen == self._loaded:
            self.error, self._refused = "", None
        elif seen == before:
            await self._load(seen)

    async def _load(self, seen: tuple[_Status | None, ...]) -> None:
        error = ""
        try:
            now, certificate = await trio.to_thread.run_sync(self._build_valid)
        except (OSError, ValueError, StartupError) as refused:
            error = reason_of(refused)
        if self._look() != seen:  # they were written while we read them
            return
        if error:
            self._refuse(seen, error)
            return
        self.now, self.certificate = now, certificate
        self._loaded, self.error, self._refused = seen, "", None
        self._log_loaded()

    def _build_valid(self) -> tuple[T, Certificate | None]:
        now, certificate = self._build(), self._read()
        if certificate is not None:
            if self._clock() >= certificate.expires:
                raise ValueError(f"{self._path} expired on {_moment(certificate.expires)}")
            if self._clock() < certificate.valid_from:
                raise ValueError(f"{self._path} is not valid before {_moment(certificate.valid_from)}")
        return now, certificate

    def _refuse(self, seen: tuple[_Status | None, ...], error: str) -> None:
        self.error = error
        if self._refused != (seen, error):
            self._refused = (seen, error)
            log.error("TLS: refused the renewed files for %s, keeping the old ones - %s", self.use, error)

    def _log_loaded(self) -> None:
        if (it := self.certificate) is None:
            log.info("TLS: loaded the files for %s files=%s", self.use, ",".join(self.paths))
        elif self.is_expired:
            log.warning("TLS: the certificate for %s has expired subject=%s expires=%s", *self._described(it))
        else:
            log.info("TLS: loaded the certificate for %s subject=%s expires=%s", *self._described(it))

    def _described(self, certificate: Certificate) -> tuple[str, str, str]:
        return self.use, certificate.subject, _moment(certificate.expires)

    def _look(self) -> tuple[_Status | None, ...]:
        return tuple(_status_of(path) for path in self.paths)

    def _read(self) -> Certificate | None:
        """Return our own certificate, or None if there is none, or if only OpenSSL understands it."""
        try:
            return read_certificate(_text_of(self._path)) if self._path else None
        except ValueError:
            return None


class RenewedContext(ssl.SSLContext):
    """A client's context that begins each connection with the newest valid version of its files.

    For code that takes a context once and keeps it. Everything about a connection is in the object that `wrap_bio`
    returns, so only what begins one is redirected.
    """

    def __new__(cls, files: CertificateFiles[ssl.SSLContext]) -> RenewedContext:
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, files: CertificateFiles[ssl.SSLContext]) -> None:
        self._files = files

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        return self._files.now.wrap_bio(*arguments, **named)

    def wrap_socket(self, *arguments: Any, **named: Any) -> ssl.SSLSocket:
        return self._files.now.wrap_socket(*arguments, **named)

    def set_alpn_protocols(self, alpn_protocols: Iterable[str]) -> None:
        self._files.now.set_alpn_protocols(alpn_protocols)


def renewable(*files: CertificateFiles[Any] | None) -> tuple[CertificateFiles[Any], ...]:
    """Return those of the arguments that have files to follow. The system's authorities are loaded only once."""
    return tuple(it for it in files if it is not None and it.paths)


def load_chain(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Load a certificate and its key. An empty `key` means that the key is in the certificate's file.

    Raises OSError or ValueError. Unlike the ssl module's errors, they say which file is wrong.
    """
    text = _text_of(certificate)
    if key:
        open(key, "rb").close()
    try:
        context.load_cert_chain(certificate, key or None, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ValueError(f"{key or certificate} is not the key of {certificate}") from error
        if error.library == "SSL" and (reason := str(error.reason or "")):  # such as: ee key too small
            raise ValueError(f"{certificate} - {reason.lower().replace('_', ' ')}") from error
        if not _is_whole(text):
            raise ValueError(f"{certificate} has no complete certificate in PEM format") from error
        raise ValueError(f"{key or certificate} has no usable private key") from error


def reason_of(error: Exception) -> str:
    """Return the text of an error from loading TLS files, with the path that an OSError names."""
    if isinstance(error, OSError) and error.strerror and not isinstance(error, ssl.SSLError):
        cause = error.strerror.lower()
        return f"open {os.fsdecode(error.filename)}: {cause}" if error.filename is not None else cause
    return str(error)


def certificate_metrics(program: str, files: Iterable[CertificateFiles[Any]]) -> list[Metric]:
    """Return the metrics of these files, or none if there are no files."""
    files = list(files)
    if not files:
        return []
    expiries = [Sample(it.certificate.expires, {"use": it.use}) for it in files if it.certificate is not None]
    refused = [Sample(int(bool(it.error)), {"use": it.use}) for it in files]
    return [
        Metric(
            f"{program}_certificate_expires_seconds",
            "gauge",
            "When the TLS certificate in use expires, in Unix time.",
            expiries,
        ),
        Metric(
            f"{program}_certificate_refused",
            "gauge",
            "1 while the newest TLS files are invalid, so that older ones are in use.",
            refused,
        ),
    ]


def _status_of(path: str) -> _Status | None:
    try:
        it = os.stat(path)
    except OSError:
        return None
    # ctime, too, because it also changes with the permissions, and can't be set back as `cp -p` does with mtime.
    return it.st_dev, it.st_ino, it.st_size, it.st_mtime_ns, it.st_ctime_ns


def _text_of(path: str) -> str:
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read()


def _is_whole(text: str) -> bool:
    begun = text.count("-----BEGIN CERTIFICATE-----")
    if not begun or begun != text.count("-----END CERTIFICATE-----"):
        return False
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError):
        return False
    return True


def _no_password() -> str:
    """Refuse an encrypted key. Without this, OpenSSL would ask for its password on the terminal."""
    raise ValueError("the private key is encrypted, and a daemon can't ask for its password")


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
