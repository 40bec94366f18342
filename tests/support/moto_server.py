"""moto's S3 server, which answers one request at a time: `python moto_server.py PORT`.

moto looks whether a name exists, and creates the object a moment later. So if several clients create one name with
`If-None-Match: *` at the same time, two of them may win now and then, and `nsqd remote check` refuses such a store.
"""

from __future__ import annotations

import sys
from threading import Lock
from typing import TYPE_CHECKING, Final

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple

from bench.ports import HOST

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


class OneAtATime:
    def __init__(self, app: WSGIApplication) -> None:
        self._app: Final = app
        self._lock: Final = Lock()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        with self._lock:
            return self._app(environ, start_response)


if __name__ == "__main__":
    served = OneAtATime(DomainDispatcherApplication(create_backend_app))
    run_simple(HOST, int(sys.argv[1]), served, threaded=True, request_handler=MotoRequestHandler)
