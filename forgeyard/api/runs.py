"""Runs: submit, check, list, show, cancel, run again, and what happened to them."""

import hashlib
import json
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from forgeyard import tracing
from forgeyard.api.callers import RunCanceller, RunReader, RunSubmitter
from forgeyard.api.dependencies import ApiDependencies, Deps
from forgeyard.errors import TooLarge
from forgeyard.model.caller import Caller
from forgeyard.model.permission import Permission
from forgeyard.model.run import RunSpec
from forgeyard.model.transitions import RunState
from forgeyard.runfile import publish
from forgeyard.runfile.compile import compile_run
from forgeyard.runfile.source import resolved
from forgeyard.runfile.values import QUEUE
from forgeyard.store import lineage, readings, runs, shares, views
from forgeyard.store.engine import read
from forgeyard.store.naming import run_id_of

router = APIRouter(prefix="/v1/runs", tags=["runs"])
schema_router = APIRouter(tags=["schema"])

CHANNEL = "api"
FALLBACK_NAME = "run"
RunPath = Annotated[str, Path(max_length=64)]
"""A run's id, or a beginning of it that no other run shares."""
NamePath = Annotated[str, Path(max_length=64)]
Who = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
Why = Annotated[str, Field(max_length=1_000, pattern=r"^[^\x00]*$")]
Elevation = Annotated[str, Field(min_length=1, max_length=1_000, pattern=r"^[^\x00]*$")] | None
"""Why jobs may have a priority that the policy does not give to everybody; audited."""
Limit = Annotated[int, Query(ge=1, le=500)]
Cursor = Annotated[str | None, Query(max_length=200)]
IdempotencyKey = Annotated[
    str | None, Header(alias="Idempotency-Key", pattern=r"^[\x21-\x7e]{1,200}$")
]


class Body(BaseModel):
    """What a request carries; an unknown key is an error, for it is most likely a misspelt one."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Submit(Body):
    """A run file as JSON, and the digest of the source that was uploaded before."""

    document: dict[str, object]
    """See /v1/schema/runfile.json."""
    source_digest: Annotated[str, Field(max_length=71)] | None = None
    submitted_by: Who = "api"
    proposal: bool = False
    """Its content is not trusted: it never sees a trusted runner."""
    queue: Annotated[str, Field(pattern=QUEUE)] | None = None
    """The path of the queue that the jobs wait in; else the document's, else the default one."""
    elevate: Elevation = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A run file that would be accepted."""

    name: str
    jobs: int
    needs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunShown(views.RunView):
    """A run, and where the Temporal Web UI shows the workflows of its attempts."""

    ui_url: str
    namespace: str


class Reason(Body):
    """Why somebody wants something, and who that is; both go to the audit trail as claims."""

    reason: Why = ""
    actor: Who = "api"


class Rerun(Reason):
    """Why a run is started again, and why with a priority that not everybody may ask for."""

    elevate: Elevation = None


UNSAID = Reason()
AGAIN = Rerun()


@router.post("", status_code=HTTPStatus.CREATED)
def submit_run(
    message: Submit,
    response: Response,
    deps: Deps,
    who: RunSubmitter,
    idempotency_key: IdempotencyKey = None,
) -> RunShown:
    """Start a run; with an idempotency key, asking twice starts one run and answers 200.

    While the store is held no run is accepted, for nobody knows yet whether this store will stay.
    """
    _check_elevation(who, message.elevate)
    spec = _compile(message, deps)
    submission = runs.Submission(
        spec=spec,
        document=json.dumps(message.document),
        source_digest=message.source_digest,
        submitted_by=who.speaks_as(message.submitted_by),
        partition=deps.config.partition,
        idempotency_key=idempotency_key,
        body_digest=_digest(message),
        git=resolved(spec.git, digest=message.source_digest),
        proposal=message.proposal,
        queue=message.queue,
        elevation=message.elevate,
        tenant_id=who.tenant_id,
    )
    with (
        tracing.root_span("run.submit", jobs=len(spec.jobs)) as span,
        deps.change_for(who) as connection,
    ):
        lineage.demand_free(connection)
        policy = deps.policy(connection)
        submission = replace(submission, injection=deps.injection(connection))
        submitted = runs.submit(
            connection,
            submission,
            policy=policy.lease,
            priorities=policy.priorities,
            rng=deps.rng,
        )
        if submitted.created:
            urgency = [job.priority for job in spec.jobs]
            readings.refuse_when_deep(connection, deps.config.partition, urgency, policy.pressure)
        span.of = submitted.run_id
        span.note(run_id=submitted.run_id)
    if not submitted.created:
        response.status_code = HTTPStatus.OK
    response.headers["Location"] = f"{router.prefix}/{submitted.run_id}"
    return _view(deps, submitted.run_id)


@router.post(":check")
def check_run(message: Submit, deps: Deps, who: RunSubmitter) -> Checked:
    """Say whether a run file would be accepted; nothing is stored."""
    spec = _compile(message, deps)
    with read(deps.engine) as connection:
        queue = shares.queue_for(connection, message.queue or spec.queue, tenant_id=who.tenant_id)
        runs.injected(
            spec,
            deps.injection(connection),
            queue=shares.path_of(connection, queue),
            proposal=message.proposal,
        )
    return Checked(
        name=spec.name, jobs=len(spec.jobs), needs=sum(len(job.needs) for job in spec.jobs)
    )


@router.get("")
def list_runs(
    deps: Deps,
    who: RunReader,
    limit: Limit = 50,
    before: Cursor = None,
    state: RunState | None = None,
) -> views.RunPage:
    """List runs, the newest first, page by page."""
    with read(deps.engine) as connection:
        return views.list_runs(
            connection, limit=limit, before=before, state=state, tenant_id=who.tenant_id
        )


@router.get("/{run_id}")
def show_run(run_id: RunPath, deps: Deps, who: RunReader) -> RunShown:
    """Show a run, its jobs, and why each of them waits."""
    with read(deps.engine) as connection:
        whole = run_id_of(connection, run_id, tenant_id=who.tenant_id)
    return _view(deps, whole)


@router.get("/{run_id}/history")
def run_history(run_id: RunPath, deps: Deps, who: RunReader) -> tuple[views.HistoryLine, ...]:
    """Tell every change of state of a run and what belongs to it, in order."""
    with read(deps.engine) as connection:
        whole = run_id_of(connection, run_id, tenant_id=who.tenant_id)
        return views.history_of_run(connection, whole)


@router.post("/{run_id}:cancel")
def cancel_run(
    run_id: RunPath, deps: Deps, who: RunCanceller, message: Reason = UNSAID
) -> RunShown:
    """Stop a run; asking again while it stops is harmless."""
    with deps.change_for(who) as connection:
        whole = run_id_of(connection, run_id, tenant_id=who.tenant_id)
        runs.cancel_run(
            connection,
            whole,
            reason=message.reason or "cancelled by request",
            actor=message.actor,
            channel=CHANNEL,
            policy=deps.policy(connection).lease,
        )
    return _view(deps, whole)


@router.post("/{run_id}:rerun-failed", status_code=HTTPStatus.CREATED)
def rerun_failed(
    run_id: RunPath,
    response: Response,
    deps: Deps,
    who: RunSubmitter,
    message: Rerun = AGAIN,
) -> RunShown:
    """Start a new run of what did not succeed; successes are taken over."""
    _check_elevation(who, message.elevate)
    with deps.change_for(who) as connection:
        lineage.demand_free(connection)
        policy = deps.policy(connection)
        submitted = runs.rerun_failed(
            connection,
            run_id_of(connection, run_id, tenant_id=who.tenant_id),
            actor=who.speaks_as(message.actor),
            policy=policy.lease,
            priorities=policy.priorities,
            elevation=message.elevate,
            rng=deps.rng,
            injection=deps.injection(connection),
        )
    response.headers["Location"] = f"{router.prefix}/{submitted.run_id}"
    return _view(deps, submitted.run_id)


@router.post("/{run_id}/jobs/{name}:cancel")
def cancel_job(
    run_id: RunPath, name: NamePath, deps: Deps, who: RunCanceller, message: Reason = UNSAID
) -> RunShown:
    """Stop one job of a run; the jobs that need it are judged as after any other end."""
    with deps.change_for(who) as connection:
        whole = run_id_of(connection, run_id, tenant_id=who.tenant_id)
        runs.cancel_job(
            connection,
            whole,
            name,
            reason=message.reason or "cancelled by request",
            actor=message.actor,
            channel=CHANNEL,
            policy=deps.policy(connection).lease,
        )
    return _view(deps, whole)


@schema_router.get("/v1/schema/runfile.json")
def runfile_schema() -> dict[str, object]:
    """Describe run files as JSON schema, for editors."""
    return publish.schema()


def _check_elevation(who: Caller, elevation: str | None) -> None:
    """Whoever asks for more than everybody may has to be allowed to ask (FAR-007)."""
    if elevation is not None:
        who.demand(Permission.PRIORITY_ELEVATE)


def _view(deps: ApiDependencies, run_id: str) -> RunShown:
    with read(deps.engine) as connection:
        found = views.run(connection, run_id)
    return RunShown(
        **{name: getattr(found, name) for name in views.RunView.__slots__},
        ui_url=deps.config.temporal.ui_url,
        namespace=deps.config.temporal.namespace,
    )


def _compile(message: Submit, deps: ApiDependencies) -> RunSpec:
    """Judge a document exactly as the command line does."""
    spec = compile_run(message.document, fallback_name=FALLBACK_NAME)
    limit = deps.config.limits.jobs_per_run
    if len(spec.jobs) > limit:
        raise TooLarge(
            "the run has too many jobs",
            field="jobs",
            value=len(spec.jobs),
            allowed=f"at most {limit} jobs",
        )
    return spec


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _digest(message: Submit) -> str:
    """Name the body, however its keys were ordered: two submissions are the same or not."""
    said = [message.document, message.source_digest, message.submitted_by]
    extra = message.model_dump(
        include={"queue", "elevate", "proposal"}, exclude_none=True, exclude_defaults=True
    )
    body = _canonical([*said, extra] if extra else said)
    return f"sha256:{hashlib.sha256(body.encode()).hexdigest()}"
