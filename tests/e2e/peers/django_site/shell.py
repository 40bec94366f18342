"""Runs lines of JSON, each with Python code, and answers each with a line: the error, and what the code has said."""

from __future__ import annotations

import json
import sys
import traceback
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

import django


def summary(result: Any) -> list[object]:
    errors = [it.exception_class_path for it in result.errors]
    return [str(result.status), result._return_value, errors, result.attempts]


def main() -> None:
    django.setup()
    from django.core.management import call_command  # only now

    from nsqjobs.django.api import task_backends

    jobs = import_module("django_site.jobs")
    call_command("migrate", verbosity=0)
    names = {**vars(jobs), "summary": summary, "get_result": task_backends["default"].get_result}
    names |= {"UTC": UTC, "datetime": datetime, "timedelta": timedelta}
    for line in sys.stdin:
        said: list[object] = []
        error = ""
        try:
            exec(json.loads(line), {**names, "say": said.append})
        except Exception:
            error = traceback.format_exc()
        print(json.dumps([error, said]), flush=True)


main()
