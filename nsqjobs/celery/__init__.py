"""Celery (and whatever else uses kombu) on nsqd: `broker_url = "nsq://127.0.0.1:4150"`.

    the names `nsq://` and `nsq+lookupd://`   here
    what kombu calls                          transport.py, channel.py
    which queue is which topic                routing.py
    a message as nsqd stores it               envelope.py
    publishing                                nsqclient/blocking.py
    consuming, in a thread                    reader.py, prefetch.py
    a message whose FIN was lost              finished.py
    revoke                                    revoking.py

kombu knows transports by a table of its own, which nothing but an import can extend. The only thing that kombu loads by
itself are its entry points for serializers, which happens whenever Celery is imported. So `pyproject.toml` names
SERIALIZER below as such an entry point. It can neither serialize nor deserialize anything; loading it imports this
module, and that puts the transport into the table. Where only a part of kombu is imported, `import nsqjobs.celery`
does the same, and `broker_transport = "nsqjobs.celery.transport:Transport"` works without any of it.

This module imports nothing of kombu but the table: kombu is half imported itself at this moment.
"""

from typing import Final

from kombu.transport import TRANSPORT_ALIASES

# What kombu registers: no encoder, no decoder, a content type that nobody uses, an encoding.
SERIALIZER: Final = (None, None, "application/x-nsq-transport", "binary")

# `nsq+lookupd://` needs no line of its own: kombu takes what is before the plus for the transport.
TRANSPORT_ALIASES.setdefault("nsq", "nsqjobs.celery.transport:Transport")
