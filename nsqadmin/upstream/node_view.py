"""Builds the model's nodes and nsqlookupds from their polling state and their last answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nsqadmin.cluster.merge import is_out_of_date, node_order, version_key
from nsqadmin.cluster.model import UNKNOWN_RATES, Health, Lookupd, Node, Producer, Rates, Silent, Unanswered
from nsqadmin.diagnosis.words import TOO_MANY_NODES
from nsqadmin.upstream.client import explain

if TYPE_CHECKING:
    from nsqadmin.cluster.node_stats import NodeAnswer
    from nsqadmin.upstream.asked import AskedLookupd, AskedNode


def nodes_to_show(
    asked: Mapping[str, AskedNode], *, has_lookupds: bool, successors: Mapping[str, str]
) -> tuple[Node, ...]:
    newest = max((version_key(state.announced.version) for state in asked.values()), default=(0, 0, 0))
    nodes = (
        replace(
            _node(address, state, out_of_date=has_lookupds and is_out_of_date(state.announced.version, newest)),
            successor=successors.get(address, ""),
        )
        for address, state in asked.items()
    )
    return tuple(sorted(nodes, key=node_order))


def _node(address: str, asked: AskedNode, *, out_of_date: bool) -> Node:
    announced, answer = asked.announced, asked.answer
    node = Node(
        address=address,
        hostname=announced.hostname,
        broadcast_address=announced.broadcast_address,
        tcp_port=announced.tcp_port,
        http_port=announced.http_port,
        version=announced.version or (answer.version if answer is not None else ""),
        release=answer.release if answer is not None else "",
        region=announced.region,
        zone=announced.zone,
        health=asked.health,
        since=asked.since,
        answered_in=asked.answered_in,
        answered_at=asked.answered_at,
        error=str(asked.error) if asked.error is not None else "",
        explanation=_explanation(address, asked),
        not_read=asked.error.not_read if asked.error is not None else "",
        token_withheld=asked.withheld,
        has_history=bool(asked.has_history),
        lookupds=tuple(announced.sources),
        remote_addresses=tuple(announced.remote_addresses),
        tombstones=tuple(sorted(topic for topic, is_tombstoned in announced.topics.items() if is_tombstoned)),
        state=announced.state if asked.left_at is None else "",
        unreachable=tuple(announced.problems) if asked.left_at is None else (),
        out_of_date=out_of_date,
        clock_skew=asked.clock_skew,
    )
    if answer is None:
        return node
    if not node.is_reachable:
        last = {**_numbers(answer), "rates": UNKNOWN_RATES, "policy_digest": answer.policy_digest}
        return replace(node, remote=answer.remote, **last)
    return replace(
        node,
        own_health=answer.own_health,
        policy_digest=answer.policy_digest,
        policy_error=answer.policy_error,
        policy_is_copy=answer.policy_is_copy,
        draining=answer.draining,
        worker=answer.worker,
        remote=answer.remote,
        start_time=answer.start_time,
        memory=answer.memory,
        **_numbers(answer),
    )


def silent_among(nodes: Iterable[Node]) -> tuple[Silent, ...]:
    """Return the nodes whose last known numbers are in the sums."""
    return tuple(
        Silent(node=node.address, since=node.since, answered_at=node.answered_at, depth=node.depth)
        for node in nodes
        if not node.is_reachable and node.answered_at is not None and node.topic_count and not node.successor
    )


def _explanation(address: str, asked: AskedNode) -> str:
    if asked.left_at is not None and asked.error is not None:
        return "It was stopped, or has died: every nsqlookupd that answers has lost it as well. " + explain(
            address, asked.error
        )
    if asked.error is not None:
        return explain(address, asked.error)
    if asked.health is Health.SLOW:
        return "It takes more than a second to answer: the node or the network is overloaded."
    return ""


def _numbers(answer: NodeAnswer) -> dict[str, Any]:
    """Add up the numbers of a node's topics and channels."""
    topics = answer.topics.values()
    channels = [part for topic in topics for part in topic.channels.values()]
    return {
        "topic_count": len(topics),
        "channel_count": len(channels),
        "client_count": sum(channel.row.client_count for channel in channels),
        "depth": sum(topic.row.depth for topic in topics) + sum(channel.row.depth for channel in channels),
        "in_flight_count": sum(channel.row.in_flight_count for channel in channels),
        "message_count": sum(topic.row.message_count for topic in topics),
        "rates": Rates(
            incoming=_sum(topic.rates.incoming for topic in topics),
            finished=_sum(channel.rates.finished for channel in channels),
            requeued=_sum(channel.rates.requeued for channel in channels),
            timed_out=_sum(channel.rates.timed_out for channel in channels),
            bytes=_sum(topic.rates.bytes for topic in topics),
        ),
    }


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def lookupd_to_show(address: str, asked: AskedLookupd) -> Lookupd:
    explanation = ""
    if asked.error is not None:
        explanation = explain(address, asked.error)
    elif asked.health is Health.SLOW:
        explanation = "It takes more than a second to answer."
    return Lookupd(
        address=address,
        health=asked.health,
        since=asked.since,
        answered_in=asked.answered_in,
        error=str(asked.error) if asked.error is not None else "",
        explanation=explanation,
        not_read=asked.error.not_read if asked.error is not None else "",
        nodes_left_out=asked.nodes_left_out,
        topics_left_out=asked.topics_left_out,
        version=asked.version,
        topics=tuple(asked.topics),
        nodes=tuple(producer.address for producer in asked.producers),
    )


def producers_of(answers: Sequence[NodeAnswer]) -> tuple[Producer, ...] | None:
    """Return the producers on all nodes, including silent ones; None if some node's weren't requested."""
    if any(answer.producers is None for answer in answers):
        return None
    return tuple(producer for answer in answers for producer in answer.producers or ())


def unanswered_by(nodes: Sequence[Node], lookupds: Sequence[Lookupd]) -> Iterator[Unanswered]:
    asked: list[Node | Lookupd] = [*lookupds, *nodes]
    for process in asked:
        if not process.is_reachable and not (isinstance(process, Node) and process.successor):
            what = "nsqd" if isinstance(process, Node) else "nsqlookupd"
            if process.not_read:
                verdict = f"is not read: {process.not_read}"
            else:
                verdict = "has never answered" if process.health is Health.NEVER else "does not answer"
            yield Unanswered(
                what=f"{what} {process.address} {verdict}",
                where=process.address,
                advice=process.explanation,
                raw=process.error,
            )
    for lookupd in lookupds:
        if lookupd.nodes_left_out:
            yield Unanswered(
                what=f"{lookupd.nodes_left_out:,} nodes that nsqlookupd {lookupd.address} lists are not asked",
                where=lookupd.address,
                advice=TOO_MANY_NODES,
                raw="",
            )
