"""A process that publishes jobs that do nothing: `python -m bench.jobs.publish_many APP COUNT`.

It prints when it began and when it was done, in seconds since 1970, and the processor time in between. What an app does
at its first publish comes before.
"""

from __future__ import annotations

import importlib
import sys
import time
from typing import Final

WARMING_UP: Final = 50  # jobs


def main(app: str, count: int) -> None:
    publish_many = importlib.import_module(app).publish_many
    publish_many(WARMING_UP)
    began, used = time.time(), time.process_time()
    publish_many(count)
    sys.stdout.write(f"{began} {time.time()} {time.process_time() - used}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
