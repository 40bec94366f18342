"""The library for asyncio: `from nsqclient import aio`, with the same settings, messages, errors and flow control.

docs/how-to/python-client.md lists what it leaves out.
"""

from nsqclient._aio_consumer import Consumer, Message, open_consumer
from nsqclient._aio_producer import Producer, Receipt, open_producer

__all__ = ["Consumer", "Message", "Producer", "Receipt", "open_consumer", "open_producer"]
