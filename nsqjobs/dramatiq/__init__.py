"""dramatiq on nsqd.

from nsqjobs.dramatiq import NsqBroker

dramatiq.set_broker(NsqBroker("nsq://127.0.0.1:4150"))
"""

from nsqjobs.dramatiq.broker import NsqBroker

__all__ = ["NsqBroker"]
