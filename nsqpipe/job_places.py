"""The places named in a job's options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark_nsq.failures import PipeFailed
from pyspark_nsq.stores.places import BadPlace, options_of_conf
from pyspark_nsq.stores.storage import place_of

if TYPE_CHECKING:
    from nsqpipe.jobs import Stored
    from pyspark_nsq.stores.places import Place


def place_for(job: Stored, name: str) -> Place:
    """Return the place of a table or file named in a job's options."""
    return place_of(name, options_for(job, name))


def options_for(job: Stored, name: str) -> dict[str, str]:
    """Return the options of the store: from the command line, or else from Spark's configuration."""
    if "://" not in name:
        return {}
    from nsqpipe.session import known_conf  # it imports Spark

    try:
        found = options_of_conf(known_conf(dict(getattr(job, "conf", ()))), name)
    except BadPlace as error:
        raise PipeFailed(str(error)) from None
    return {**found, **{f"storage.{word}": text for word, text in job.storage}}
