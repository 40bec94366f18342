"""The words for nsqd's reports about messages that a policy refused, dropped, buried or held back. They quote nothing.

To add a key of the policy file, add its words here and nowhere else in nsqadmin; nsqd has them in `nsqd/broker`, in
`policy.py`, `channel.py` and `topic.py`.
"""

from __future__ import annotations

import re
from typing import Final

# The causes in `policy_counts` of /stats, each with the outcome for the messages.
TEXTS: Final = {
    "max_messages, rejected": "were refused, as there were too many already (max_messages)",
    "max_bytes, rejected": "were refused, as there were too many bytes already (max_bytes)",
    "overflow, dropped": "were dropped, the oldest first, as there were too many (overflow)",
    "full, dropped": "were dropped as they arrived: messages that no bound drops filled the channel (overflow)",
    "overflow, buried": "were buried, the oldest first, as there were too many (overflow)",
    "ttl, dropped": "waited for too long and were dropped (ttl)",
    "ttl, buried": "waited for too long and were buried (ttl)",
    "nsq-group ignored": "have an nsq-group that is empty, too long or not UTF-8, so they count as without one",
    "buried": "were buried by a rule while no client had them",
    "not on disk, dropped": "were dropped where they would have been buried: this channel is in memory only",
    "max_messages, dry run": "would have been refused (max_messages)",
    "max_bytes, dry run": "would have been refused (max_bytes)",
    "overflow, dry run": "would have been dropped or buried (overflow)",
    "ttl, dry run": "would have expired (ttl)",
    "max_rate, dry run": "would have been delivered later (max_rate)",
    "max_in_flight, dry run": "would have been delivered later, once fewer were in flight (max_in_flight)",
    "backoff, dry run": "would have waited for their backoff (backoff)",
    "max_attempts, dry run": "would have been buried (max_attempts)",
    "max_buried, dry run": "were buried while the channel would have been paused (max_buried)",
    "breaker, dry run": "were buried while the channel would have been paused (breaker)",
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
