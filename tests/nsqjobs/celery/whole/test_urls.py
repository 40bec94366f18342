import pytest
from kombu import Connection

from nsqjobs.celery import SERIALIZER
from nsqjobs.celery.transport import Transport


def transport_of(url: str) -> Transport:
    transport = Connection(url).transport
    assert isinstance(transport, Transport)
    return transport


def test_several_hosts_are_one_url() -> None:
    transport = transport_of("nsq://:secret@a:4150,b?msg_timeout=3s")
    assert transport.endpoint.nsqd == ("a:4150", "b:4150")
    assert transport.endpoint.config.auth_secret == "secret"
    assert transport.endpoint.config.msg_timeout == 3


def test_nsqlookupds_are_asked() -> None:
    transport = transport_of("nsq+lookupd://:secret@a,b:4161")
    assert transport.endpoint.lookupd == ("a:4161", "b:4161")
    assert transport.endpoint.config.auth_secret == "secret"
    assert transport.as_uri("") == "nsq+lookupd://:**@a,b:4161"


def test_the_password_is_hidden() -> None:
    connection = Connection("nsq://:se%40cret@a:4150,b:4150")
    assert connection.as_uri() == "nsq://:**@a:4150,b:4150"
    assert connection.as_uri(include_password=True) == "nsq://:se%40cret@a:4150,b:4150"
    assert "cret" not in str({name: value for name, value in connection.info().items() if name != "password"})


def test_a_copy_of_a_connection_knows_the_password() -> None:
    connection = Connection("nsq://:se%40cret@a:4150")
    assert connection.clone().transport.endpoint.config.auth_secret == "se@cret"
    assert connection.clone().clone().transport.endpoint.config.auth_secret == "se@cret"


def test_an_alternative_that_kombu_has_taken_apart_is_put_together_again() -> None:
    connection = Connection("nsq://a:4150;nsq://:secret@b:4160")
    connection.maybe_switch_next()
    assert connection.transport.endpoint.nsqd == ("b:4160",)
    assert connection.transport.endpoint.config.auth_secret == "secret"


def test_what_can_never_work_is_said_at_once() -> None:
    with pytest.raises(ValueError, match="no path"):
        transport_of("nsq://a:4150/queue")


def test_the_serializer_that_loads_the_transport_serializes_nothing() -> None:
    encode, decode, *_ = SERIALIZER
    assert encode is decode is None
