"""Settings: NSQ's names, units and words."""

from __future__ import annotations

import dataclasses
import ssl
from pathlib import Path

import pytest

from nsqclient import Config, ConfigError, options_of_flags
from nsqclient.core.config import OPTIONS
from scripts.reference import CODE_ONLY
from tests.support.certificates import make_certificates


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("max_in_flight", "250", "max_in_flight", 250),
        ("max-in-flight", "250", "max_in_flight", 250),
        ("msg_timeout", "1m30s", "msg_timeout", 90.0),
        ("msg_timeout", "0", "msg_timeout", None),
        ("msg_timeout", 1500, "msg_timeout", 1.5),
        ("heartbeat_interval", "-1ms", "heartbeat_interval", None),
        ("heartbeat_interval", "-1", "heartbeat_interval", None),
        ("output_buffer_timeout", -1, "output_buffer_timeout", None),
        ("lookupd_poll_jitter", "0.5", "lookupd_poll_jitter", 0.5),
        ("tls_v1", "true", "tls", "require"),
        ("tls_v1", "F", "tls", "off"),
        ("snappy", "1", "compression", "snappy"),
        ("deflate", "true", "compression", "deflate"),
        ("deflate", "false", "compression", "none"),
        ("backoff_strategy", "full_jitter", "backoff", "full_jitter"),
        ("skip_lookupd_authorization", "false", "lookupd_authorization", False),
        ("max_attempts", "0", "max_attempts", 0),
        ("auth_secret", "it", "auth_secret", "it"),
    ],
)
def test_options(name: str, text: object, field: str, value: object) -> None:
    assert getattr(Config.from_options({name: text}), field) == value


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("foo", "1", "invalid option foo"),
        ("max_in_flight", "-1", "invalid max_in_flight ! -1 < 0"),
        ("deflate_level", "10", "invalid deflate_level ! 10 > 9"),
        ("read_timeout", "1ms", "invalid read_timeout ! 1ms < 100ms"),
        ("max_attempts", "70000", "invalid max_attempts ! 70000 > 65535"),
        ("heartbeat_interval", "-2s", "invalid heartbeat_interval ! -2s < 0s"),
        ("heartbeat_interval", "61s", "HeartbeatInterval 1m1s must be less than ReadTimeout 1m0s"),
        (
            "msg_timeout",
            "1500",
            'failed to coerce option msg_timeout (1500) - time: missing unit in duration "1500"',
        ),
        ("msg_timeout", "soon", 'failed to coerce option msg_timeout (soon) - time: invalid duration "soon"'),
        (
            "max_in_flight",
            "0x10",
            'failed to coerce option max_in_flight (0x10) - strconv.ParseInt: parsing "0x10": invalid syntax',
        ),
        ("snappy", "yes", 'failed to coerce option snappy (yes) - strconv.ParseBool: parsing "yes": invalid syntax'),
        ("backoff_strategy", "x", "invalid backoff ! 'x' is none of exponential, full_jitter, none"),
        ("tls_config", "x", "failed to coerce option tls_config - it can only be given in code"),
        ("tls_min_version", "tls1.3", "invalid tls_min_version ! 'tls1.3' is none of ssl3.0, tls1.0, tls1.1, tls1.2"),
        ("client_id", 1, "failed to coerce option client_id (1) - invalid value type int"),
    ],
)
def test_what_is_wrong_is_said_in_nsqs_words(name: str, text: object, words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        Config.from_options({name: text})
    assert str(refusal.value) == words


def test_equal_heartbeat_and_read_timeout_pass() -> None:
    assert Config(heartbeat_interval=60, read_timeout=60).heartbeat_interval == 60


def test_both_compressions_are_refused_here() -> None:
    with pytest.raises(ConfigError, match="cannot enable both deflate and snappy compression"):
        Config.from_options({"snappy": "true", "deflate": "true"})


def test_defaults_hold_for_what_is_left_out() -> None:
    config = Config.from_options({"max_attempts": "3"}, max_in_flight=200)
    assert (config.max_attempts, config.max_in_flight) == (3, 200)


def test_bounds_hold_in_code_too() -> None:
    with pytest.raises(ConfigError, match="invalid sample_rate ! 100 > 99"):
        Config(sample_rate=100)
    with pytest.raises(ConfigError, match="invalid read_timeout ! nan"):
        Config(read_timeout=float("nan"))
    with pytest.raises(ConfigError, match="drain_timeout"):
        Config(drain_timeout=-1)


def test_flags_split_at_the_first_comma() -> None:
    assert options_of_flags(["snappy", "user_agent,a,b", "snappy,false"]) == {"snappy": "false", "user_agent": "a,b"}


def test_tls_files(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    files = {"tls_root_ca_file": str(made.authority), "tls_cert": str(made.certificate), "tls_key": str(made.key)}
    config = Config.from_options({"tls_v1": "true", "tls_min_version": "tls1.2", **files})
    assert config.ssl_context is not None
    assert config.ssl_context.verify_mode is ssl.CERT_REQUIRED
    assert config.ssl_context.minimum_version is ssl.TLSVersion.TLSv1_2
    lenient = Config.from_options({"tls_v1": "true", "tls_insecure_skip_verify": "true"})
    assert lenient.ssl_context is not None
    assert lenient.ssl_context.verify_mode is ssl.CERT_NONE
    with pytest.raises(ConfigError, match="failed to load TLS files"):
        Config.from_options({"tls_root_ca_file": str(tmp_path / "none.pem")})


def test_a_secret_is_not_shown() -> None:
    assert "hush" not in repr(Config(auth_secret="hush"))


def test_every_option_of_nsq_has_its_default() -> None:
    """The text of a default means the value that applies without it."""
    plain = Config()
    for option in OPTIONS.values():
        if option.kind == "duration":
            value = getattr(plain, option.field)
            text = "-1ms" if value is None and option.none_for else "0" if value is None else f"{value}s"
            assert Config.from_options({option.name: text}) == plain, option.name


def test_it_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().max_in_flight = 2  # type: ignore[misc]


def test_every_field_is_in_the_reference() -> None:
    fields = {field.name for field in dataclasses.fields(Config)}
    assert fields == {option.field for option in OPTIONS.values()} | CODE_ONLY.keys()
