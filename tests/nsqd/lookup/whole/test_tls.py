"""Registration and requests over TLS, with a client certificate."""

from __future__ import annotations

import ssl
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio

from nsqcommon.startup import StartupError
from nsqd.lookup.lookup import Lookup
from nsqd.lookup.settings import settings_of
from nsqd.options import Options
from tests.nsqd.lookup.whole.test_new_topic_asks_for_channels import answers, on_trio, until, until_learned
from tests.support.certificates import Certificates, make_certificates
from tests.support.fake_lookupd import FakeLookupd
from tests.support.node import Node, NodeTurn


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def options_for(certificates: Certificates) -> Options:
    return replace(
        Options(),
        lookupd_tls=True,
        lookupd_tls_root_ca_file=str(certificates.authority),
        lookupd_tls_cert=str(certificates.certificate),
        lookupd_tls_key=str(certificates.key),
    )


def server_context(certificates: Certificates) -> ssl.SSLContext:
    """Return a context that demands a client certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates.authority)
    context.load_cert_chain(certificates.certificate, certificates.key)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def test_it_registers_and_asks_over_tls(certificates: Certificates) -> None:
    @on_trio
    async def test() -> None:
        node, fake = Node(), FakeLookupd()
        fake.http_answer = answers("c")
        lookup = Lookup(node.broker, settings_of(options_for(certificates), hostname="h", node="n"))
        node.announce = lookup.announce
        async with trio.open_nursery() as nursery:
            lookup.configure([await nursery.start(partial(fake.listen, tls=server_context(certificates)))])
            nursery.start_soon(lookup.run, NodeTurn(node))
            topic = node.broker.topic("t")
            node.turn()
            await until_learned(topic)
            assert list(topic.channels) == ["c"]
            await until(lambda: fake.registered == {"t", "t c"})
            nursery.cancel_scope.cancel()

    test()


def test_it_does_not_register_with_who_has_no_certificate_that_it_trusts(certificates: Certificates) -> None:
    @on_trio
    async def test() -> None:
        node, fake = Node(), FakeLookupd()
        options = replace(options_for(certificates), lookupd_tls_root_ca_file="")
        lookup = Lookup(node.broker, settings_of(options, hostname="h", node="n"))
        node.announce = lookup.announce
        async with trio.open_nursery() as nursery:
            lookup.configure([await nursery.start(partial(fake.listen, tls=server_context(certificates)))])
            nursery.start_soon(lookup.run, NodeTurn(node))
            await until(lambda: len(fake.visits) > 1)
            assert not any(visit.identity for visit in fake.visits)
            nursery.cancel_scope.cancel()

    test()


def test_files_that_cannot_be_used_keep_it_from_starting(tmp_path: Path) -> None:
    options = replace(Options(), lookupd_tls=True, lookupd_tls_root_ca_file=str(tmp_path / "none"))
    with pytest.raises(StartupError, match="failed to build client TLS config - "):
        settings_of(options, hostname="h", node="n")


def test_certificates_without_tls_are_a_mistake() -> None:
    with pytest.raises(StartupError, match="need --lookupd-tls"):
        replace(Options(), lookupd_tls_cert="cert").checked()
