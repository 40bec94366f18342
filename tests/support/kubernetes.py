"""Whether an object fits Kubernetes' schema.

The library that knows it is imported here when it is asked, as each process that collects tests would pay for that.
"""

from __future__ import annotations

from typing import Any

from tests.support.late_grammars import late_grammars


class InvalidObject(Exception):
    """The object does not fit the schema."""


def check_object(found: dict[str, Any], version: str) -> None:
    """Raise InvalidObject if this version of Kubernetes would refuse the object."""
    with late_grammars():
        import kubernetes_validate  # later: see above

    try:
        kubernetes_validate.validate(found, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        raise InvalidObject(error) from error
