"""Machines that cannot be cleaned after a job: shut, replaced, and nothing of them is used again.

A runner that people look after says itself that it is not well, until its agent was started anew
and could clean up. One on a machine of a fleet is not mended: the machine is kept for a look, and
another one comes (FOP-006, FOP-013, FLT-101).
"""

import sqlalchemy as sa

from forgeyard.model.enrolment import Admission
from forgeyard.model.protocol import Heartbeat
from forgeyard.store import changes, fleet_tables
from forgeyard.store.changes import Row
from forgeyard.store.engine import database_now
from forgeyard.store.machines import AUTOSCALER

_instances = fleet_tables.capacity_instances


def shut(connection: sa.Connection, runner: Row, message: Heartbeat) -> dict[str, object]:
    """Say what changes about a runner whose agent could not clean up; nothing, if that is known.

    What it runs may end, and nothing new comes. Its machine is found to be unwell by whoever plans
    its fleet, and is kept for a look as soon as nothing runs there.
    """
    if not message.unclean or runner["admission"] == Admission.QUARANTINED:
        return {}
    own = sa.and_(_instances.c.runner_name == runner["name"], _instances.c.ended_at.is_(None))
    instance_id = connection.execute(
        sa.select(_instances.c.instance_id).where(own)
    ).scalar_one_or_none()
    if instance_id is None:
        return {}
    reason = message.health_reason or "what a job left behind cannot be removed"
    changes.audit(
        connection,
        actor=AUTOSCALER.actor,
        channel=AUTOSCALER.channel,
        action="instance.unclean",
        target=instance_id,
        detail=f"{runner['name']}: {reason}",
        now=database_now(connection),
    )
    return {
        "admission": Admission.QUARANTINED.value,
        "admission_reason": reason,
        "distrusted_from": 0,
        "distrusted_reason": reason,
    }
