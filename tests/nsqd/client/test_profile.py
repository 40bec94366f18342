"""What is known about a client: its address, its transport, and the fields of IDENTIFY."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nsqcommon.wire.faults import ProtocolError
from nsqcommon.wire.identify import decode_identify
from nsqd.broker.consumer import Locality
from nsqd.client.profile import ClientProfile, ConnectionLayers
from tests.support.node import RULES


def profile(*, tls_required: bool = False, **features: object) -> ClientProfile:
    rules = replace(RULES, tls_required=tls_required, features=replace(RULES.features, **features))  # type: ignore[arg-type]
    return ClientProfile(rules, remote_address="10.0.0.1:4000", remote_host="10.0.0.1", connected=1)


def test_a_client_that_says_nothing_is_called_by_its_address() -> None:
    told = profile().snapshot("", state=0, pub_counts={}, consumer=None, authorization=None)
    assert (told.client_id, told.hostname, told.remote_address) == ("10.0.0.1", "10.0.0.1", "10.0.0.1:4000")


def test_the_latest_identify_is_in_force_and_the_first_for_delivery() -> None:
    client = profile()
    client.identify(decode_identify(b'{"client_id": "a", "sample_rate": 10}'))
    client.identify(decode_identify(b'{"client_id": "b", "sample_rate": 20}'))
    assert (client.settings.client_id, client.settings.sample_rate) == ("b", 20)
    assert client.delivery.sample_rate == 10


@pytest.mark.parametrize(("interval", "timeout"), [(5000, 5.0), (-1, 60.0)])
def test_a_client_may_take_an_interval_to_read(interval: int, timeout: float) -> None:
    client = profile()
    client.identify(decode_identify(b'{"heartbeat_interval": %d}' % interval))
    assert client.write_timeout == timeout


def test_an_upgrade_is_granted_once() -> None:
    client = profile(snappy=True)
    wish = decode_identify(b'{"feature_negotiation": true, "snappy": true}')
    assert client.identify(wish) is client.granted
    client.transport = ConnectionLayers().compressed(snappy=True)
    with pytest.raises(ProtocolError, match="connection is already upgraded"):
        client.identify(wish)


def test_only_tls_makes_a_client_secure() -> None:
    client = profile(tls_required=True)
    assert client.must_secure
    client.transport = ConnectionLayers(snappy=True)
    assert client.must_secure
    client.transport = ConnectionLayers(tls=True)
    assert not client.must_secure
    assert not profile().must_secure


@pytest.mark.parametrize(
    ("region", "zone", "expected"),
    [("r", "z", Locality.SAME_ZONE), ("r", "y", Locality.SAME_REGION), ("s", "y", Locality.ELSEWHERE)],
)
def test_closeness_is_what_identify_says(region: str, zone: str, expected: Locality) -> None:
    client = profile(topology_region="r", topology_zone="z")
    assert client.locality() is Locality.ELSEWHERE
    client.identify(
        decode_identify(b'{"topology_region": "%b", "topology_zone": "%b"}' % (region.encode(), zone.encode()))
    )
    assert client.locality() is expected


def test_a_snapshot_shows_the_publish_count_that_was_asked_for() -> None:
    def counts(topic: str) -> tuple[tuple[str, int], ...]:
        told = profile().snapshot(topic, state=0, pub_counts={"a": 1, "b": 2}, consumer=None, authorization=None)
        return tuple(told.pub_counts)

    assert counts("b") == (("b", 2),)
    assert counts("") == (("a", 1),)
    assert counts("c") == ()
