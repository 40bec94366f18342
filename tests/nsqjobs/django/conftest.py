"""A Django whose tasks go to a link that only writes them down."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import django
import pytest
from django.conf import settings

from nsqjobs.addresses import parse_url
from nsqjobs.reporting import Reporter
from tests.nsqjobs.link import FakeLink

HAS_TASKS = find_spec("django.tasks") is not None

if not settings.configured:
    settings.configure(
        SECRET_KEY="only for tests",
        USE_TZ=True,
        INSTALLED_APPS=["nsqjobs.django"] if HAS_TASKS else ["nsqjobs.django", "django_tasks"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        TASKS={
            "default": {"BACKEND": "nsqjobs.django.NsqBackend", "QUEUES": []},
            "forgetful": {"BACKEND": "nsqjobs.django.NsqBackend", "OPTIONS": {"results": False, "priority": False}},
            "reporting": {"BACKEND": "nsqjobs.django.NsqBackend", "QUEUES": [], "OPTIONS": {"report": True}},
            "mistaken": {"BACKEND": "nsqjobs.django.NsqBackend", "OPTIONS": {"url": "redis://here", "colour": "red"}},
        },
    )
    django.setup()


@pytest.fixture
def reporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reporter]:
    """Provide a reporter that reaches no nsqd."""
    reporter = Reporter(parse_url("nsq://127.0.0.1:1"))
    monkeypatch.setattr("nsqjobs.django.backend.reporter_to", lambda url: reporter)
    yield reporter
    reporter.close()


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> FakeLink:
    link = FakeLink()
    monkeypatch.setattr("nsqjobs.django.backend.link_to", lambda url: link)
    return link


@pytest.fixture
def database() -> Iterator[None]:
    """Provide the table, in memory, and empty it afterwards."""
    from django.core.management import call_command

    from nsqjobs.django.models import StoredResult

    call_command("migrate", verbosity=0)
    yield
    StoredResult.objects.all().delete()
