"""Certificates for tests, made by openssl: an authority, and certificates that it has signed."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.needs import need

_NEW: Final = (
    "req",
    "-x509",
    "-newkey",
    "ec",
    "-pkeyopt",
    "ec_paramgen_curve:prime256v1",
    "-nodes",
    "-utf8",
    "-days",
    "2",
)


@dataclass(frozen=True, slots=True)
class Certificates:
    authority: Path
    certificate: Path  # for localhost and 127.0.0.1; also valid for a client
    key: Path


def make_certificates(folder: Path) -> Certificates:
    """Make an authority, and sign a certificate with it."""
    need("openssl")
    # Python 3.13 takes no authority that does not say what its key is for.
    usage = ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]
    openssl(*_NEW, *usage, "-subj", "/CN=authority", "-keyout", folder / "ca-key.pem", "-out", folder / "ca.pem")
    return renewed(folder, "", "/CN=localhost")


def renewed(folder: Path, stem: str, subject: str, *, days: int = 2) -> Certificates:
    """Sign another certificate with the authority that `make_certificates` has made in this folder."""
    made = Certificates(folder / "ca.pem", folder / f"{stem}cert.pem", folder / f"{stem}key.pem")
    names = ["-subj", subject, "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    signed: list[str | Path] = ["-CA", made.authority, "-CAkey", folder / "ca-key.pem"]
    ours = ["-addext", "basicConstraints=critical,CA:FALSE", "-days", str(days)]
    openssl(*_NEW, *names, *signed, *ours, "-keyout", made.key, "-out", made.certificate)
    return made


def common_name(shown: Any) -> str:
    """Return the name in a certificate, as `getpeercert` shows it."""
    return str(dict(pair for (pair,) in shown["subject"])["commonName"])


def copy_certificate(source: Certificates, target: Certificates) -> None:
    """Renew the certificate and the key at these paths as certbot does: each file in one step."""
    replace_file(target.certificate, source.certificate.read_bytes())
    replace_file(target.key, source.key.read_bytes())


def replace_file(path: Path, content: bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(content)
    os.replace(new, path)


def openssl(*arguments: str | Path) -> str:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
