"""The words for nsqd's reports about messages that a policy refused, dropped, buried or held back. They quote nothing.

To add a key of the policy file, add its words here and nowhere else in nsqadmin; nsqd has them in `nsqd/broker`, in
`policy.py`, `channel.py` and `topic.py`.
"""

from __future__ import annotations

import re
from typing import Final

# The causes in `policy_counts` of /stats, each with its effect.
TEXTS: Final = {
    "max_messages, rejected": "Publishes refused: too many messages (max_messages)",
    "max_bytes, rejected": "Publishes refused: too many bytes (max_bytes)",
    "overflow, dropped": "Oldest messages dropped: channel over its limit (overflow)",
    "full, dropped": "New messages dropped: channel full of messages that no limit drops (overflow)",
    "overflow, buried": "Oldest messages buried: channel over its limit (overflow)",
    "ttl, dropped": "Expired messages dropped (ttl)",
    "ttl, buried": "Expired messages buried (ttl)",
    "nsq-group ignored": "nsq-group ignored: it is empty, too long or not UTF-8",
    "buried": "Buried by a rule while no client had them",
    "not on disk, dropped": "Dropped instead of buried: this channel is in memory only",
    "max_messages, dry run": "Would have been refused (max_messages)",
    "max_bytes, dry run": "Would have been refused (max_bytes)",
    "overflow, dry run": "Would have been dropped or buried (overflow)",
    "ttl, dry run": "Would have expired (ttl)",
    "max_rate, dry run": "Would have been delivered later (max_rate)",
    "max_in_flight, dry run": "Would have been delivered later, once fewer were in flight (max_in_flight)",
    "backoff, dry run": "Would have waited for their backoff (backoff)",
    "max_attempts, dry run": "Would have been buried (max_attempts)",
    "max_buried, dry run": "Buried while the channel would have been paused (max_buried)",
    "breaker, dry run": "Buried while the channel would have been paused (breaker)",
}

# Burial reasons.
# Lengths are limited, so that no number of a card or a customer fits.
_TTL: Final = r"(?:its nsq-ttl|(?:[0-9]{1,6}(?:\.[0-9]{1,3})?[a-zµ]{1,2}){1,4})"
is_of_nsqd: Final = re.compile(
    r"[0-9]{1,5} attempts(?:, the last one (?:requeued|timed out))?"
    rf"|waited for more than {_TTL} \(ttl\)"
    r"|more waited than the channel may hold \(overflow\)",
    re.ASCII,
).fullmatch
