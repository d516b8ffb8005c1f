"""How a runner comes in: by the token of the data directory, or by a certificate and its grants.

Who has the token is on this machine and is its operator's; such a runner is admitted at once. Who
has a certificate is what its enrolment says, and is admitted by the first heartbeat that it is well
in (RCN-022).
"""

from dataclasses import dataclass, replace
from typing import Final

import sqlalchemy as sa

from forgeyard.errors import Forbidden, InvalidRequest
from forgeyard.fleet import admission
from forgeyard.fleet.admission import Verdict
from forgeyard.model.capability import Capabilities
from forgeyard.model.enrolment import TRUSTED, Admission, Grant
from forgeyard.model.protocol import Heartbeat, Register
from forgeyard.model.runner import RunnerHealth
from forgeyard.store import identities, tables
from forgeyard.store.changes import Row
from forgeyard.store.engine import database_now


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Who asks for a session, as far as that is proved."""

    runner_id: str | None = None
    """Of the certificate; `None` for the token of the data directory."""
    agent_versions: str = ""
    """Which versions of the agent are taken, as a range; empty for every one."""


BY_TOKEN: Final = Entry()
_NOTHING: Final = Grant()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """A registration with what was granted in it, and how far that brings the runner."""

    message: Register
    verdict: Verdict
    enrolment_id: str | None = None
    pool: str | None = None
    """The pool that the enrolment puts the runner into, by its id."""


def judge(connection: sa.Connection, message: Register, entry: Entry) -> Entered:
    """Compare a registration with what its certificate stands for.

    Raises:
        Forbidden: the certificate is for no runner of ours.
        InvalidRequest: it came by a token, and offers what only an enrolment can grant.
    """
    if entry.runner_id is None:
        _demand_ordinary(message.capabilities)
        return Entered(message=message, verdict=Verdict(admission=Admission.VERIFIED))
    found = identities.grant_of(connection, entry.runner_id)
    if found is None:
        raise Forbidden(
            "nobody enrolled this runner here", field="certificate", value=entry.runner_id
        )
    enrolment_id, name, grant = found
    verdict = admission.judge(
        message,
        grant,
        expected_name=name,
        agent_versions=entry.agent_versions,
        now=database_now(connection),
    )
    report = admission.granted(message, grant)
    return Entered(
        message=replace(message, runner_name=name, capabilities=report.capabilities),
        verdict=verdict,
        enrolment_id=enrolment_id,
        pool=_pool(connection, grant.pool),
    )


def _demand_ordinary(capabilities: Capabilities) -> None:
    wrong = next(admission.ungranted(capabilities, _NOTHING), None)
    if wrong is not None:
        raise InvalidRequest(
            wrong,
            field="capabilities",
            allowed=f"names without {TRUSTED}, or a runner that was enrolled with them",
        )


def _pool(connection: sa.Connection, name: str) -> str | None:
    pools = tables.pools
    query = sa.select(pools.c.pool_id).where(pools.c.name == name)
    return connection.execute(query).scalar_one_or_none() if name else None


def admitted(runner: Row, entered: Entered) -> dict[str, object]:
    """Say what a registration changes about a runner's admission; quarantine outlives it."""
    values: dict[str, object] = {}
    if runner["admission"] != Admission.QUARANTINED:
        verdict = entered.verdict
        values |= {"admission": verdict.admission.value, "admission_reason": verdict.reason or None}
    if entered.enrolment_id not in (None, runner["enrolment_id"]):
        values["enrolment_id"] = entered.enrolment_id
        if entered.pool is not None:
            values["pool_id"] = entered.pool
    return values


def heard(connection: sa.Connection, runner: Row, message: Heartbeat) -> Heartbeat:
    """Give a later report what was granted, and take from it what was not."""
    if message.report is None:
        return message
    if runner["enrolment_id"] is None:
        _demand_ordinary(message.report.capabilities)
        return message
    found = identities.grant_of(connection, runner["runner_id"])
    grant = found[2] if found else _NOTHING
    return replace(message, report=admission.granted(message.report, grant))


def proved(runner: Row, message: Heartbeat) -> dict[str, object]:
    """Admit a runner that waits for it, if it says that it is well (BOO-010)."""
    waits = runner["admission"] == Admission.PENDING
    if not waits or message.health is RunnerHealth.UNHEALTHY:
        return {}
    return {"admission": Admission.VERIFIED.value, "admission_reason": None}
