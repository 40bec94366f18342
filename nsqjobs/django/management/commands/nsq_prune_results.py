"""`manage.py nsq_prune_results`."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand
from django.utils import timezone

from nsqjobs.django.api import TaskResultStatus
from nsqjobs.django.models import StoredResult


class Command(BaseCommand):
    help = "Delete the results of finished tasks."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--older-than", type=float, default=14.0, metavar="DAYS", help="days since the end (%(default)g)"
        )
        parser.add_argument("--successful", action="store_true", help="only successful tasks")

    def handle(self, **options: Any) -> None:
        ended = [TaskResultStatus.SUCCESSFUL, *([] if options["successful"] else [TaskResultStatus.FAILED])]
        before = timezone.now() - timedelta(days=options["older_than"])
        deleted, _ = StoredResult.objects.filter(status__in=ended, finished_at__lt=before).delete()
        self.stdout.write(f"{deleted} results deleted")
