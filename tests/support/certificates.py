"""Certificates for tests, made by openssl: an authority, and certificates that it has signed."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support.needs import need


@dataclass(frozen=True, slots=True)
class Certificates:
    authority: Path
    certificate: Path  # for localhost and 127.0.0.1; also valid for a client
    key: Path


def make_certificates(folder: Path) -> Certificates:
    need("openssl")
    made = Certificates(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
    new = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    ca_key = folder / "ca-key.pem"
    # Python 3.13 takes no authority that does not say what its key is for.
    usage = ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]
    _openssl(*new, *usage, "-subj", "/CN=authority", "-keyout", ca_key, "-out", made.authority)
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    signed: list[str | Path] = [
        "-CA",
        made.authority,
        "-CAkey",
        ca_key,
        "-addext",
        "basicConstraints=critical,CA:FALSE",
    ]
    _openssl(*new, *names, *signed, "-keyout", made.key, "-out", made.certificate)
    return made


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
