from __future__ import annotations

from django.apps import AppConfig


class NsqTasksConfig(AppConfig):
    """Adds the table of results and the commands."""

    name = "nsqjobs.django"
    label = "nsqjobs"
    verbose_name = "Tasks on nsqd"
