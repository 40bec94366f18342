"""A process of Celery's pool is forked off while its parent consumes."""

from __future__ import annotations

import os

from kombu import Connection

from nsqjobs.celery.transport import Transport


def test_a_child_has_a_reader_and_a_bell_of_its_own() -> None:
    transport = Connection("nsq://127.0.0.1:1").transport
    assert isinstance(transport, Transport)
    reader, bell = transport.reader, transport._bell
    child = os.fork()
    if not child:
        status = 1
        try:
            status = int(transport.reader is reader or transport._bell is bell)
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert transport.reader is reader
    transport.close_connection(transport)
