"""Celery (and other users of kombu) on nsqd: `broker_url = "nsq://127.0.0.1:4150"`.

    the names `nsq://` and `nsq+lookupd://`   here
    the API for kombu                         transport.py, channel.py
    queues as topics                          routing.py
    kombu's messages as nsqd's                envelope.py
    publishing                                nsqclient/blocking.py
    consuming, in a thread                    reader.py, prefetch.py
    messages with a lost FIN                  finished.py
    revoke                                    revoking.py
    groups of tasks                           tasks.py, envelope.py
    places that a worker must not free early  places.py
    reports about runs, and burying failures  reporting.py

kombu has a table of transports, and only an import can extend it. The one thing that kombu loads by itself are its
entry points for serializers, whenever Celery is imported. So `pyproject.toml` names SERIALIZER below as such an entry
point. It can't serialize anything; loading it imports this module, which puts the transport into the table. If you
import only a part of kombu, `import nsqjobs.celery` does the same, and `broker_transport =
"nsqjobs.celery.transport:Transport"` works without all this.

This module imports nothing of kombu but the table, because kombu itself is only half imported at this moment.
"""

from typing import Final

from kombu.transport import TRANSPORT_ALIASES

# For kombu's registry: no encoder, no decoder, an unused content type, an encoding.
SERIALIZER: Final = (None, None, "application/x-nsq-transport", "binary")

# `nsq+lookupd://` needs no line of its own: for kombu the part before the plus is the transport.
TRANSPORT_ALIASES.setdefault("nsq", "nsqjobs.celery.transport:Transport")
