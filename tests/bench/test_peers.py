"""`python -m bench peers`: who is ahead, what the tables and the chart say, and what a block of a document becomes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, cast
from xml.etree import ElementTree

import pytest

from bench.peers import PeersSettings, chart, in_turn, run, tables
from bench.peers.backlog import Held
from bench.peers.draw import BEGIN, END, PAGE, PICTURE, README, draw, filled
from bench.peers.loads import FIGURES, Figure
from bench.peers.result import Result
from bench.peers.rows import Missing, PeerRow, Values, rows_of
from bench.peers.variants import Promise, Variant, variants
from bench.servers import RabbitMq
from bench.work import Failed, Work


def figure_named(name: str) -> Figure:
    return next(figure for figure in FIGURES if figure.name == name)


@pytest.fixture(autouse=True)
def on_debian_12(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the same variants on each machine, whatever is installed there and was brought."""
    monkeypatch.setattr("bench.rivals.RIVALS", tmp_path / "nothing was brought")
    monkeypatch.setattr(RabbitMq, "version", lambda: "RabbitMQ 3.10.8")


RATE, TIME, LOST = figure_named("pub2"), figure_named("latency1000 p99"), figure_named("kill")


def row(load: str, peer: str, *values: float, ratio: float | None = None) -> dict[str, Any]:
    median = sorted(values)[len(values) // 2]
    return {"load": load, "peer": peer, "median": median, "values": values, "ratio": ratio, "note": None}


def result_with(*rows: dict[str, Any], missing: tuple[dict[str, str], ...] = ()) -> Result:
    described = [
        {
            "name": it.name,
            "label": it.label,
            "promise": it.promise,
            "durability": it.durability,
            "version": "1",
            "client": it.client,
        }
        for it in variants()
    ]
    content = {
        "date": "2026-11-26T00:00:00+0000",
        "command": "python -m bench peers",
        "settings": {"rounds": 3, "seconds": 1.0},
        "machine": {"cores": 2, "model": "a machine", "load_average": 0.25},
        "versions": {"commit": "abc"},
        "backlog": 1000,
        "peers": described,
        "missing": missing,
        "rows": rows,
    }
    return Result.of(content, Path("result.json"))


def test_the_highest_rate_is_ahead_of_the_best_of_the_other_side() -> None:
    result = result_with(
        row("pub2", "nsqd-pure", 10), row("pub2", "nsqd-compiled", 20), row("pub2", "redis-everysec", 80)
    )
    ahead = result.ahead(RATE, result.group(Promise.WRITTEN))
    assert ahead is not None
    assert ahead.other is not None
    assert (ahead.peer.name, ahead.other.name, ahead.factor) == ("redis-everysec", "nsqd-compiled", 4)


def test_the_shortest_time_is_ahead() -> None:
    result = result_with(row(TIME.name, "nsqd-pure", 10), row(TIME.name, "nats", 30))
    ahead = result.ahead(TIME, result.group(Promise.WRITTEN))
    assert ahead is not None
    assert (ahead.peer.name, ahead.factor) == ("nsqd-pure", 3)


def test_unequal_promises_are_not_compared() -> None:
    result = result_with(
        row("pub2", "nsqd-pure", 10), row("pub2", "redis-default", 80), row("pub2", "redis-always", 90)
    )
    ahead = result.ahead(RATE, result.group(Promise.WRITTEN))
    assert ahead is not None
    assert (ahead.peer.name, ahead.other) == ("nsqd-pure", None)


@pytest.mark.parametrize(("theirs", "is_clear"), [((12, 13, 14), True), ((9, 12, 14), False)])
def test_spreads_that_overlap_are_said(theirs: tuple[float, ...], is_clear: bool) -> None:
    result = result_with(row("pub2", "nsqd-pure", 8, 9, 10), row("pub2", "nats", *theirs))
    ahead = result.ahead(RATE, result.group(Promise.WRITTEN))
    assert ahead is not None
    assert ahead.is_clear is is_clear
    assert ("within the spread" in tables.table(result, result.group(Promise.WRITTEN))) is not is_clear


def test_nobody_is_ahead_when_nobody_loses_anything() -> None:
    result = result_with(row("kill", "nsqd-pure", 0), row("kill", "nats", 0))
    assert result.ahead(LOST, result.group(Promise.WRITTEN)) is None
    assert tables.NOBODY in tables.table(result, result.group(Promise.WRITTEN))


def test_who_loses_least_is_ahead() -> None:
    result = result_with(row("kill", "nsqd-pure", 0), row("kill", "nats", 7))
    ahead = result.ahead(LOST, result.group(Promise.WRITTEN))
    assert ahead is not None
    assert (ahead.peer.name, ahead.factor) == ("nsqd-pure", None)


def test_one_that_loses_nothing_is_not_like_another_that_did_not_come_back() -> None:
    result = result_with(
        row("kill", "nsqd-pure-synced", 0), missing=({"peer": "rabbitmq-quorum", "load": "kill", "why": "not back"},)
    )
    words = tables.table(result, result.group(Promise.SYNCED))
    assert "| not back |" in words
    assert words.endswith("**nsqd, pure, synced** (alone) |")


def test_two_that_lose_nothing_are_equal_although_a_third_loses_something() -> None:
    result = result_with(row("kill", "nsqd-pure", 0), row("kill", "redis-everysec", 0), row("kill", "nats", 7))
    ahead = result.ahead(LOST, result.group(Promise.WRITTEN))
    assert ahead is not None
    assert ahead.other is not None
    assert (ahead.other.name, ahead.factor, ahead.is_clear) == ("redis-everysec", 1, False)


def test_a_cell_has_median_ratio_and_spread_or_why_it_is_missing() -> None:
    result = result_with(
        row("pub2", "nsqd-pure", 1000, 1100, 1200),
        row("pub2", "redis-everysec", 2000, 2200, 2500, ratio=2.0),
        missing=({"peer": "nats", "load": "pub2", "why": "falls behind"},),
    )
    line = next(it for it in tables.table(result, result.group(Promise.WRITTEN)).splitlines() if RATE.text in it)
    assert "| 1,100 (1,000 to 1,200) |" in line
    assert "| 2,200, 2.00× (2,000 to 2,500) |" in line
    assert "| falls behind |" in line


def test_the_document_has_medians_alone() -> None:
    words = tables.document(
        result_with(row("pub2", "nsqd-pure", 1000, 1100, 1200), row("pub2", "nats", 550, ratio=0.5))
    )
    assert (
        f"| {RATE.text}, {RATE.unit} | 1,100 | – | – | – | – | 550 | – | **nsqd, pure** (2.00× NATS JetStream) |"
        in words
    )


def test_the_document_has_nothing_that_a_kill_takes() -> None:
    words = tables.document(result_with(row("pub2", "nsqd-pure", 1), row("pub2", "redis-default", 2)))
    assert "Redis, as installed" not in words


def test_builds_with_the_same_settings_share_a_line() -> None:
    result = result_with(row("pub2", "nsqd-pure", 1), row("pub2", "nsqd-compiled", 2))
    assert "| nsqd, pure; nsqd, compiled |" in tables.brokers(result.peers)


def test_a_broker_that_was_not_measured_is_named_with_the_reason() -> None:
    result = result_with(row("pub2", "nsqd-pure", 1), missing=({"peer": "go-nsqd", "load": "", "why": "not there"},))
    assert "- go-nsqd: not there" in tables.page(result)


def test_the_sentence_counts_who_is_ahead_and_what_is_too_close_to_tell() -> None:
    result = result_with(
        row("pub2", "nsqd-pure", 10, 20, 30),
        row("pub2", "redis-everysec", 40, 50, 60),
        row("pub50", "nsqd-pure", 10, 20, 30),
        row("pub50", "redis-everysec", 1, 2, 3),
        row("deep", "nsqd-pure", 10, 20, 30),
        row("deep", "redis-everysec", 15, 25, 35),
    )
    words = (
        "Of 3 figures with answers that survive `kill -9`, Redis is ahead in 1, nsqd in 1 and 1 is too close to tell."
    )
    assert tables.sentence(result).startswith(words)


def test_the_page_says_how_long_each_load_was() -> None:
    words = tables.provenance(result_with(row("pub2", "nsqd-pure", 1)))
    assert "3 rounds in turns, 1 s for each load" in words
    assert "load average 0.2 at the end" in words


def test_the_chart_is_the_same_each_time_and_well_formed() -> None:
    rows = [row(name, "nsqd-pure", 1, 2, 3) for name in chart.SHOWN] + [row("pub2", "nats", 6)]
    picture = chart.svg(result_with(*rows))
    assert picture == chart.svg(result_with(*rows))
    root = ElementTree.fromstring(picture)
    widths = [float(it.attrib["width"]) for it in root.iter() if it.attrib.get("class") in ("ours", "other")]
    assert len(widths) == len(rows)
    assert widths[0] == pytest.approx(
        3 * widths[1], abs=0.3
    )  # nats has three times as much, and is the first of its panel
    assert "prefers-color-scheme: dark" in picture


def test_a_block_is_filled_and_the_text_around_it_stays() -> None:
    text = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert filled(text, "new") == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    assert filled(filled(text, "new"), "new") == filled(text, "new")


def test_a_result_that_documents_could_not_link_is_drawn_nowhere(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for page in (README, PAGE):
        (root / page).parent.mkdir(parents=True, exist_ok=True)
        (root / page).write_text(f"{BEGIN}\n{END}\n", encoding="utf-8")
    outside = replace(result_with(row("pub2", "nsqd-pure", 1)), path=tmp_path / "result.json")
    with pytest.raises(Failed, match="not in the repository"):
        draw(outside, root)
    assert not (root / PICTURE).exists()


def test_a_page_has_one_block() -> None:
    with pytest.raises(Failed, match="one block"):
        filled(f"{BEGIN}\n{END}\n{BEGIN}\n{END}\n", "new")


def test_ratios_compare_with_ours_in_pure_python_and_the_same_promise() -> None:
    measured = [
        it for it in variants() if it.name in ("nsqd-pure", "nsqd-pure-synced", "redis-always", "rabbitmq-classic")
    ]
    values = {("pub2", it.name): [float(at + 1), 4.0] for at, it in enumerate(measured)}
    values |= {("backlog start", "nsqd-pure"): [2.0], ("backlog start", "rabbitmq-classic"): [6.0]}
    rows = {(it.load, it.peer): it for it in rows_of(values, {}, measured) if isinstance(it, PeerRow)}
    assert rows["pub2", "redis-always"].other == "nsqd-pure-synced"
    assert rows["pub2", "redis-always"].ratio == (3 / 2 + 4 / 4) / 2
    assert (rows["backlog start", "rabbitmq-classic"].other, rows["backlog start", "rabbitmq-classic"].ratio) == (
        "nsqd-pure",
        3,
    )
    assert rows["pub2", "nsqd-pure"].ratio is None


def test_rounds_of_unequal_number_have_no_ratio() -> None:
    measured = [it for it in variants() if it.name in ("nsqd-pure", "nats")]
    rows = rows_of({("pub2", "nsqd-pure"): [1, 2, 3], ("pub2", "nats"): [1, 2]}, {}, measured)
    assert [row.ratio for row in rows] == [None, None]


def test_what_one_round_had_to_leave_out_is_left_out_of_all() -> None:
    measured = [it for it in variants() if it.name in ("nsqd-pure", "nats")]
    values: Values = {(TIME.name, "nsqd-pure"): [1, 2], (TIME.name, "nats"): [1]}
    missing = [Missing("nats", TIME.name, "falls behind")]
    rows = [it for it in rows_of(values, {}, measured, missing) if isinstance(it, PeerRow)]
    assert [it.peer for it in rows] == ["nsqd-pure"]


@pytest.mark.parametrize(
    ("count", "kept", "why"),
    [
        (100, 98, {}),  # the consumer has had one, and another one was on its way
        (100, 90, {"backlog start": "10 of 100 were gone after the start"}),
        (99, 99, dict.fromkeys(("backlog memory", "backlog start"), "only 99 messages in 90 s")),
    ],
)
def test_who_holds_less_of_the_backlog_has_no_figures_of_it(count: int, kept: int, why: dict[str, str]) -> None:
    figures, missing = Held(count, per_second=5.0, megabytes=1.0, start=0.1, kept=kept).figures(100, 90.0)
    assert missing == why
    assert figures["backlog fill"] == 5.0
    assert set(figures) | set(missing) == {"backlog fill", "backlog memory", "backlog start"}
    assert set(figures).isdisjoint(missing)


def test_each_round_has_everybody_once_and_begins_with_another_one() -> None:
    rounds = [[it.name for it in in_turn(variants(), number)] for number in range(3)]
    assert len({tuple(sorted(names)) for names in rounds}) == 1
    assert len({names[0] for names in rounds}) == len(rounds)


def program_that_says(words: str, path: Path) -> str:
    path.write_text(f"#!/bin/sh\necho '{words}'\n")
    path.chmod(0o755)
    return str(path)


def test_gos_nsqd_is_measured_in_two_ways_if_its_program_is_named(tmp_path: Path) -> None:
    program = program_that_says("nsqd v1.3.0 (built w/go1.22.5)", tmp_path / "nsqd")
    found = {it.name: it for it in variants(go_nsqd=program) if it.name.startswith("go-nsqd")}
    assert {name: it.promise for name, it in found.items()} == {
        "go-nsqd-disk": Promise.WRITTEN,
        "go-nsqd-default": Promise.MEMORY,
    }
    for it in found.values():
        assert (it.kind.lacks(), it.version) == ("", "Go nsqd 1.3.0")
        assert it.make(tmp_path / it.name).command[0] == program


def test_both_forms_of_gos_nsqd_are_found_in_the_folder_of_nsqs_own_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = program_that_says("nsqd v1.3.0 (built w/go1.22.5)", tmp_path / "nsqd")
    monkeypatch.setenv("NSQ_ORIGINAL", str(tmp_path))
    measured: list[Variant] = []

    def note(settings: object, work: object, loads: object, variants: list[Variant], missing: object) -> NoReturn:
        measured.extend(variants)
        raise Failed("seen")

    monkeypatch.setattr("bench.peers._Run", note)
    for settings in (PeersSettings(quick=True), PeersSettings(peers="go-nsqd-disk,go-nsqd-default")):
        measured.clear()
        with pytest.raises(Failed, match="seen"):
            run(settings, cast(Work, None))
        found = [it for it in measured if it.name.startswith("go-nsqd")]
        assert [it.name for it in found] == ["go-nsqd-disk", "go-nsqd-default"]
        assert all(it.make(tmp_path / it.name).command[0] == program for it in found)


def test_a_broker_that_was_brought_is_taken_before_an_installed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, version in (("brought", "2.15.1"), ("installed", "2.9.10")):
        (tmp_path / folder).mkdir()
        program_that_says(f"nats-server: v{version}", tmp_path / folder / "nats-server")
    monkeypatch.setattr("bench.servers._PATH", f"{tmp_path}/brought:{tmp_path}/installed")
    found = {it.name: it for it in variants() if it.name.startswith("nats")}
    assert {name: (it.version, it.kind.lacks()) for name, it in found.items()} == {
        "nats": ("NATS 2.15.1", ""),
        "nats-always": ("NATS 2.15.1", ""),
    }


def test_a_rabbitmq_that_was_brought_runs_on_an_erlang_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "rabbitmq/usr/lib/rabbitmq/lib/rabbitmq_server-4.0.5"
    home.mkdir(parents=True)
    monkeypatch.setattr("bench.rivals.RIVALS", tmp_path)
    (quorum, classic) = (it for it in variants() if it.name.startswith("rabbitmq"))
    assert (quorum.version, classic.kind.lacks()) == ("RabbitMQ 4.0.5", "")
    assert (quorum.promise, classic.promise) == (Promise.SYNCED, Promise.WRITTEN)
    server = quorum.make(tmp_path / "node")
    assert server.command == [str(home / "sbin/rabbitmq-server")]
    assert server.environ["PATH"].startswith(f"{tmp_path}/rabbitmq/usr/lib/erlang/bin:")


def test_what_was_not_brought_is_named_with_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.rivals.RIVALS", tmp_path)
    monkeypatch.setattr("bench.servers._PATH", str(tmp_path))
    why = {it.name: it.kind.lacks() for it in variants()}
    assert why["kafka"] == "Kafka 4.4 is not here (scripts/bring-rivals brings it)"
    assert why["valkey-always"] == "Valkey 9.1 is not here (scripts/bring-rivals brings it)"


def test_kafka_has_a_table_of_its_own_and_is_not_ranked() -> None:
    result = result_with(
        row("pub2", "nsqd-pure", 10, 20),
        row("pub2", "kafka", 100, 200),
        row("pub2 client", "kafka", 12.5),
        row("backlog memory", "kafka", 400),
    )
    ahead = result.ahead(RATE, result.group(Promise.WRITTEN))
    assert ahead is not None
    assert (ahead.peer.name, ahead.other) == ("nsqd-pure", None)
    assert "Kafka" not in tables.table(result, result.group(Promise.WRITTEN))
    assert not result.group("backlog").figures
    page = tables.page(result)
    assert "**Kafka, share group, by its own client in Java**" in page
    assert f"| {RATE.text}, {RATE.unit} | 200 (100 to 200) | 12.5 |" in page
    assert "| memory with the backlog, MB | 400 | – |" in page
    assert "| 200 | 12.5 |" in tables.document(result)


def test_kafka_alone_can_be_measured() -> None:
    result = result_with(row("pub2", "kafka", 100))
    assert "| 100 | – |" in tables.page(replace(result, peers=[it for it in result.peers if it.client]))


def test_what_is_not_ranked_has_no_ratio() -> None:
    measured = [it for it in variants() if it.name in ("nsqd-pure", "kafka")]
    rows = rows_of({("pub2", "nsqd-pure"): [1], ("pub2", "kafka"): [2]}, {}, measured)
    assert [row.ratio for row in rows] == [None, None]


LIMIT_HEAD = (
    "|  | limit (C) | nsqd, pure | limit / nsqd, pure | nsqd, compiled | limit / nsqd, compiled |\n"
    "| --- | ---: | ---: | ---: | ---: | ---: |\n"
)


def test_the_limit_has_a_table_of_its_own_with_the_ratios_of_each_round() -> None:
    result = result_with(
        row("pub2", "limit", 100, 200, 900),
        row("pub2", "nsqd-pure", 50, 50, 100),
        row("pub2", "nsqd-compiled", 100, 100, 300),
        row("batch10", "limit", 70, 70, 70),
        row("batch10", "nsqd-pure", 50, 50, 50),
        row("consume", "nsqd-pure", 1, 1, 1),
    )
    (words,) = tables.limit_table(result)
    assert words.endswith(
        f"{LIMIT_HEAD}"
        f"| {RATE.text}, msg/s | 200 | 50 | 4.00× (2.00× to 9.00×) | 100 | 2.00× (1.00× to 3.00×) |\n"
        f"| {figure_named('batch10').text}, msg/s | 70 | 50 | 1.40× | – | – |"
    )
    assert words in tables.page(result)
    (short,) = tables.limit_table(result, short=True)
    assert "| 200 | 50 | 4.00× | 100 | 2.00× |" in short
    assert short in tables.document(result)


def test_the_limit_is_not_ranked_and_not_among_the_brokers() -> None:
    result = result_with(row("pub2", "nsqd-pure", 10), row("pub2", "limit", 80))
    ahead = result.ahead(RATE, result.group(Promise.WRITTEN))
    assert ahead is not None
    assert (ahead.peer.name, ahead.other) == ("nsqd-pure", None)
    assert "limit" not in tables.table(result, result.group(Promise.WRITTEN))
    assert "limit (C)" not in tables.summary(result)
    assert "| limit (C) | 1 |" not in tables.page(result)  # among the brokers' versions
    assert "limit" not in chart.svg(result)


def test_the_limit_alone_can_be_measured() -> None:
    result = result_with(row("pub2", "limit", 80))
    page = tables.page(replace(result, peers=[it for it in result.peers if it.is_limit]))
    assert f"| {RATE.text}, msg/s | 80 |" in page
    assert "durability" not in page


def test_without_the_limit_there_is_no_table_of_it() -> None:
    assert not tables.limit_table(result_with(row("pub2", "nsqd-pure", 10)))


def test_a_round_that_one_of_the_two_lacks_leaves_no_ratio_to_the_limit() -> None:
    result = result_with(row("pub2", "limit", 1, 2, 3), row("pub2", "nsqd-pure", 1, 2))
    (words,) = tables.limit_table(result)
    assert f"| {RATE.text}, msg/s | 2 | 2 | – | – | – |" in words


def test_a_round_in_which_nothing_was_published_has_no_ratio_to_the_limit() -> None:
    result = result_with(row("pub2", "limit", 4, 4, 4), row("pub2", "nsqd-pure", 0, 2, 2))
    (words,) = tables.limit_table(result)
    assert "| 2.00× |" in words


def test_the_limit_takes_only_loads_that_publish() -> None:
    (limit,) = (it for it in variants() if it.name == "limit")
    assert set(limit.loads) == {"pub2", "pub50", "deep", "batch10", "batch"}
    assert not limit.has_backlog


def test_the_limit_takes_its_turn_next_to_ours() -> None:
    names = [it.name for it in variants()]
    assert names.index("nsqd-pure") - names.index("limit") == 1


def test_what_has_none_of_the_chosen_loads_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def note(self: object, variant: Variant, number: int) -> None:
        measured.append(variant.name)

    monkeypatch.setattr("bench.peers._Run._measure_rates", note)
    monkeypatch.setattr("bench.peers.Loader.compiled", lambda folder: None)
    work = Work(Path(), Path(), set())
    for loads in ("consume,latency1000", "consume,deep"):
        run(PeersSettings(peers="limit,nsqd-pure", loads=loads, rounds=1), work)
    assert measured == ["nsqd-pure", "limit", "nsqd-pure"]


def test_the_limit_is_left_out_where_there_is_no_compiler(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(Failed, match="none of these brokers is here"):
        run(PeersSettings(peers="limit"), cast(Work, None))
    why = "bench/limit.c is compiled before it is measured: that needs cc, gcc or clang"
    assert capsys.readouterr().err == f"limit: left out: {why}\n"


def test_none_is_a_number_that_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.peers._lacks", lambda variant, build: "not here")
    settings = PeersSettings(rounds=0, rest=0, quick=True)
    with pytest.raises(Failed, match="none of these brokers is here"):
        run(settings, cast(Work, None))
    assert (settings.rounds, settings.rest, settings.seconds) == (0, 0, 0.3)


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("", "its binary was not named (--go-nsqd FILE, or its folder in NSQ_ORIGINAL)"),
        ("/no/such", "/no/such is not installed"),
    ],
)
def test_gos_nsqd_is_left_out_in_one_line(
    program: str, why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NSQ_ORIGINAL", raising=False)
    settings = PeersSettings(peers="go-nsqd-disk,go-nsqd-default", go_nsqd=program)
    with pytest.raises(Failed, match="none of these brokers is here"):
        run(settings, cast(Work, None))
    assert capsys.readouterr().err == f"go-nsqd-disk, go-nsqd-default: left out: {why}\n"


def test_names_of_variants_are_unique_and_the_reference_is_among_them() -> None:
    names = [variant.name for variant in variants()]
    assert len(set(names)) == len(names)
    assert {"nsqd-pure", "go-nsqd-disk", "go-nsqd-default"} <= set(names)
