"""Django's tasks on each broker, with the settings of django_settings.py."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import django
from django.core.management import call_command

if TYPE_CHECKING or not find_spec("django.tasks"):
    from django_tasks import task
else:
    from django.tasks import task

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bench.jobs.django_settings")
django.setup()


@task
def nothing() -> None:
    pass


def publish_many(count: int) -> None:
    """Publish jobs that do nothing, one after the other."""
    _make_tables()
    for _ in range(count):
        nothing.enqueue()


@cache
def _make_tables() -> None:
    call_command("migrate", verbosity=0)
