"""The identity of one client: its addresses, its transport, and its settings from IDENTIFY."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from nsqcommon.wire.faults import Fault, ProtocolError
from nsqcommon.wire.identify import ClientSettings, IdentifyRequest, Negotiation, apply_identify, negotiate
from nsqd.broker.consumer import Consumer, Locality
from nsqd.broker.stats_records import ClientSnapshot

if TYPE_CHECKING:
    from nsqd.client.authorization import Authorization
    from nsqd.client.rules import ClientRules

_WRITE_TIMEOUT: Final = 60.0  # seconds, for a client without heartbeats; NSQ would wait forever


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLayers:
    """The layers between a client's socket and its protocol: TLS and compression."""

    tls: bool = False
    tls_version: str = ""
    cipher_suite: str = ""
    common_name: str = ""  # of the client's certificate
    snappy: bool = False
    deflate: bool = False

    def compressed(self, *, snappy: bool) -> ConnectionLayers:
        return replace(self, snappy=snappy, deflate=not snappy)


_PLAIN: Final = ConnectionLayers()


class ClientProfile:
    """The data about one client, and the decisions that need nothing else.

    If a client sends IDENTIFY more than once, `settings` follows the latest and `delivery` stays with the first.
    """

    __slots__ = (
        "connected",
        "delivery",
        "extensions",
        "granted",
        "is_identified",
        "remote_address",
        "remote_host",
        "rules",
        "settings",
        "transport",
    )

    def __init__(self, rules: ClientRules, *, remote_address: str, remote_host: str, connected: int) -> None:
        self.rules = rules
        self.remote_address = remote_address
        self.remote_host = remote_host
        self.connected = connected  # seconds of wall time
        self.transport = _PLAIN  # upgrade.py changes it
        # Until a client identifies itself, we use its address as its name.
        self.settings: ClientSettings = replace(
            rules.defaults, client_id=remote_host, hostname=remote_host
        )  # the latest
        self.delivery = self.settings  # from the first IDENTIFY, because deliveries ignore later ones
        self.is_identified = False
        self.extensions: tuple[str, ...] = ()  # granted by the latest IDENTIFY
        self.granted: Negotiation | None = None  # the upgrade to make next

    @property
    def write_timeout(self) -> float:
        """How long the peer may leave sent data unread, in seconds."""
        interval = self.settings.heartbeat_interval_ms
        return interval / 1000 if interval > 0 else _WRITE_TIMEOUT

    @property
    def must_secure(self) -> bool:
        """Whether the client has to upgrade to TLS before it may do anything else."""
        return self.rules.tls_required and not self.transport.tls

    def identify(self, request: IdentifyRequest) -> Negotiation:
        """Apply the client's IDENTIFY. Raises ProtocolError if we can't accept it."""
        features = self.rules.features
        self.settings = apply_identify(self.settings, request, features)
        negotiation = negotiate(request, self.settings, features)
        if negotiation.upgrades:
            if self.transport != _PLAIN:
                raise ProtocolError(Fault.IDENTIFY_FAILED, "connection is already upgraded")
            self.granted = negotiation
        self.extensions = negotiation.extensions
        if not self.is_identified:
            self.is_identified = True
            self.delivery = self.settings
        return negotiation

    def locality(self) -> Locality:
        """Return how near the client is, from the names in its first IDENTIFY. Two empty names are equal, as in NSQ."""
        client, server = self.delivery, self.rules.features
        if not self.is_identified:
            return Locality.ELSEWHERE
        if client.topology_zone == server.topology_zone:
            return Locality.SAME_ZONE
        return Locality.SAME_REGION if client.topology_region == server.topology_region else Locality.ELSEWHERE

    def snapshot(
        self,
        topic: str,
        *,
        state: int,
        pub_counts: dict[str, int],
        consumer: Consumer | None,
        authorization: Authorization | None,
    ) -> ClientSnapshot:
        """Describe the client for /stats, with its publish count for `topic`, or if that is empty, its first topic."""
        settings, transport = self.settings, self.transport
        shown = topic or next(iter(pub_counts), "")
        return ClientSnapshot(
            client_id=settings.client_id,
            hostname=settings.hostname,
            version="V2",
            remote_address=self.remote_address,
            state=state,
            ready_count=consumer.ready_count if consumer else 0,
            in_flight_count=consumer.in_flight if consumer else 0,
            message_count=consumer.message_count if consumer else 0,
            finish_count=consumer.finish_count if consumer else 0,
            requeue_count=consumer.requeue_count if consumer else 0,
            touch_count=consumer.touches.times if consumer else 0,
            last_touch_at=consumer.touches.last_at if consumer else 0,
            connect_ts=self.connected,
            sample_rate=settings.sample_rate,
            deflate=transport.deflate,
            snappy=transport.snappy,
            user_agent=settings.user_agent,
            authed=authorization is not None and authorization.is_given,
            auth_identity=authorization.identity if authorization is not None else "",
            auth_identity_url=authorization.identity_url if authorization is not None else "",
            topology_zone=settings.topology_zone,
            topology_region=settings.topology_region,
            pub_counts=((shown, pub_counts[shown]),) if shown in pub_counts else (),
            tls=transport.tls,
            tls_cipher_suite=transport.cipher_suite,
            tls_version=transport.tls_version,
            tls_negotiated_protocol_is_mutual=transport.tls,
        )
