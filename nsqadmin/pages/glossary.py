"""What each number means, in a sentence or two: behind every "?" of a table, and together on the help page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Entry:
    title: str
    text: str


GLOSSARY: Final[dict[str, Entry]] = {
    "topic": Entry(
        "Topic", "A named stream that producers publish to. It exists on each nsqd that somebody published it to."
    ),
    "channel": Entry(
        "Channel",
        "A named queue below a topic. Each channel gets a copy of every message; the consumers of one channel share them.",
    ),
    "depth": Entry(
        "Depth",
        "Messages that wait to be delivered. Those in a consumer's hands (in flight) and those with a delay (deferred) are not in it.",
    ),
    "topic-depth": Entry(
        "Waiting in topic",
        "Messages that no channel has got yet: the topic has no channel, or it is paused. What a channel holds is counted at the channel.",
    ),
    "disk": Entry(
        "On disk",
        "The part of the depth that is no longer in memory and has to be read from disk first. A Python nsqd keeps every message on disk and counts here what is out of its cache.",
    ),
    "in-flight": Entry(
        "In flight",
        "Messages that were sent to a consumer and are neither finished, requeued nor timed out.",
    ),
    "ready": Entry(
        "Ready (RDY)",
        "How many messages the consumers allow to be in flight. With 0 a consumer is connected, but gets nothing.",
    ),
    "deferred": Entry(
        "Deferred",
        "Messages that wait for their delay: published with one, or requeued with one. They are not yet in the depth.",
    ),
    "requeued": Entry("Requeued", "Messages that consumers have given back, usually because handling them failed."),
    "timed-out": Entry(
        "Timed out",
        "Messages that a consumer has kept longer than msg_timeout without a word; they are delivered again.",
    ),
    "messages": Entry("Messages", "All messages since this nsqd started. A restart begins at what was left over."),
    "in-rate": Entry("In", "Messages that arrive each second, between the last two samples."),
    "out-rate": Entry(
        "Out",
        "Messages that are finished each second. nsqd does not count them: it is what came in and is no longer there.",
    ),
    "net-rate": Entry("Net rate", "In minus out: with ↑ the backlog grows, with ↓ it shrinks."),
    "drain": Entry(
        "Time to drain",
        "How long until the backlog is gone, if things go on like this. “growing” where it is not going to be.",
    ),
    "lag": Entry(
        "Lag",
        "How long the oldest waiting message has been there. It is estimated from how the numbers went, so it begins when nsqadmin started.",
    ),
    "utilisation": Entry(
        "Utilisation",
        "In flight divided by ready. Near 100 % all consumers are busy: more of them, or a larger max_in_flight, would help.",
    ),
    "consumers": Entry(
        "Consumers",
        "Connections that have subscribed to the channel, on all nodes. One process usually has one for each node.",
    ),
    "latency": Entry(
        "Latency",
        "From publishing to finishing, as nsqd measures it with --e2e-processing-latency-percentile. Over several nodes it is the worst node's.",
    ),
    "sequence": Entry(
        "Sequence",
        "A message's number in its topic's log on one node, from 0 on, without gaps. Only a Python nsqd has it.",
    ),
    "attempts": Entry("Attempts", "How often a message was sent to a consumer."),
    "ephemeral": Entry(
        "Ephemeral",
        "A topic or channel whose name ends in #ephemeral: never on disk, and gone with its last user.",
    ),
    "paused": Entry("Paused", "Nothing is delivered until it is unpaused; messages keep arriving and wait."),
    "inactive": Entry(
        "Inactive",
        "A name that an nsqlookupd knows, but that no node has: created ahead of use, or left over.",
    ),
    "tombstone": Entry(
        "Removed from node",
        "NSQ's “tombstone”: nsqlookupd hides one node as a producer of the topic for a while, so that consumers leave, and the topic is deleted there.",
    ),
    "nsqd": Entry(
        "nsqd",
        "The broker: takes messages, keeps them and hands them out. A cluster has several; none of them knows of the others.",
    ),
    "nsqlookupd": Entry(
        "nsqlookupd", "The directory: tells consumers which nsqd has a topic. Each nsqd registers with all of them."
    ),
    "announced": Entry(
        "Known to",
        "Which nsqlookupds list the node. Consumers that ask one that does not know it will not find what is on it.",
    ),
    "sampled": Entry(
        "Sampled", "The consumer asked for a share of the messages; the rest is dropped for this channel."
    ),
    "peek": Entry(
        "Peek",
        "Looking at messages in the topic's log. Nothing is taken, counted or acknowledged: no consumer notices.",
    ),
    "tail": Entry(
        "Tail",
        "New messages as they are published, through a temporary channel that takes its own copy and is gone with the page.",
    ),
    "reader": Entry(
        "Reader",
        "A program that reads the topic's log without a channel, such as a Spark query, and reports how far it has committed. It keeps its own place: what is shown here is what it said last.",
    ),
    "behind": Entry("Behind", "Messages in the log that the reader has not committed, by its last report."),
    "behind-time": Entry(
        "Behind in time",
        "How long ago the first message was published that the reader has not committed; over several nodes the longest.",
    ),
    "overtaken": Entry(
        "Retention",
        "Whether messages are removed before the reader has committed them, and when at the earliest, if things go on like this: from how far it is behind, how fast it commits, and how long nsqd keeps what its channels have finished. Lost are messages that were removed already.",
    ),
    "replay": Entry("Replay", "Publishing a range of a topic's history again, to the same topic or to another one."),
    "seek": Entry(
        "Move a channel",
        "Puts a channel's cursor to another place in the history: back to deliver messages again, forward to leave some out.",
    ),
    "interval": Entry(
        "As of", "When the numbers were asked for. All browsers share one question to the nodes every few seconds."
    ),
}
