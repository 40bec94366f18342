"""A task may end after Celery has closed its channel, because it has lost the connection."""

from kombu import Connection

from nsqjobs.celery.channel import QoS


class ClosedChannel:
    """A channel as it is when it is made; `connection` is None once it is closed."""

    def __init__(self) -> None:
        self.connection = Connection("nsq://127.0.0.1:1").transport


def test_an_answer_after_the_end_has_no_effect() -> None:
    channel = ClosedChannel()
    qos = QoS(channel)  # type: ignore[arg-type]  # only its connection is looked at
    qos.restore_unacked()
    channel.connection = None
    qos.ack("a tag")
    qos.reject("another tag", requeue=True)
