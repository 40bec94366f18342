"""nsqadmin as one tree of tasks: its parts, and the order in which they start and stop."""

from __future__ import annotations

import logging
import platform
import resource
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from time import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import trio

from nsqadmin import site
from nsqadmin.accounts import read_accounts
from nsqadmin.actions.audit import ActivityLog
from nsqadmin.actions.execution import Executor
from nsqadmin.actions.notify import Notifier
from nsqadmin.actions.plan import messages_lost
from nsqadmin.cluster import series_file
from nsqadmin.cluster.model import Metric
from nsqadmin.cluster.view import open_saved
from nsqadmin.decoding.decoders import Decoders
from nsqadmin.diagnosis.incident_book import Book
from nsqadmin.http import api_v1, api_v2, config, graphite, live, metrics
from nsqadmin.http.app import Route, application
from nsqadmin.http.config import Settings
from nsqadmin.http.live import Hub
from nsqadmin.http.login import Access, read_policy
from nsqadmin.jobs import endpoints as job_endpoints
from nsqadmin.jobs.instances import Finder
from nsqadmin.jobs.listening import Listener
from nsqadmin.jobs.retries import Retries
from nsqadmin.jobs.run_book import FailureRate, RunBook
from nsqadmin.jobs.service import Jobs
from nsqadmin.jobs.survey import Surveyor
from nsqadmin.messages import endpoints, group_endpoints, selection_endpoints
from nsqadmin.messages.masking import BadMask, Masking, parse_masks
from nsqadmin.messages.service import Messages
from nsqadmin.services import Services
from nsqadmin.tls import server_files
from nsqadmin.upstream.client import opened
from nsqadmin.upstream.groups import GroupQuestions
from nsqadmin.upstream.policies import PolicyQuestions
from nsqadmin.upstream.queries import Queries
from nsqadmin.upstream.sampler import Sampler
from nsqadmin.webhook.sender import IncidentWebhook
from nsqcommon import web
from nsqcommon.budget import Budget
from nsqcommon.certificate_files import CertificateFiles, RenewedContext, renewable
from nsqcommon.daemon import tune_garbage_collection, version_line, wait_for_signal
from nsqcommon.handshake import MOST_UNDER_WAY, TlsServer
from nsqcommon.net import bind, close_listener, format_listener
from nsqcommon.origin import OwnHosts
from nsqcommon.recipients import host_and_port
from nsqcommon.startup import StartupError
from nsqcommon.streams.tls import TlsLayer

if TYPE_CHECKING:
    import ssl

    from starlette.applications import Starlette

    from nsqadmin.access import Policy
    from nsqadmin.accounts import Secret
    from nsqadmin.cluster.model import Snapshot
    from nsqadmin.cluster.series_file import Part
    from nsqadmin.cluster.view import SavedView
    from nsqadmin.oidc.login_flow import LoginFlow
    from nsqadmin.options import Options
    from nsqadmin.upstream.client import Upstream

log = logging.getLogger(__name__)

_RESERVED_DESCRIPTORS: Final = 1024


@dataclass(frozen=True, slots=True)
class Listening:
    """The open sockets. If an option has port 0, the system has chosen the port."""

    http: socket.socket | None
    https: socket.socket | None

    @property
    def named(self) -> list[tuple[str, socket.socket]]:
        both = (("HTTP", self.http), ("HTTPS", self.https))
        return [(name, listener) for name, listener in both if listener is not None]


async def run(
    options: Options,
    *,
    wait_for_shutdown: Callable[[], Awaitable[object]] = wait_for_signal,
    task_status: trio.TaskStatus[Listening] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `wait_for_shutdown` returns. Raise StartupError if an address or a file can't be used."""
    policy = read_policy(options)
    accounts = read_accounts(options.auth_file) if options.auth_file else {}
    login = _login_flow(options, policy, accounts)
    access = Access(options, lambda: policy, accounts, login)
    settings = Settings(options)
    activity = ActivityLog(options.audit_file)
    files = server_files(options)
    with _listening(options) as listening:
        log.info("%s", version_line("nsqadmin"))
        async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
            if options.snapshot:
                certificates = renewable(files)
                services = _still_services(
                    settings, policy, access, activity, open_saved(options.snapshot), certificates
                )
            else:
                upstream = await stack.enter_async_context(opened(options))
                certificates = renewable(files, upstream.files)
                services = await _live_services(nursery, settings, policy, access, activity, upstream, certificates)
            services = replace(services, login=login)
            for certificate in certificates:
                nursery.start_soon(certificate.follow)
            await _start_serving(nursery, _app(services), listening, files)
            for name, listener in listening.named:
                log.info("%s: listening on %s", name, format_listener(listener))
            tune_garbage_collection()
            task_status.started(listening)
            await wait_for_shutdown()
            for name, listener in listening.named:
                log.info("%s: closing %s", name, format_listener(listener))
            services.hub.close()
            if services.webhook is not None:
                await services.webhook.finish()
            nursery.cancel_scope.cancel()


@contextmanager
def _listening(options: Options) -> Iterator[Listening]:
    with ExitStack() as opened:

        def listen(address: str) -> socket.socket:
            listener = bind(address)
            opened.callback(close_listener, listener)
            return listener

        yield Listening(
            http=listen(options.http_address) if options.http_address else None,
            https=listen(options.https_address) if options.serves_https else None,
        )


async def _start_serving(
    nursery: trio.Nursery, app: Starlette, listening: Listening, files: CertificateFiles[ssl.SSLContext] | None
) -> None:
    most = _most_connections() // len(listening.named)
    https = None
    if listening.https is not None:
        assert files is not None, "without them the listener is not opened"
        tls = TlsServer(lambda: TlsLayer(files.now, server_side=True), most=min(MOST_UNDER_WAY, most // 2))
        https = web.Https(listener=listening.https, tls=tls, budget=Budget(most, "HTTPS"))
    plain = [listening.http] if listening.http is not None else []
    await nursery.start(partial(web.serve, app, plain, budget=Budget(most, "HTTP"), https=https))


def _most_connections() -> int:
    """Return how many connections browsers and scripts may open. The other descriptors are for nodes and files."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return int(descriptors) - min(_RESERVED_DESCRIPTORS, int(descriptors) // 2)


def _still_services(
    settings: Settings,
    policy: Policy,
    access: Access,
    activity: ActivityLog,
    view: SavedView,
    certificates: Sequence[CertificateFiles[Any]],
) -> Services:
    book = Book(view.activity)
    book.observe(view.snapshot)
    return Services(
        settings=settings,
        view=view,
        policy=policy,
        access=access,
        hub=Hub(view, book),
        incidents=book,
        activity=activity,
        certificates=certificates,
    )


async def _live_services(
    nursery: trio.Nursery,
    settings: Settings,
    policy: Policy,
    access: Access,
    activity: ActivityLog,
    upstream: Upstream,
    certificates: Sequence[CertificateFiles[Any]],
) -> Services:
    # In a thread, because the libraries that read the file's schemas take a while to load.
    decoders = await trio.to_thread.run_sync(Decoders, settings.options.decoders_file)
    if decoders.file is not None:
        nursery.start_soon(decoders.file.follow)
    queries = Queries(lambda: settings.options, upstream)
    notifier = Notifier(settings.options)
    sampler = Sampler(lambda: settings.options, upstream, activity, shows_texts=policy.shows_payload_to_all)
    book = Book(activity.newest)
    webhook: IncidentWebhook | None = None
    if settings.options.incident_webhook:
        webhook = IncidentWebhook(settings.options, RenewedContext(upstream.files), activity.add_event)
    sampler.on_snapshot(partial(_observe, book, webhook))
    hub = Hub(sampler, book)
    sampler.on_snapshot(hub.send_snapshot)
    activity.on_activity(sampler.note_activity)
    activity.on_activity(hub.send_activity)
    runs = RunBook(time)
    listener = Listener(runs.observe)
    sampler.on_snapshot(listener.see)
    failures = FailureRate(runs, time)
    sampler.also_sampled = lambda: {
        Metric.PROBLEMS: book.counts().problems,
        Metric.FAILED_JOBS: failures.since_last(),
    }
    nursery.start_soon(listener.run)
    if settings.options.notification_http_endpoint:  # its HTTP client loads certificates, half the startup time
        nursery.start_soon(notifier.run)
    if path := settings.options.history_file:
        kept: dict[str, Part] = {"charts": sampler.store, "nodes": sampler.kept_nodes, "findings": sampler.upkeep}
        kept["incidents"] = book
        if webhook is not None:
            kept["webhook"] = webhook
        series_file.load(path, **kept)
        nursery.start_soon(series_file.keep, path, kept)
    if webhook is not None:
        nursery.start_soon(webhook.run)
    await nursery.start(sampler.run)
    messages = Messages(
        upstream,
        sampler,
        _masking_of(settings.options),
        activity,
        all_see_payload=policy.shows_payload_to_all,
        decoders=decoders,
    )
    retries = Retries(upstream, messages.reader, sampler, activity)
    nursery.start_soon(retries.run)
    return Services(
        settings=settings,
        view=sampler,
        policy=policy,
        access=access,
        queries=queries,
        executor=Executor(queries, activity, notifier, lost_by=lambda action: messages_lost(sampler.snapshot, action)),
        messages=messages,
        jobs=Jobs(sampler, Surveyor(upstream, messages.reader), runs, listener),
        retries=retries,
        policies=PolicyQuestions(upstream),
        groups=GroupQuestions(upstream),
        sampler=sampler,
        hub=hub,
        incidents=book,
        activity=activity,
        webhook=webhook,
        certificates=certificates,
    )


def _observe(book: Book, webhook: IncidentWebhook | None, snapshot: Snapshot) -> None:
    changes = book.observe(snapshot)
    if webhook is not None:
        webhook.observe(changes, book.present, snapshot.taken_at)


def routes_of(services: Services) -> list[Route]:
    """Return all routes of the APIs and of pages."""
    options = services.options
    of_nsq = [*config.routes(services.settings), *graphite.routes(options)]
    if services.queries is not None and services.executor is not None:
        of_nsq += api_v1.routes(services.queries, services.executor)
    routes = [
        *metrics.routes(services),
        *(replace(route, any_host=True) for route in of_nsq),
        *api_v2.routes(services),
        *live.routes(services.hub, services.view, services.incidents),
        *site.routes(services),
    ]
    if services.messages is not None:
        routes += endpoints.routes(services.messages, services.view)
        routes += selection_endpoints.routes(services.messages, services.view)
    if services.jobs is not None and services.messages is not None:
        routes += job_endpoints.routes(services.jobs, Finder(services.jobs, services.messages))
    if services.messages is not None and services.groups is not None:
        routes += group_endpoints.routes(services.messages, services.groups, services.view)
    return routes


def _app(services: Services) -> Starlette:
    options = services.options
    return application(
        routes_of(services),
        services.access,
        _own_hosts(options),
        prefix=options.prefix,
        image_source=_image_source(options),
        missing=site.missing(services),
    )


def _login_flow(options: Options, policy: Policy, accounts: Mapping[str, Secret]) -> LoginFlow | None:
    """Return the login by OIDC, None if it is off. Then its modules aren't even loaded."""
    if not options.oidc_issuer:
        return None
    from nsqadmin.oidc.login_flow import LoginFlow

    return LoginFlow(options, is_group_used=policy.is_about, is_local=accounts.__contains__)


def _own_hosts(options: Options) -> OwnHosts:
    addresses = (options.http_address, options.https_address if options.serves_https else "")
    own = [platform.node(), *(host_and_port(it)[0] for it in addresses)]
    if options.oidc_issuer:  # it leads users back to this name
        own.append(urlsplit(options.external_url).hostname or "")
    return OwnHosts(own, options.allowed_host)


def _masking_of(options: Options) -> Masking:
    try:
        return parse_masks(options.mask)
    except BadMask as error:
        raise StartupError(f"failed to read --mask - {error}") from error


def _image_source(options: Options) -> str:
    """Return the origin of graphite's images for pages; "" if there are none, or we proxy them."""
    if not options.graphite_url or options.proxy_graphite:
        return ""
    parts = urlsplit(options.graphite_url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
