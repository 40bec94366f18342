from __future__ import annotations

import json
import os
from importlib.util import find_spec

SECRET_KEY = "only for tests"
USE_TZ = True
INSTALLED_APPS = ["nsqjobs.django"] if find_spec("django.tasks") else ["nsqjobs.django", "django_tasks"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["DATABASE"],
        "OPTIONS": {"timeout": 30, "transaction_mode": "IMMEDIATE"},
    }
}
TASKS = {
    "default": {
        "BACKEND": "nsqjobs.django.NsqBackend",
        "QUEUES": [],  # any
        "OPTIONS": {"url": os.environ["NSQ_URL"], **json.loads(os.environ.get("NSQ_OPTIONS", "{}"))},
    }
}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["console"], "level": "INFO"},
}
