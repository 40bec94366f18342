"""The results of tasks."""

from __future__ import annotations

from django.db import models

from nsqjobs.django.api import TaskResultStatus


class StoredResult(models.Model):
    """An enqueued task and its result."""

    id = models.CharField(primary_key=True, max_length=64)
    status = models.CharField(max_length=10, choices=TaskResultStatus.choices, default=TaskResultStatus.READY)
    task_path = models.TextField()
    queue_name = models.TextField()
    priority = models.IntegerField(default=0)
    backend = models.TextField()
    arguments = models.JSONField()  # {"args": [...], "kwargs": {...}}
    run_after = models.DateTimeField(null=True)
    enqueued_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    last_attempted_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    return_value = models.JSONField(null=True)
    errors = models.JSONField(default=list)  # of {"exception_class_path": ..., "traceback": ...}
    worker_ids = models.JSONField(default=list)

    class Meta:
        verbose_name = "task result"
        indexes = (models.Index(fields=["status", "finished_at"], name="nsqjobs_finished"),)

    def __str__(self) -> str:
        return f"{self.task_path} {self.id}: {self.status}"
