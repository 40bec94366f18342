"""The glossary: explains each number in a sentence or two, for every "?" in a table and for the help page.

A number counted by nsqd is explained in its measure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from nsqadmin.cluster.measures import measures_of
from nsqadmin.cluster.model import Channel, Topic


@dataclass(frozen=True, slots=True)
class Entry:
    title: str
    text: str


_WORDS: Final[Mapping[str, Entry]] = {
    "topic": Entry("Topic", "A named stream that producers publish to. It exists on each nsqd that was published to."),
    "channel": Entry(
        "Channel",
        "A named queue below a topic. Each channel gets a copy of every message; the consumers of one channel share them.",
    ),
    "job": Entry(
        "Job",
        "A message of a job queue such as Celery: a call of a task. The headers of the message name the task.",
    ),
    "retries": Entry(
        "Retries",
        "How often the job's library has sent the job again after a failure. Each retry is a new message, so its attempts begin at 0.",
    ),
    "running-jobs": Entry(
        "Running",
        "Jobs that workers have started, as they report it (report=True). Others with workers wait there for their turn.",
    ),
    "copy": Entry(
        "Copy",
        "The node's copy of its data path in an object store (--remote), and how old the oldest change is that the store has not confirmed. If the machine is lost, another one continues with the copy.",
    ),
    "ack": Entry(
        "OK means",
        "The topic's --ack: how safe a message is when its publisher gets OK. Known only for nodes that keep a copy in an object store.",
    ),
    "ready": Entry(
        "Ready (RDY)",
        "How many messages the consumers allow to be in flight. With 0, a consumer is connected but gets nothing. A client that backs off after failures lowers it and keeps the messages that it has: so it may be smaller than in flight for a while.",
    ),
    "in-rate": Entry("In", "Messages that arrive each second, between the last two samples."),
    "out-rate": Entry(
        "Out",
        "Messages finished each second. nsqd does not count them, so nsqadmin computes them: those that arrived, less those dropped, less the growth of what the channel holds.",
    ),
    "net-rate": Entry(
        "Net rate",
        "How fast the depth changes, measured over about a minute: ↑ means that the backlog grows, ↓ that it shrinks. Messages that an operator returns to the channel (kick, seek, replay) are not counted. While a node is silent, it is the rate of the others (≥).",
    ),
    "dropped": Entry(
        "Dropped",
        "Messages that a policy throws away each second, over the last minute, because there are too many. They are lost.",
    ),
    "expired": Entry(
        "Expired",
        "Messages that have waited for longer than the ttl of the policy file, each second, over the last minute. They are lost, or buried.",
    ),
    "drain": Entry(
        "Time to drain",
        "How long until the backlog is gone at the net rate; “growing” if it grows, and “losing” if it only doesn't grow because a policy removes messages.",
    ),
    "lag": Entry(
        "Lag",
        "Age of the oldest waiting message. Our nsqd reports it. For NSQ's it is estimated from the history of the numbers, which begins when nsqadmin starts: until then it is “at least” (≥).",
    ),
    "utilisation": Entry(
        "Utilisation",
        "In flight divided by ready, on the nodes that answer, at most 100 %. Near that, all consumers are busy: more consumers or a larger max_in_flight would help.",
    ),
    "consumers": Entry(
        "Consumers",
        "Connections that have subscribed to the channel, on all nodes. One process usually has one for each node.",
    ),
    "consumer-state": Entry(
        "State of a consumer",
        "Stuck: it has as many messages as it may have and finishes none. Busy: it finishes none either, but touches its messages, so its work takes long. Can't tell: it finishes none, and its nsqd doesn't report touches. RDY 0: it asks for nothing although messages wait. Failing: it requeues more than a fifth. Slow: it has as many as it may have, but finishes less than a quarter of what its peers do. Idle: it has nothing to do.",
    ),
    "oldest-in-flight": Entry(
        "Oldest in flight",
        "How long a consumer has had its oldest unfinished message. Only a Python nsqd reports it.",
    ),
    "times-out": Entry(
        "Times out",
        "When nsqd delivers the message again, unless its consumer answers or touches it first.",
    ),
    "touch": Entry(
        "Last touch",
        "When the consumer last asked for more time for the message (TOUCH), as workers with long jobs do. One that touches its messages is busy, not stuck. Only a Python nsqd reports it.",
    ),
    "finish-rate": Entry("Finish rate", "Messages that a consumer finishes each second, over the last minute."),
    "failures": Entry(
        "Requeued or timed out",
        "Messages that consumers requeue or don't answer in time, each minute, over the last minute: nsqd delivers them again. Buried messages are not counted here.",
    ),
    "latency": Entry(
        "Latency",
        "The time from publishing to finishing, as nsqd measures it with --e2e-processing-latency-percentile. Over several nodes it is the worst node's.",
    ),
    "sequence": Entry(
        "Sequence",
        "A message's number in its topic's log on one node, counted from 0 without gaps. Only a Python nsqd has it.",
    ),
    "attempts": Entry("Attempts", "How often a message was sent to a consumer."),
    "ephemeral": Entry(
        "Ephemeral",
        "A topic or channel whose name ends in #ephemeral: it is never on disk, and is deleted with its last client.",
    ),
    "policy": Entry(
        "Policy",
        "The rules of the file that nsqd was started with (--policy-file): how much a topic or channel may hold, how long messages may wait, and what happens to failed ones.",
    ),
    "paused": Entry("Paused", "Nothing is delivered until it is unpaused; messages keep arriving and wait."),
    "inactive": Entry(
        "Unused (inactive)",
        "A name that an nsqlookupd knows but no node has: created ahead of use, or left over.",
    ),
    "tombstone": Entry(
        "Tombstone",
        "Left by “Remove from node”: nsqlookupd hides the node as a producer of the topic for a while, so that consumers leave it, and the topic is deleted there.",
    ),
    "nsqd": Entry(
        "nsqd",
        "The broker: it takes messages, keeps them and delivers them. A cluster has several, which don't know each other.",
    ),
    "nsqlookupd": Entry(
        "nsqlookupd",
        "The directory: it tells consumers which nsqd has a topic. Each nsqd registers with every nsqlookupd.",
    ),
    "announced": Entry(
        "Registered with",
        "The nsqlookupds that list the node. Consumers that ask another one do not find the messages on this node.",
    ),
    "sampled": Entry("Sampled", "The consumer has asked for a share of the messages; this channel drops the rest."),
    "peek": Entry(
        "Peek",
        "Reading messages in the topic's log. No message is consumed and no attempt is counted, so consumers are not affected.",
    ),
    "tail": Entry(
        "Tail",
        "New messages as they are published, through a temporary channel that gets its own copies and is deleted when you leave the page.",
    ),
    "reader": Entry(
        "Reader",
        "A program that reads the topic's log without a channel, such as a Spark query, and reports how far it has committed. It keeps its own place; this shows its last report.",
    ),
    "behind": Entry("Behind", "Messages in the log that the reader has not committed, by its last report."),
    "behind-time": Entry(
        "Time behind",
        "How long ago the first message that the reader has not committed was published; over several nodes the longest time.",
    ),
    "overtaken": Entry(
        "Retention",
        "Whether messages will be removed before the reader has committed them at the present rates, and when at the earliest. This follows from how far it is behind, how fast it commits, and how long nsqd keeps messages that its channels have finished. “Lost” messages have already been removed.",
    ),
    "kick": Entry(
        "Kick",
        "Requeues buried messages in their channel, with attempts from 1: all, selected ones, or those with one reason. “Retry” on the pages of jobs is a kick of the jobs' messages. “Discard” deletes them instead. “Replay” is for messages of the history, finished ones, too.",
    ),
    "severity": Entry(
        "Severity",
        "A problem needs action now, a warning soon. A note needs none: it is often by design.",
    ),
    "replay": Entry(
        "Replay",
        "Delivering messages of the history again: selected ones to one channel only, or a range of the history by publishing it again, to the same topic or to another one.",
    ),
    "seek": Entry(
        "Move a channel",
        "Moves a channel's cursor to another place in the history: back to deliver messages again, forward to skip some.",
    ),
    "interval": Entry(
        "As of",
        "When the nodes were asked for these numbers. nsqadmin asks them every few seconds, once for all browsers.",
    ),
}
_FIRST: Final = (
    "topic",
    "channel",
    "depth",
    "topic-depth",
    "disk",
    "copy",
    "ack",
    "in-flight",
    "ready",
    "deferred",
    "buried",
    "held",
    "requeued",
    "timed-out",
    "messages",
    "repeats",
)


def _glossary() -> Iterator[tuple[str, Entry]]:
    """Yield the entries in the order of the help page: the most important words, other measures, other words."""
    numbers = (*measures_of(Channel), *measures_of(Topic))
    entries = {**{it.word: Entry(it.label, it.words) for it in numbers if it.words}, **_WORDS}
    for word in dict.fromkeys((*_FIRST, *entries)):
        yield word, entries[word]


GLOSSARY: Final = dict(_glossary())
