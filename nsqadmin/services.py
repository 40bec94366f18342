"""The services for request handlers: pages, both APIs and metrics get this one object and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsqadmin.access import Policy
    from nsqadmin.actions.audit import ActivityLog
    from nsqadmin.actions.execution import Executor
    from nsqadmin.cluster.view import View
    from nsqadmin.diagnosis.incident_book import Book
    from nsqadmin.http.config import Settings
    from nsqadmin.http.live import Hub
    from nsqadmin.http.login import Access
    from nsqadmin.jobs.retries import Retries
    from nsqadmin.jobs.service import Jobs
    from nsqadmin.messages.service import Messages
    from nsqadmin.oidc.login_flow import LoginFlow
    from nsqadmin.options import Options
    from nsqadmin.upstream.groups import GroupQuestions
    from nsqadmin.upstream.policies import PolicyQuestions
    from nsqadmin.upstream.queries import Queries
    from nsqadmin.upstream.sampler import Sampler
    from nsqadmin.webhook.sender import IncidentWebhook
    from nsqcommon.certificate_files import CertificateFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The services. Those that query the cluster are None if nsqadmin shows a snapshot file."""

    settings: Settings
    view: View
    policy: Policy
    access: Access
    hub: Hub
    incidents: Book
    activity: ActivityLog
    queries: Queries | None = None
    executor: Executor | None = None
    messages: Messages | None = None
    jobs: Jobs | None = None
    retries: Retries | None = None
    policies: PolicyQuestions | None = None
    groups: GroupQuestions | None = None
    sampler: Sampler | None = None
    webhook: IncidentWebhook | None = None  # None: no URL is given
    login: LoginFlow | None = None  # None: without OIDC
    certificates: Sequence[CertificateFiles[Any]] = ()

    @property
    def options(self) -> Options:
        """The current options: some can change at run time."""
        return self.settings.options
