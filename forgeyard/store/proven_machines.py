"""The second proof: that who brings a token is the machine of the cloud that it was meant for.

A machine comes once: whoever has stolen its signed word comes for an enrolment of his own, and that
is refused. What is refused is counted and audited, so many times; then the token is worth nothing.
"""

from collections.abc import Callable
from typing import Final

import sqlalchemy as sa

from forgeyard.fleet import admission
from forgeyard.model.enrolment import Cloud, CloudMachine
from forgeyard.store import changes, tables
from forgeyard.trust.evidence import Doubt, Facts, Unproved

MOST_REFUSALS: Final = 20
Prove = Callable[[Cloud], Facts | Unproved]
"""Checks what came along with a token, by what is known of this cloud."""
_machines = tables.enrolled_machines


def recognise(
    connection: sa.Connection, enrolment_id: str, wanted: CloudMachine, prove: Prove, *, now: int
) -> Unproved | None:
    """Tell why who came is not the machine that was meant; if it is, it comes for nothing else."""
    found = prove(wanted.cloud)
    if isinstance(found, Unproved):
        return found
    return admission.doubt(found, wanted, now=now) or _take(
        connection, enrolment_id, wanted.cloud, found
    )


def _take(
    connection: sa.Connection, enrolment_id: str, cloud: Cloud, facts: Facts
) -> Unproved | None:
    """Let a machine stand for one enrolment, whoever asks at the same time."""
    name = f"{cloud}/{facts.account}/{facts.region}/{facts.instance}"
    row = {"machine": name, "enrolment_id": enrolment_id, "launched_at": facts.launched_at}
    changes.upsert(connection, _machines, row, changes={})
    owner = sa.select(_machines.c.enrolment_id).where(_machines.c.machine == name)
    before = connection.execute(owner).scalar_one()
    if before == enrolment_id:
        return None
    return Unproved(doubt=Doubt.USED, detail=f"{name} has enrolled before, by {before}")
