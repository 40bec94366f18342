"""The subject and validity of a certificate, for the log and for metrics.

Python's ssl module uses a certificate but doesn't show it: there is no call for the expiry of one's own. So we read the
three fields ourselves. They are at fixed places in the DER encoding (RFC 5280, 4.1):

    Certificate: { TBSCertificate: { [0] version?, serial, signature, issuer, {not before, not after}, subject, key,
                                     ..., [3] {extensions}? }, ... }

We never decide with them whether to trust a peer. That is OpenSSL's task.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

_PEM: Final = re.compile(r"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END ")

_UTC_TIME: Final = 0x17  # with a year of two digits
_VERSION: Final = 0xA0
_EXTENSIONS: Final = 0xA3
_DNS_NAME: Final = 0x82
_LONG_LENGTH: Final = 0x80
_ALTERNATIVE_NAMES: Final = bytes.fromhex("551d11")
_BMP_STRING: Final = 0x1E
# The usual short names of attributes, by their object identifiers (RFC 4514).
_ATTRIBUTES: Final = {
    bytes.fromhex("550403"): "CN",
    bytes.fromhex("550406"): "C",
    bytes.fromhex("550407"): "L",
    bytes.fromhex("550408"): "ST",
    bytes.fromhex("55040a"): "O",
    bytes.fromhex("55040b"): "OU",
}
_MOST_OF_SUBJECT: Final = 200  # characters


@dataclass(frozen=True, slots=True)
class Certificate:
    subject: str  # CN=broker.example,O=Example; without a subject, the first DNS names
    valid_from: float  # Unix time
    expires: float  # Unix time


def read_certificate(pem: str) -> Certificate:
    """Read the first certificate of a PEM file. In the file of a server, that is its own.

    Raises ValueError if there is none, or if we can't read it.
    """
    found = _PEM.search(pem)
    if found is None:
        raise ValueError("no certificate in PEM format")
    try:
        return _certificate(b64decode(found[1]))
    except (IndexError, StopIteration, KeyError) as error:
        raise ValueError("not a certificate") from error


def _certificate(der: bytes) -> Certificate:
    (_, whole), *_ = _elements(der)
    (_, signed), *_ = _elements(whole)
    fields = list(_elements(signed))
    if fields[0][0] == _VERSION:
        del fields[0]
    _, _, _, (_, validity), (_, subject), *rest = fields
    valid_from, expires = (_time(tag, content) for tag, content in _elements(validity))
    names = _printable(_subject(subject) or _dns_names(rest))
    return Certificate(names, valid_from, expires)


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the tag and the content of each element in a row of them."""
    at = 0
    while at < len(data):
        tag, length = data[at], data[at + 1]
        at += 2
        if length & _LONG_LENGTH:
            size = length & ~_LONG_LENGTH
            length = int.from_bytes(data[at : at + size], "big")
            at += size
        if at + length > len(data):
            raise ValueError("not a certificate: it is cut off")
        yield tag, data[at : at + length]
        at += length


def _time(tag: int, content: bytes) -> float:
    text = content.decode("ascii")
    if tag == _UTC_TIME:  # 50 to 99 are in the last century
        text = ("20" if text[:2] < "50" else "19") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _subject(content: bytes) -> str:
    parts = []
    for _, one_or_more in _elements(content):
        for _, attribute in _elements(one_or_more):
            (_, kind), (tag, value) = _elements(attribute)
            if kind in _ATTRIBUTES:
                text = value.decode("utf-16-be" if tag == _BMP_STRING else "utf-8", "replace")
                parts.append(f"{_ATTRIBUTES[kind]}={text}")
    return ",".join(parts)


def _dns_names(fields: list[tuple[int, bytes]]) -> str:
    for tag, content in fields:
        if tag == _EXTENSIONS:
            (_, extensions), *_ = _elements(content)
            for _, extension in _elements(extensions):
                (_, kind), *_, (_, value) = _elements(extension)
                if kind == _ALTERNATIVE_NAMES:
                    (_, names), *_ = _elements(value)
                    return ",".join(it.decode("ascii", "replace") for tag, it in _elements(names) if tag == _DNS_NAME)
    return ""


def _printable(text: str) -> str:
    """Return a text that can't break a line of the log."""
    return "".join(it if it.isprintable() else "?" for it in text[:_MOST_OF_SUBJECT])
