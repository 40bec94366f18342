"""Orders as an asset: a Delta table that `nsqpipe land` fills each hour, and two checks of what became of it.

A run may be killed at any time and tried again, as the table itself knows how far it goes: nothing is missing then, and
nothing is there twice.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import dagster as dg

sys.path.append(str(Path(__file__).resolve().parents[1]))
from quarantine_share import landed  # type: ignore[import-not-found]  # the folder above is no package

ENVIRONMENT = Path(os.environ.get("NSQPIPE_ENVIRONMENT", sys.prefix))  # where `pip install 'nsq-suite[spark]'` was run
SOURCE = os.environ.get("ORDERS_SOURCE", "--lookupd 127.0.0.1:4161").split()
TABLE = os.environ.get("ORDERS_TABLE", "/data/tables/orders")
RETRY_SECONDS = float(os.environ.get("ORDERS_RETRY_SECONDS", "60"))
BEHIND_AT_MOST = 100_000
QUARANTINED_AT_MOST = 0.01


def nsqpipe(*words: str) -> str:
    """Run a command. Raises what Dagster shows, with the line that says why, when it has failed."""
    done = subprocess.run([ENVIRONMENT / "bin" / "nsqpipe", *words], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise dg.Failure(
            f"nsqpipe {words[0]} has ended with {done.returncode}: its last line on standard error says why"
        )
    return done.stdout


@dg.asset(retry_policy=dg.RetryPolicy(max_retries=3, delay=RETRY_SECONDS))
def orders() -> dg.MaterializeResult:
    schema = "number long, item string, price long"
    nsqpipe(
        *("land", *SOURCE, "--topic=orders", f"--table={TABLE}"),
        *("--decoder=json", f"--schema={schema}", "--until-now"),
    )
    found = landed(TABLE)
    return dg.MaterializeResult(metadata={"today": found.good, "quarantined today": found.quarantined})


@dg.asset_check(asset=orders)
def is_near_the_end_of_the_topic() -> dg.AssetCheckResult:
    found = json.loads(nsqpipe("lag", *SOURCE, "--topic=orders", f"--checkpoint={TABLE}.checkpoint", "--json"))
    return dg.AssetCheckResult(passed=found["behind"] <= BEHIND_AT_MOST, metadata={"behind": found["behind"]})


@dg.asset_check(asset=orders)
def is_understood() -> dg.AssetCheckResult:
    share = landed(TABLE).share
    return dg.AssetCheckResult(passed=share <= QUARANTINED_AT_MOST, metadata={"share in quarantine": share})


CHECKS = [is_near_the_end_of_the_topic, is_understood]
each_hour = dg.ScheduleDefinition(name="each_hour", target=dg.AssetSelection.assets(orders), cron_schedule="0 * * * *")
definitions = dg.Definitions(assets=[orders], asset_checks=CHECKS, schedules=[each_hour])

if __name__ == "__main__":
    run = dg.materialize([orders, *CHECKS])
    sys.exit(not (run.success and all(check.passed for check in run.get_asset_check_evaluations())))
