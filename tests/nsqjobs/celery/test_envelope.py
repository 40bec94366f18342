import pytest

from nsqjobs.celery.envelope import decode, encode, job_key, let_run, publication, ttl_of


def message(**headers: object) -> dict[str, object]:
    return {"body": "[]", "headers": headers, "properties": {"delivery_info": {}, "delivery_tag": "t"}}


def test_a_message_survives() -> None:
    assert decode(encode(message(task="add"))) == message(task="add")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"properties": 1}',
        b'{"properties": {}}',
        b'{"properties": {"delivery_info": {}}}',
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_what_kombu_did_not_write_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError):
        decode(body)


def test_a_task_has_a_jobs_headers() -> None:
    found = publication(message(task="add", id="1", retries=2))
    assert found.headers == {"job-library": b"celery", "job-name": b"add", "job-id": b"1", "job-retries": b"2"}
    assert found.eta is None
    assert found.key is None


def test_a_task_with_an_eta_has_a_key() -> None:
    found = publication(message(task="add", id="1", retries=0, eta="1970-01-01T01:00:10+01:00"))
    assert found.eta == 10
    assert found.key == "1:0"
    assert found.headers["job-eta"] == b"10000"


def test_a_time_without_a_zone_is_in_utc() -> None:
    assert publication(message(task="add", id="1", eta="1970-01-01T00:00:10")).eta == 10


@pytest.mark.parametrize("eta", ["tomorrow", 5, None])
def test_celery_itself_reports_a_strange_eta(eta: object) -> None:
    assert publication(message(task="add", id="1", eta=eta)).eta is None


def test_what_is_no_task_has_no_headers() -> None:
    assert publication(message()).headers == {}


def test_an_expiration_is_nsqds_to_keep() -> None:
    assert ttl_of({"properties": {"expiration": "1500"}}) == {"nsq-ttl": b"1500"}
    assert ttl_of({"properties": {"expiration": "soon"}}) == {}


def test_keys_differ_between_retries_and_replacements() -> None:
    assert len({job_key("1", retries, nesting) for retries in range(3) for nesting in range(3)}) == 9


@pytest.mark.parametrize("id", ["x" * 200, "größe", "two words", ""])
def test_any_id_makes_a_key_that_nsqd_accepts(id: str) -> None:
    key = job_key(id, 0)
    assert 0 < len(key) <= 64
    assert key.isascii()
    assert " " not in key


@pytest.mark.parametrize(("now", "left"), [(9.0, None), (11.0, "1970-01-01T00:00:10+00:00")])
def test_a_job_that_nsqd_delivers_early_is_not_held(now: float, left: str | None) -> None:
    said = message(task="add", id="1", eta="1970-01-01T00:00:10+00:00")
    assert let_run(said, now)["headers"]["eta"] == left


@pytest.mark.parametrize("headers", [None, {}, {"eta": None}, {"eta": "tomorrow"}])
def test_a_message_without_an_eta_stays_as_it_is(headers: object) -> None:
    assert let_run({"headers": headers}, 0.0) == {"headers": headers}
