"""Each hour: orders into a Delta table and its quarantine, counts by the minute, and a look at what became of it.

Each task is a command of `nsqpipe`, in an environment of its own: Airflow need not have Spark. A task may be killed at any
time and tried again, as the table itself knows how far it goes: nothing is missing then, and nothing is there twice.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

# Where `pip install 'nsq-suite[spark]'` was run.
ENVIRONMENT = Path(os.environ.get("NSQPIPE_ENVIRONMENT", "/opt/nsqpipe"))
SOURCE = os.environ.get("ORDERS_SOURCE", "--lookupd 127.0.0.1:4161")
TABLE = os.environ.get("ORDERS_TABLE", "/data/tables/orders")
RETRY_DELAY = timedelta(seconds=float(os.environ.get("ORDERS_RETRY_SECONDS", "60")))

NSQPIPE = ENVIRONMENT / "bin" / "nsqpipe"
PYTHON = ENVIRONMENT / "bin" / "python"
EXAMPLES = Path(__file__).resolve().parents[1]


def command(task: str, words: str, *, retries: int = 3) -> BashOperator:
    return BashOperator(task_id=task, bash_command=words, append_env=True, retries=retries, retry_delay=RETRY_DELAY)


with DAG(
    dag_id="orders",
    schedule="@hourly",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,  # a run takes all that is there: it does not belong to the hour that it is named after
    max_active_runs=1,  # a second job on the table would be refused, and be noise
    default_args={"execution_timeout": timedelta(minutes=50)},
) as dag:
    land = command(
        "land",
        f"{NSQPIPE} land {SOURCE} --topic orders --table {TABLE} --decoder json "
        "--schema 'number long, item string, price long' --until-now",
    )
    # Landing drops no row for being late. Counting by time has to, and here it would be an error.
    count = command(
        "count",
        f"{NSQPIPE} aggregate {SOURCE} --topic orders --table {TABLE}.minutes --results {TABLE}.minutes.json "
        f"--checkpoint {TABLE}.minutes.checkpoint --late error --until-now",
    )
    # What these find does not get better by looking again.
    lag = command(
        "lag", f"{NSQPIPE} lag {SOURCE} --topic orders --checkpoint {TABLE}.checkpoint --at-most 100000", retries=0
    )
    quarantine = command("quarantine", f"{PYTHON} {EXAMPLES}/quarantine_share.py {TABLE} --at-most 0.01", retries=0)
    land >> [lag, quarantine]

if __name__ == "__main__":
    sys.exit(dag.test().state != "success")
