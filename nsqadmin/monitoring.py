"""What monitoring asks of nsqadmin: is it there, is it ready, and the numbers of the cluster for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqadmin.answers import text_answer
from nsqadmin.app import Route

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from nsqadmin.services import Services


def routes(services: Services) -> list[Route]:
    monitoring = _Monitoring(services)
    return [
        Route("GET", "/ping", monitoring.ping, public=True),
        Route("GET", "/healthz", monitoring.healthz, logged=False, public=True),
    ]


class _Monitoring:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def ping(self, request: Request) -> Response:
        return text_answer("OK", v1=False)

    async def healthz(self, request: Request) -> Response:
        """Ready means that there is a picture to show."""
        if self._services.view.snapshot.index:
            return text_answer("OK", v1=False)
        return text_answer("nothing has been asked yet", status=503, v1=False)
