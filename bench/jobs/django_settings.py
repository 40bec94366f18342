"""The settings of a Django site whose tasks run on each broker, with their results in the same Postgres either way."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Final
from urllib.parse import urlsplit

from bench.jobs.setup import Setup, setup_of_environment

_OF_BROKER: Final[dict[str, str]] = {
    "nsq": "nsqjobs.django.NsqBackend",
    "postgres": "django_tasks_db.DatabaseBackend",
}
_APPS: Final[dict[str, str]] = {"nsq": "nsqjobs.django", "postgres": "django_tasks_db"}


def database(setup: Setup) -> dict[str, Any]:
    where = urlsplit(setup.database)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": where.path.strip("/"),
        "USER": where.username,
        "HOST": where.hostname,
        "PORT": where.port,
        "CONN_MAX_AGE": None,  # as Django recommends for whoever asks often: both sides would connect for each task
    }


setup: Final = setup_of_environment()

SECRET_KEY = "only for measuring"
USE_TZ = True
INSTALLED_APPS = [_APPS[setup.broker], *([] if find_spec("django.tasks") else ["django_tasks"])]
DATABASES = {"default": database(setup)}
TASKS = {
    "default": {
        "BACKEND": _OF_BROKER[setup.broker],
        "OPTIONS": {"url": setup.url} if setup.broker == "nsq" else {},
    }
}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    # Both workers log each task; what is measured is the task.
    "loggers": {name: {"level": "WARNING"} for name in ("django_tasks", "django.tasks", "django_tasks_db", "nsqjobs")},
    "root": {"handlers": ["console"], "level": "WARNING"},
}
