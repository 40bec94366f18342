"""Subject and validity, as openssl shows them."""

from __future__ import annotations

import ssl
from base64 import b64encode
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcommon.certificate import Certificate, read_certificate
from tests.support.certificates import Certificates, make_certificates, openssl, renewed


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def seconds(shown: str) -> float:
    """Return the Unix time of openssl's `notAfter=Dec  1 12:24:34 2026 GMT`."""
    text = shown.strip().partition("=")[2]
    return datetime.strptime(text, "%b %d %H:%M:%S %Y GMT").replace(tzinfo=UTC).timestamp()


# From 2050 on, a certificate writes years with four digits.
@pytest.mark.parametrize("days", [1, 36_500])
def test_validity_is_read_in_both_formats_of_time(made: Certificates, days: int) -> None:
    path = renewed(made.authority.parent, f"days-{days}-", "/CN=localhost", days=days).certificate
    read = read_certificate(path.read_text())
    assert read.expires == seconds(openssl("x509", "-in", path, "-noout", "-enddate"))
    assert read.valid_from == seconds(openssl("x509", "-in", path, "-noout", "-startdate"))


@pytest.mark.parametrize(
    ("subject", "shown"),
    [
        ("/CN=broker.example", "CN=broker.example"),
        ("/C=DE/O=Beispiel/CN=broker.example", "C=DE,O=Beispiel,CN=broker.example"),
        ("/CN=Zo\u00eb", "CN=Zo\u00eb"),
        ("/CN=one\nline", "CN=one?line"),
        ("/", "localhost"),  # many authorities only fill in the alternative names
    ],
)
def test_the_subject_is_one_line(made: Certificates, subject: str, shown: str) -> None:
    path = renewed(made.authority.parent, "subject-", subject).certificate
    assert read_certificate(path.read_text()).subject == shown


def test_the_first_certificate_of_a_chain_is_ours(made: Certificates) -> None:
    chain = made.certificate.read_text() + made.authority.read_text()
    assert read_certificate("Bag Attributes\n" + chain).subject == "CN=localhost"


def test_a_certificate_in_the_file_of_its_key_is_found(made: Certificates) -> None:
    assert read_certificate(made.key.read_text() + made.certificate.read_text()).subject == "CN=localhost"


def test_a_file_without_a_certificate_is_refused(made: Certificates) -> None:
    with pytest.raises(ValueError, match="no certificate"):
        read_certificate(made.key.read_text())


@given(st.data())
def test_any_damage_is_a_value_error(made: Certificates, data: st.DataObject) -> None:
    whole = bytearray(_der(made.certificate))
    cut = data.draw(st.integers(0, len(whole)))
    for at in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=4)):
        whole[at] = data.draw(st.integers(0, 255))
    pem = f"-----BEGIN CERTIFICATE-----\n{b64encode(whole[:cut]).decode()}\n-----END CERTIFICATE-----\n"
    try:
        read = read_certificate(pem)
    except ValueError:
        return
    assert isinstance(read, Certificate)
    assert read.subject.isprintable()


def _der(path: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(path.read_text())
