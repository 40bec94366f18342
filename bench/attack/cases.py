"""The table of loads: their names, what they do, which daemon they attack, and the demands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from bench.attack import on_http, on_lookupd, on_tcp
from bench.attack.target import Attack


class Victim(StrEnum):
    NSQD = "nsqd"
    NSQD_AUTH = "nsqd with an authorization server"
    NSQLOOKUPD = "nsqlookupd"
    NSQADMIN = "nsqadmin"


@dataclass(frozen=True, slots=True)
class Case:
    title: str
    attack: Attack
    victim: Victim = Victim.NSQD
    longest: float = 100.0  # ms, for 99 of 100 of the honest client's requests
    wants_tls: bool = False  # the honest client makes TLS handshakes as well


_AUTH: Final = Victim.NSQD_AUTH
_LOOKUPD: Final = Victim.NSQLOOKUPD
_ADMIN: Final = Victim.NSQADMIN
_STORM: Final = 250.0  # ms

CASES: Final[Mapping[str, Case]] = {
    # for comparison with the others
    "nothing": Case("nobody but the honest client", on_tcp.nothing),
    "honest-publishes": Case("PUBs as fast as nsqd takes them, 3 connections", on_tcp.honest_publishes),
    "honest-bodies": Case("MPUBs of 5 MB", on_tcp.honest_bodies),
    "honest-stats": Case("/stats of 1,000 topics", on_http.statistics),
    "honest-handshakes": Case("HTTPS connections, 50 a second", on_http.honest_handshakes, wants_tls=True),
    # slow and idle connections
    "idle": Case("connections that say nothing", on_tcp.idle),
    "slow-magic": Case("the magic and IDENTIFY, a byte at a time", on_tcp.dripped_magic),
    "slow-headers": Case("HTTP headers, a byte at a time", on_http.dripped_headers),
    "slow-bodies": Case("HTTP bodies, a byte at a time", on_http.dripped_bodies),
    "churn": Case("connect and close, 2,000 a second", on_tcp.churn),
    "identified-churn": Case("connect, IDENTIFY and close, 500 a second", on_tcp.identified_churn),
    "resets": Case("half a PUB and a reset, 1,000 a second", on_tcp.reset_connections),
    # bodies
    "half-mpub": Case("half an MPUB of 5 MB", on_tcp.half_mpubs),
    "half-tiny": Case("an MPUB of a million messages without its last byte", on_tcp.half_tiny_mpubs),
    "half-pub": Case("a PUB of 1 MB without its last byte", on_tcp.half_pubs),
    "half-http": Case("half of a /mpub of 5 MB", on_http.half_bodies),
    "half-chunked": Case("half of a chunked /mpub of 5 MB", on_http.half_chunked_bodies),
    "half-mpub-deflated": Case("an MPUB of 5 MB, deflated, without its last byte", on_tcp.half_bodies_deflated),
    **{
        f"identify-{kind}": Case(f"IDENTIFY of 5 MB: {kind}", on_tcp.big_identify(kind))
        for kind in ("surrogates", "keys", "objects", "bad-utf8", "integers", "nesting")
    },
    "identify-at-bound": Case("IDENTIFY of 64 KiB, of all kinds", on_tcp.identify_at_bound),
    "auth-big": Case("AUTH of 5 MB", on_tcp.big_auth, _AUTH),
    "auth-huge": Case("the authorization server answers 300 MB", on_tcp.sick_auth("huge"), _AUTH),
    "auth-deep": Case("the authorization server answers 5 MB of [", on_tcp.sick_auth("deep"), _AUTH),
    "auth-many": Case("the authorization server answers 10,000 expressions", on_tcp.sick_auth("many"), _AUTH),
    "tiny-messages": Case("MPUB of a million messages of a byte", on_tcp.tiny_messages),
    "one-byte-lines": Case("/mpub of 2.6 million lines", on_http.one_byte_lines),
    "one-byte-chunks": Case("/mpub in chunks of a byte", on_http.one_byte_chunks),
    "parameters": Case("requests with thousands of parameters", on_http.many_parameters),
    # floods
    "nops": Case("NOPs as fast as nsqd takes them, 3 connections", on_tcp.nops),
    "unknown-fins": Case("FINs of unknown messages, 3 connections", on_tcp.unknown_fins),
    "unknown-reqs": Case("REQs of unknown messages, 3 connections", on_tcp.unknown_reqs),
    "unknown-touches": Case("TOUCHes of unknown messages, 3 connections", on_tcp.unknown_touches),
    "deflate-bomb": Case("deflated NOPs", on_tcp.deflate_bomb),
    "snappy-bomb": Case("snappy NOPs", on_tcp.snappy_bomb),
    "requeues": Case("all that comes is requeued at once", on_tcp.requeues),
    "deferred": Case("DPUBs for in an hour, as fast as nsqd takes them, 3 connections", on_tcp.deferred),
    # readers that never read
    "deaf-consumers": Case("consumers with RDY 2500 that read nothing", on_tcp.deaf_consumers),
    "deaf-askers": Case("clients that never read what they are answered", on_tcp.deaf_askers),
    "deaf-stats": Case("/stats asked for and not read", on_http.deaf_statistics),
    "deaf-history": Case("/topic/read asked for and not read", on_http.deaf_history),
    # names
    "topics": Case("topics made by PUB", on_tcp.topics, longest=_STORM),
    "channels": Case("channels made by SUB", on_tcp.channels),
    "subscriptions": Case("SUB to an ephemeral channel, and gone", on_tcp.subscriptions),
    # TLS
    "garbage-https": Case("300 random bytes on the HTTPS port, 2,000/s", on_http.garbage_https, wants_tls=True),
    "garbage-hello": Case("what begins as a ClientHello, 2,000/s", on_http.almost_hello_https, wants_tls=True),
    "stalled-hello": Case("handshakes that are not gone on with", on_http.stalled_hello_https, wants_tls=True),
    "garbage-identify": Case("garbage after IDENTIFY with TLS", on_http.garbage_after_identify, wants_tls=True),
    # nsqlookupd and nsqadmin
    "lookupd-nothing": Case("nsqlookupd, nobody attacks", on_tcp.nothing, _LOOKUPD),
    "lookupd-registrations": Case("245,000 registrations of one client", on_lookupd.registrations, _LOOKUPD),
    "lookupd-lines": Case("names of 5 MB", on_lookupd.huge_lines, _LOOKUPD),
    "lookupd-identify": Case("IDENTIFY of 5 MB", on_lookupd.huge_identify, _LOOKUPD),
    "lookupd-pings": Case("PINGs as fast as it takes them", on_lookupd.pings, _LOOKUPD),
    "lookupd-churn": Case("IDENTIFY, REGISTER and close, 1,000 a second", on_lookupd.lookupd_churn, _LOOKUPD),
    "lookupd-idle": Case("connections that say nothing", on_lookupd.lookupd_idle, _LOOKUPD),
    "admin-nothing": Case("nsqadmin, nobody attacks", on_tcp.nothing, _ADMIN),
    "admin-bombs": Case("registered nodes that answer with gzip bombs", on_lookupd.hostile_nodes, _ADMIN),
    "admin-nodes": Case("registrations of nodes that do not exist", on_lookupd.many_nodes, _ADMIN),
}
