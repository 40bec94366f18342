"""What went wrong at a store, out of the text of an exception of obstore, in words for an operator.

obstore's exceptions have a kind and a text: a sentence with the body of the store's answer, then the whole chain of
causes in Rust's notation. What an operator has to know is deep in there, so it is looked for by patterns. A text that
none of them knows is shown as it is, without what belongs to no log.
"""

from __future__ import annotations

import re
from typing import Final

from nsqd.remote.object_store import StoreFault, StoreFaultKind

_CODE: Final = re.compile(r"<Code>\s*(\w+)\s*</Code>|\(code: ([A-Za-z]\w*)\)|\"(?:status|reason|error)\": *\"(\w+)\"")
_MESSAGE: Final = re.compile(r"<Message>\s*([^<\n]*)|\"message\": *\"([^\"\n]*)\"")
_STATUS: Final = re.compile(r"status code: (\d\d\d)")
_SERVER_TIME: Final = re.compile(r"<ServerTime>([^<]*)")
_DEBUG: Final = "\n\nDebug source:"
_SECRETS: Final = re.compile(r"\?\S*")  # the query of a URL, which may be a signature
_LONGEST: Final = 300

_DENIED, _MISSING, _CLOCK, _BUSY = (
    StoreFaultKind.DENIED,
    StoreFaultKind.MISSING,
    StoreFaultKind.CLOCK,
    StoreFaultKind.BUSY,
)
_RIGHTS: Final = "these credentials don't allow it: they need to get, put, delete and list objects here"
_SET_CLOCK: Final = "the store refuses requests because this machine's clock is off: set it, by NTP for example"
_NO_BUCKET: Final = "there is no bucket of this name: create it, or correct the URL"
_NO_CONTAINER: Final = "there is no container of this name: create it, or correct the URL"
_NO_CREDENTIALS: Final = "there are no credentials: the environment has none, and no cloud gives any to this machine"
_REGION: Final = "the bucket is in another region: name it by --remote-option=region=REGION"
_SLOW_DOWN: Final = "the store asks for fewer requests"

# The codes that stores give as the reason, and what they mean for an operator.
_CODES: Final[dict[str, tuple[StoreFaultKind, str]]] = {
    "InvalidAccessKeyId": (_DENIED, "the store doesn't know this access key: correct AWS_ACCESS_KEY_ID"),
    "SignatureDoesNotMatch": (_DENIED, "the secret key is wrong: correct AWS_SECRET_ACCESS_KEY"),
    "InvalidToken": (_DENIED, "the session token is wrong"),
    "ExpiredToken": (_DENIED, "the session token has expired"),
    "AccessDenied": (_DENIED, _RIGHTS),
    "AllAccessDisabled": (_DENIED, _RIGHTS),
    "AccountProblem": (_DENIED, "the account at the store has a problem"),
    "AuthenticationFailed": (_DENIED, "the account's key or token is wrong"),  # Azure
    "AuthorizationFailure": (_DENIED, "the account's key or token is wrong"),
    "AuthorizationPermissionMismatch": (_DENIED, _RIGHTS),
    "InsufficientAccountPermissions": (_DENIED, _RIGHTS),
    "invalid_grant": (_DENIED, "the service account's key is wrong, or this machine's clock is off"),  # Google
    "RequestTimeTooSkewed": (_CLOCK, _SET_CLOCK),
    "RequestExpired": (_CLOCK, _SET_CLOCK),
    "NoSuchBucket": (_MISSING, _NO_BUCKET),
    "ContainerNotFound": (_MISSING, _NO_CONTAINER),
    "ContainerBeingDeleted": (_MISSING, "the container is being deleted"),
    "QuotaExceeded": (StoreFaultKind.FULL, "the quota is used up"),
    "SlowDown": (_BUSY, _SLOW_DOWN),
    "ServerBusy": (_BUSY, _SLOW_DOWN),
    "TooManyRequests": (_BUSY, _SLOW_DOWN),
    "AuthorizationHeaderMalformed": (StoreFaultKind.OTHER, _REGION),
    "PermanentRedirect": (StoreFaultKind.OTHER, _REGION),
    "EntityTooLarge": (StoreFaultKind.OTHER, "an object of 8 MiB is too large for the store"),
}

# Azure's answer to a wrong clock has the code of a wrong key, so this counts more than the code.
_OFF_CLOCK: Final = re.compile("Request date header too old|reasonable timeframe")
# What counts where there is no code: a pattern in the whole text, and what it means. The first one decides.
_SIGNS: Final = tuple(
    (re.compile(pattern), kind, text)
    for pattern, kind, text in (
        ("The specified container does not exist", _MISSING, _NO_CONTAINER),
        ("The specified bucket does not exist", _MISSING, _NO_BUCKET),
        (r"169\.254\.|metadata\.google|performing token request", _DENIED, _NO_CREDENTIALS),
        ("MissingAccount", _DENIED, "there is no account: name it by --remote-option=account_name=NAME"),
        ("InvalidAccessKey|OpenCredentials|DecodeCredentials", _DENIED, ""),
        ("redirect without LOCATION|BareRedirect", StoreFaultKind.OTHER, _REGION),
        ("BadScheme|not allowed.*http", StoreFaultKind.OTHER, "an endpoint has to begin with http:// or https://"),
        ("dns error", StoreFaultKind.UNREACHABLE, "the name of the store's host is unknown"),
        ("ConnectionRefused", StoreFaultKind.UNREACHABLE, "nothing listens there: the connection was refused"),
        ("InvalidCertificate|UnknownIssuer", StoreFaultKind.UNREACHABLE, "its certificate isn't trusted here"),
        ("kind: Timeout|TimedOut", StoreFaultKind.UNREACHABLE, "no answer in time"),
        (
            "IncompleteMessage|ConnectionReset|ConnectionAborted|BrokenPipe",
            StoreFaultKind.UNREACHABLE,
            "it broke the connection",
        ),
        ("kind: Connect,", StoreFaultKind.UNREACHABLE, "no connection can be made"),
    )
)
_STATUSES: Final[dict[str, tuple[StoreFaultKind, str]]] = {
    "401": (_DENIED, "the store doesn't accept these credentials"),
    "403": (_DENIED, _RIGHTS),
    "404": (_MISSING, "this is no answer of an object store: is the endpoint right?"),
    "413": _CODES["EntityTooLarge"],
    "429": (_BUSY, _SLOW_DOWN),
    "503": (_BUSY, _SLOW_DOWN),
    "507": (StoreFaultKind.FULL, "the store is full"),
}

# A 404 with another code, or with none, says nothing about the object: a proxy or a web server gives such answers, too.
_ABSENT: Final = re.compile(r"<Code>\s*(NoSuchKey|BlobNotFound)\s*</Code>")
_BEYOND_END: Final = re.compile(r"status code: 416|StartTooLarge")


def says_absent(text: str) -> bool:
    """Return whether a store says that there is no such object, and not only that it has found nothing."""
    return _ABSENT.search(text) is not None


def says_beyond_end(text: str) -> bool:
    """Return whether a store says that the object has fewer bytes than the range that was asked for begins at."""
    return _BEYOND_END.search(text) is not None


def fault_of(text: str, place: object) -> StoreFault:
    """Return what the text of an exception of obstore means. `place` is the store's URL."""
    code, message, status = (_first(it, text) for it in (_CODE, _MESSAGE, _STATUS))
    sentence = _SECRETS.sub("", text.partition(_DEBUG)[0])
    kind, meaning = _meaning(text, code, status)
    if not meaning:
        return StoreFault(f"{place}: {' '.join(sentence.split())[:_LONGEST]}", kind)
    detail = ": ".join(filter(None, (code or (f"status {status}" if status else ""), message.strip().rstrip("."))))
    if kind is StoreFaultKind.CLOCK and (time := _first(_SERVER_TIME, text)):
        detail += f"; its clock says {time}"
    return StoreFault(f"{place}: {meaning}" + (f" ({detail[:_LONGEST]})" if detail else ""), kind)


def _meaning(text: str, code: str, status: str) -> tuple[StoreFaultKind, str]:
    if _OFF_CLOCK.search(text):
        return _CLOCK, _SET_CLOCK
    if code in _CODES:
        return _CODES[code]
    for pattern, kind, meaning in _SIGNS:
        if pattern.search(text):
            return kind, meaning
    if status in _STATUSES:
        return _STATUSES[status]
    return StoreFaultKind.OTHER, "the store has failed" if status.startswith("5") else ""


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return next(filter(None, found.groups()), "") if found else ""
