"""Nothing of NSQ's surface is forgotten.

Every flag has a test that shows what it does, or is said to do nothing. Every row of docs/reference/nsq-traps.md, what
ports of nsqd usually miss, has a test with its number (`test_trap_07_...`), or one that is listed here.
"""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import pytest

from nsqcommon.options import Option, table_of
from nsqd.options import Options

ROOT = Path(__file__).resolve().parents[2]

# The tests that show a flag's effect.
SHOWN_BY = {
    "tests/e2e/test_cross_site_requests.py": {
        "http-allowed-host": "with_the_option_programs_and_our_own_pages_publish",
        "http-same-site": "publishing_from_another_site_is_nsqs_unless_the_option_says_otherwise",
    },
    "tests/nsqd/whole/test_flags.py": {
        "broadcast-address": "the_broadcast_address_and_ports_are_what_is_registered",
        "broadcast-tcp-port": "the_broadcast_address_and_ports_are_what_is_registered",
        "broadcast-http-port": "the_broadcast_address_and_ports_are_what_is_registered",
        "http-client-connect-timeout": "an_authorization_server_that_does_not_accept_is_waited_for_so_long_only",
        "http-client-request-timeout": "an_authorization_server_that_is_silent_is_waited_for_so_long_only",
        "topology-region": "identify_tells_what_the_flags_say",
        "topology-zone": "identify_tells_what_the_flags_say",
        "node-id": "the_node_id_is_in_every_message_id",
        "data-path": "without_a_data_path_it_is_the_current_folder",
        "log-level": "the_level_of_the_log_changes_while_it_runs",
        "log-prefix": "the_life_of_a_client_in_the_log",
        "max-bytes-per-file": "a_log_begins_a_new_file_when_it_has_grown",
        "msg-timeout": "a_message_comes_back_after_the_default_timeout",
        "max-msg-timeout": "touch_reaches_the_longest_timeout_at_most",
        "max-msg-size": "the_largest_message_and_body",
        "max-body-size": "the_largest_message_and_body",
        "max-identify-size": "the_largest_body_of_identify_and_auth",
        "max-unfinished-bytes": "unfinished_bodies_share_a_bound",
        "max-heartbeat-interval": "more_than_a_flag_allows_is_refused",
        "max-rdy-count": "the_highest_ready_count",
        "max-output-buffer-size": "more_than_a_flag_allows_is_refused",
        "max-output-buffer-timeout": "more_than_a_flag_allows_is_refused",
        "min-output-buffer-timeout": "more_than_a_flag_allows_is_refused",
        "output-buffer-timeout": "identify_tells_what_the_flags_say",
        "statsd-mem-stats": "statsd_is_told_of_memory_and_of_what_is_ephemeral_unless_told_otherwise",
        "statsd-exclude-ephemeral": "statsd_is_told_of_memory_and_of_what_is_ephemeral_unless_told_otherwise",
        "deflate": "identify_tells_what_the_flags_say",
        "snappy": "identify_tells_what_the_flags_say",
        "max-deflate-level": "compression_is_granted_up_to_the_highest_level",
    },
    "tests/nsqd/whole/test_history.py": {
        "retention-time": "what_retention_keeps_is_delivered_again",
    },
    "tests/nsqd/whole/test_idempotence.py": {
        "idempotence-window": "a_second_try_publishes_nothing",
        "idempotence-keys": "the_oldest_keys_go_first",
    },
    "tests/nsqd/log/test_retention_on_disk.py": {
        "retention-bytes": "bytes_keep_as_much_as_fits_behind",
        "topic-retention": "only_a_topic_with_its_own_retention_has_outdated_messages",
    },
    "tests/simulation/test_full_disk.py": {
        "disk-reserve": "reserve_stops_publishing_and_consuming_opens_it_again",
    },
    "tests/nsqd/whole/test_go_import.py": {
        "import-go": "topics_of_both_keep_it_from_starting",
    },
    "tests/nsqd/whole/test_unix_sockets.py": {
        "tcp-address": "clients_are_served_over_unix_sockets",
        "http-address": "clients_are_served_over_unix_sockets",
    },
    "tests/nsqd/whole/test_operating.py": {
        "drain-stay": "a_node_that_has_drained_can_be_read_for_as_long_as_it_was_told",
        "drain-deadline": "a_drain_under_load_loses_nothing_and_ends_in_time",
        "statsd-address": "statsd_gets_every_figure",
        "statsd-prefix": "statsd_gets_every_figure",
        "statsd-interval": "statsd_gets_every_figure",
        "statsd-udp-packet-size": "statsd_gets_every_figure",
        "e2e-processing-latency-percentile": "statsd_gets_every_figure",
    },
    "tests/nsqd/whole/test_traps_queues.py": {
        "mem-queue-size": "trap_27_a_deferral_survives_an_overflow_of_memory",
        "mem-queue-bytes": "trap_32_one_long_message_does_not_fill_an_ephemeral_topic",
        "max-channel-consumers": "a_limit_of_consumers_is_kept",
    },
    "tests/nsqd/whole/test_auth.py": {
        "auth-http-address": "who_is_authorized_publishes_and_consumes",
        "auth-http-request-method": "who_is_authorized_publishes_and_consumes",
    },
    "tests/nsqd/whole/test_consume_http.py": {
        "http-cors-origin": "a_named_site_may_consume_and_nothing_else",
        "max-channel-leases": "leases_of_a_channel_have_a_bound_of_their_own",
        "max-holder-leases": "pollers_that_never_answer_are_bounded_and_leave_others_alone",
        "max-waiting-subs": "no_more_requests_wait_than_may",
    },
    "tests/nsqd/whole/test_policy.py": {
        "policy-file": "a_changed_file_holds_without_a_restart_and_a_mistake_changes_nothing"
    },
    "tests/nsqd/whole/test_rights.py": {"rights-file": "each_role_may_do_its_own_and_nothing_else"},
    "tests/e2e/test_cluster.py": {"lookupd-tcp-address": "a_restarted_nsqlookupd_is_complete_within_one_ping"},
    "tests/nsqd/log/test_store_tasks.py": {
        "sync-every": "dirty_log_is_synced_without_being_asked",
        "sync-timeout": "dirty_log_is_synced_without_being_asked",
    },
    "tests/nsqd/lookup/whole/test_tls.py": {
        "lookupd-tls": "it_registers_and_asks_over_tls",
        "lookupd-tls-root-ca-file": "it_registers_and_asks_over_tls",
        "lookupd-tls-cert": "it_registers_and_asks_over_tls",
        "lookupd-tls-key": "it_registers_and_asks_over_tls",
    },
    "tests/nsqd/broker/whole/test_closeness.py": {
        "enable-experiment": "who_is_in_the_zone_comes_before_the_region_and_all_others"
    },
    "tests/nsqd/broker/test_latency.py": {"e2e-processing-latency-window-time": "a_window_forgets"},
    "tests/nsqcommon/test_logs.py": {"log-format": "json_lines_are_whole_objects"},
    "tests/nsqd/test_options.py": {
        "ack": "a_publisher_hears_after_the_write_unless_told_otherwise",
        "topic-ack": "the_acknowledgement_can_differ_by_topic",
        "max-defer-timeout": "deferral_is_bounded_like_requeueing_unless_told_otherwise",
    },
    "tests/nsqd/client/test_protocol_commands.py": {"max-req-timeout": "requeue_delay_is_clamped"},
    "tests/nsqd/whole/test_data_path_owner.py": {
        "take-over": "a_data_path_in_use_on_another_machine_is_refused_unless_taken_over"
    },
    "tests/nsqd/remote/test_pacing.py": {
        "remote-interval": "the_next_one_waits_for_the_interval_and_one_without_a_waiting_publisher_for_the_delay",
        "remote-delay": "the_next_one_waits_for_the_interval_and_one_without_a_waiting_publisher_for_the_delay",
    },
    "tests/nsqd/remote/test_root_job.py": {"remote-rate": "roots_are_limited_unless_somebody_waits_for_them"},
    "tests/nsqd/whole/test_remote.py": {
        "remote": "an_ok_means_that_the_store_has_the_message",
        "remote-name": "a_node_says_how_far_its_copy_goes",
        "remote-strict": "a_strict_node_refuses_every_topic_until_the_store_answers",
        "remote-timeout": "topics_that_do_not_wait_for_the_store_go_on_without_it",
    },
    "tests/nsqd/whole/test_remote_owner.py": {
        "remote-option": "a_store_that_is_down_delays_the_start_which_can_be_stopped"
    },
    "tests/nsqd/whole/test_standby.py": {"standby": "a_standby_goes_on_with_every_message_that_was_answered"},
    "tests/nsqd/remote/test_vigil.py": {
        "standby-after": "a_standby_waits_for_the_owner_and_then_for_the_chain_to_stand_still",
    },
    "tests/nsqd/remote/test_owner.py": {"remote-buffer": "more_than_the_buffer_is_dropped"},
    "tests/nsqd/whole/test_workers.py": {
        "workers": "each_worker_has_its_own_name_ids_and_folder",
        "worker": "each_line_of_a_log_in_json_names_its_worker",
    },
    "tests/nsqd/whole/test_traps_streams.py": {
        "https-address": "https_has_the_whole_api",
        "tls-cert": "tls_1_2_has_nsqs_names",
        "tls-key": "tls_1_2_has_nsqs_names",
        "tls-client-auth-policy": "a_client_without_a_certificate_is_refused",
        "tls-root-ca-file": "a_client_with_a_good_one_is_known_by_name",
        "tls-required": "where_tls_is_required",
        "tls-min-version": "a_version_below_the_least_is_refused",
    },
    "tests/nsqcommon/test_web.py": {"drain-timeout": "end_does_not_wait_for_ever"},
}

ONLY_MEASURED = {"busy-poll"}


def says_that_it_does_nothing(row: Option) -> bool:
    return row.is_deprecated or row.help.startswith("no effect: ")


@pytest.mark.parametrize(
    "row", [row for row in table_of(Options) if row.flag not in ONLY_MEASURED], ids=lambda row: row.flag
)
def test_every_flag_is_shown_to_do_what_it_says(row: Option) -> None:
    places = [(path, flags[row.flag]) for path, flags in SHOWN_BY.items() if row.flag in flags]
    assert says_that_it_does_nothing(row) != bool(places)
    for path, test in places:
        assert f"def test_{test}(" in (ROOT / path).read_text(encoding="utf-8"), (path, test)


def test_no_flag_is_shown_that_does_not_exist() -> None:
    shown = {flag for flags in SHOWN_BY.values() for flag in flags}
    assert shown <= {row.flag for row in table_of(Options)}


TRAPS = ROOT / "docs" / "reference" / "nsq-traps.md"
TRAPS_ELSEWHERE = {
    51: {
        "tests/nsqd/lookup/test_lookup.py": "replies_to_commands_are_read_and_mean_nothing",
        "tests/nsqd/lookup/test_registration.py": "a_resync_names_a_topic_with_channels_by_its_channels_only",
    },
    52: {
        "tests/nsqd/lookup/whole/test_new_topic_asks_for_channels.py": "while_the_answer_is_slow_publishing_goes_on_and_no_channel_misses_anything",
        "tests/nsqd/lookup/test_registration.py": "channels_that_a_new_topic_does_not_get",
    },
    59: {"tests/nsqd/stats/test_statsd.py": "counters_tell_what_came_since"},
    60: {"tests/nsqcommon/test_options.py": "values_in_the_file"},
}


def numbers_of(test: str) -> list[int]:
    return [int(number) for number in re.findall(r"_(\d\d)(?=_)", test)]


def test_every_trap_has_a_row_and_a_test() -> None:
    rows = [int(number) for number in re.findall(r"^\| (\d+) \|", TRAPS.read_text(encoding="utf-8"), re.MULTILINE)]
    assert rows == [*range(1, len(rows) + 1)]
    names = chain.from_iterable(
        re.findall(r"^(?:async )?def test_trap((?:_\d\d)+_)", path.read_text(encoding="utf-8"), re.MULTILINE)
        for path in (ROOT / "tests").rglob("test_*.py")
    )
    named = {number for name in names for number in numbers_of(name)}
    assert named | TRAPS_ELSEWHERE.keys() == {*rows}
    assert not named & TRAPS_ELSEWHERE.keys()
    for places in TRAPS_ELSEWHERE.values():
        for path, test in places.items():
            assert f"def test_{test}(" in (ROOT / path).read_text(encoding="utf-8"), (path, test)
