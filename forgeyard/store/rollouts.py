"""Rollouts of images: one row each, moved on by what the machines of its fleet show.

Whoever plans a fleet reads from the row which images its machines may have. Nothing is carried in
the memory of anybody who moves it on, so that anybody may, and twice does no harm.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from forgeyard.errors import Conflict, NotFound
from forgeyard.fleet.rollout import RolloutFacts, RolloutVerdict, judge
from forgeyard.fleet.view import COMING, Stage
from forgeyard.model.capacity import CapacityInstanceState, ScaleDownReason
from forgeyard.model.fleet import FleetSpec, FleetState
from forgeyard.model.image import RolloutState
from forgeyard.model.transitions import AttemptState
from forgeyard.store import (
    changes,
    codec,
    fleet_tables,
    fleets,
    image_standing,
    image_tables,
    images,
    tables,
)
from forgeyard.store.births import draw_id
from forgeyard.store.changes import ROLLOUT, Row
from forgeyard.store.engine import database_now
from forgeyard.store.machines import AUTOSCALER
from forgeyard.store.shares import Intent
from forgeyard.trust.image_signatures import NO_KEYS, ImageKeys

S = CapacityInstanceState
ENDS: Final = frozenset({RolloutState.DONE, RolloutState.ROLLED_BACK})
_rollouts, _instances = image_tables.fleet_rollouts, fleet_tables.capacity_instances
_fleets, _attempts = fleet_tables.fleets, tables.attempts
_STAYING: Final = tuple(state.value for state in (*sorted(COMING), S.HEALTHY, S.DRAINING))
_LIVE: Final = sa.select(_rollouts).where(_rollouts.c.live == 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageCount:
    """How many machines of a fleet that may exist have an image, by state."""

    image: str
    states: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRecord:
    """A rollout as people see it; instants are epoch milliseconds."""

    rollout_id: str
    fleet: str
    image: str
    before: str
    state: RolloutState
    state_reason: str
    paused: bool
    pause_reason: str
    machines: tuple[ImageCount, ...]
    created_at: int
    stage_at: int
    ended_at: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advanced:
    """Where a rollout stands, what it waits for, and for how long."""

    record: RolloutRecord
    reason: str
    wait: int
    """Milliseconds."""


def start(
    connection: sa.Connection,
    fleet: str,
    image: str,
    intent: Intent,
    *,
    rng: random.Random,
    keys: ImageKeys = NO_KEYS,
) -> RolloutRecord:
    """Begin to bring an image to a fleet, canaries first (IMG-009).

    Raises:
        NotFound: there is no such fleet or image.
        Conflict: the fleet may not have it, has it already, is on its way to another, or ends.
    """
    row = fleets.lock(connection, fleet)
    spec = codec.decode(FleetSpec, row["spec"])
    digest = images.digest_of(connection, image)
    images.demand_fit(connection, spec, digest, keys)
    return _begin(connection, row, digest, RolloutState.CANARY, intent, rng=rng)


def _begin(
    connection: sa.Connection,
    fleet: Row,
    image: str,
    state: RolloutState,
    intent: Intent,
    *,
    rng: random.Random,
) -> RolloutRecord:
    before = codec.decode(FleetSpec, fleet["spec"]).capacity.image
    if fleet["state"] in (FleetState.DELETING, FleetState.DRAINING):
        raise Conflict(
            f"fleet {fleet['name']} is {fleet['state']}", field="fleet", value=fleet["name"]
        )
    if image == before:
        raise Conflict("the fleet has this image", field="image", value=image)
    under_way = _live_of(connection, fleet["fleet_id"])
    if under_way is not None:
        raise Conflict(
            f"image {under_way['image']} is being rolled out",
            field="image",
            value=image,
            allowed="one rollout at a time",
        )
    now = database_now(connection)
    rollout = {
        "rollout_id": draw_id("rol", now=now, rng=rng),
        "fleet_id": fleet["fleet_id"],
        "image": image,
        "before": before,
        "state": state.value,
        "state_reason": intent.reason,
        "stage_at": now,
        "created_at": now,
    }
    changes.born(connection, ROLLOUT, [rollout], reason=intent.reason, now=now)
    fleets.tell(connection, "rollout.start", fleet, intent, f"from {before} to {image}", now=now)
    return status(connection, fleet["fleet_id"])


def pause(connection: sa.Connection, fleet: str, intent: Intent) -> RolloutRecord:
    """Replace nothing more, and make nothing more of the new image, until told otherwise.

    Raises:
        NotFound: there is no such fleet, or nothing is being rolled out on it.
    """
    return _set_paused(connection, fleet, intent, paused=1)


def resume(connection: sa.Connection, fleet: str, intent: Intent) -> RolloutRecord:
    """Go on with a rollout that was paused.

    Raises:
        NotFound: there is no such fleet, or nothing is being rolled out on it.
    """
    return _set_paused(connection, fleet, intent, paused=0)


def _set_paused(
    connection: sa.Connection, fleet: str, intent: Intent, *, paused: int
) -> RolloutRecord:
    row, rollout = _under_way(connection, fleet)
    if rollout["paused"] != paused:
        own = _rollouts.c.rollout_id == rollout["rollout_id"]
        values = {"paused": paused, "pause_reason": intent.reason if paused else ""}
        connection.execute(sa.update(_rollouts).where(own).values(values))
        action = "rollout.pause" if paused else "rollout.resume"
        now = database_now(connection)
        fleets.tell(connection, action, row, intent, rollout["image"], now=now)
    return status(connection, row["fleet_id"])


def roll_back(
    connection: sa.Connection,
    fleet: str,
    intent: Intent,
    *,
    rng: random.Random,
    keys: ImageKeys = NO_KEYS,
) -> RolloutRecord:
    """Give a fleet back the image that it had before, if that is trusted (IMG-017).

    After the rollout is done this is one of the image before, and without canaries.

    Raises:
        NotFound: there is no such fleet, or it has had no other image.
        Conflict: it may not have that image any more.
    """
    row = fleets.lock(connection, fleet)
    last = _last_of(connection, row["fleet_id"])
    if last is None or last["state"] == RolloutState.ROLLED_BACK:
        raise NotFound(
            "nothing was rolled out that could be taken back", field="fleet", value=fleet
        )
    if last["live"] is not None:
        # Its document still says so: how it was made was looked at when it began to.
        images.demand_trusted(connection, last["before"])
    elif last["before"]:
        images.demand_fit(connection, codec.decode(FleetSpec, row["spec"]), last["before"], keys)
    if last["live"] is None:
        replacing = RolloutState.REPLACING
        return _begin(connection, row, last["before"], replacing, intent, rng=rng)
    now = database_now(connection)
    _end(connection, row, last, RolloutState.ROLLED_BACK, intent, now=now)
    return status(connection, row["fleet_id"])


def advance(connection: sa.Connection, rollout_id: str) -> Advanced:
    """Move a rollout on as far as its machines allow; asked again it goes on from there.

    Raises:
        NotFound: there is no such rollout.
    """
    fleet_id = changes.part_of(connection, ROLLOUT, rollout_id, "fleet_id")
    query = sa.select(_fleets).where(_fleets.c.fleet_id == fleet_id).with_for_update()
    fleet = dict(connection.execute(query).mappings().one())
    row, now = changes.find(connection, ROLLOUT, rollout_id, lock=True), database_now(connection)
    if RolloutState(row["state"]) in ENDS:
        return Advanced(record=_record(connection, fleet, row), reason="", wait=0)
    own = _rollouts.c.rollout_id == rollout_id
    connection.execute(sa.update(_rollouts).where(own).values(tended_at=now))
    spec = codec.decode(FleetSpec, fleet["spec"])
    verdict = judge(_facts(connection, fleet, row, now=now), spec.rollout, now=now)
    if verdict.to is not None:
        row = _move(connection, fleet, row, verdict, now=now)
    reason = verdict.reason
    return Advanced(record=_record(connection, fleet, row), reason=reason, wait=verdict.wait)


def is_over(connection: sa.Connection, rollout_id: str) -> bool:
    """Tell whether a rollout has ended, either way.

    Raises:
        NotFound: there is no such rollout.
    """
    return RolloutState(changes.find(connection, ROLLOUT, rollout_id)["state"]) in ENDS


def _move(
    connection: sa.Connection, fleet: Row, row: Row, verdict: RolloutVerdict, *, now: int
) -> Row:
    to, reason = verdict.to, verdict.reason
    assert to is not None
    if to not in ENDS:
        return changes.move(
            connection, ROLLOUT, row, to, reason=reason, now=now, stage_at=now, state_reason=reason
        )
    intent = Intent(actor=AUTOSCALER.actor, channel=AUTOSCALER.channel, reason=reason)
    return _end(connection, fleet, row, to, intent, now=now)


def _end(
    connection: sa.Connection,
    fleet: Row,
    row: Row,
    to: RolloutState,
    intent: Intent,
    *,
    now: int,
) -> Row:
    """End a rollout: either the document says its image from now on, or what has it has drifted."""
    moved = changes.move(
        connection,
        ROLLOUT,
        row,
        to,
        reason=intent.reason,
        now=now,
        stage_at=now,
        ended_at=now,
        live=None,
        state_reason=intent.reason,
    )
    if to is RolloutState.DONE:
        fleets.set_image(connection, fleet, row["image"], intent)
    fleets.tell(connection, f"rollout.{to}", fleet, intent, row["image"], now=now)
    return moved


def _facts(connection: sa.Connection, fleet: Row, row: Row, *, now: int) -> RolloutFacts:
    own = _instances.c.fleet_id == fleet["fleet_id"]
    query = sa.select(_instances).where(own, _instances.c.requested_at >= row["created_at"])
    new = [dict(one) for one in connection.execute(query).mappings()]
    new = [one for one in new if one["image"] == row["image"]]
    well = [one for one in new if one["state"] == S.HEALTHY]
    wrong = [one for one in new if _went_wrong(one) and one["requested_at"] >= row["stage_at"]]
    return RolloutFacts(
        state=RolloutState(row["state"]),
        image=row["image"],
        standing=image_standing.standing(connection, row["image"]),
        is_paused=bool(row["paused"]),
        fleet_ends=fleet["state"] == FleetState.DELETING.value or fleet["live"] is None,
        well=len(well),
        well_since=max((one["healthy_at"] for one in well), default=now),
        gone_wrong=len(wrong),
        wrong=next((one["failure"] or one["detail"] or one["state"] for one in wrong[-1:]), ""),
        jobs=_jobs(connection, [one["runner_id"] for one in new if one["runner_id"]]),
        others=_others(connection, fleet, row, now=now),
    )


def _went_wrong(one: Row) -> bool:
    """Tell whether a machine came up and was no good; that it could not be had says nothing."""
    if one["running_at"] is None or one["interrupted_at"] is not None:
        return False
    unusable = one["drain_reason"] == ScaleDownReason.UNUSABLE.value
    return unusable or one["failure"] is not None or one["state"] == S.QUARANTINED.value


def _jobs(connection: sa.Connection, runner_ids: list[str]) -> int:
    query = sa.select(sa.func.count()).where(
        _attempts.c.runner_id.in_(runner_ids), _attempts.c.state == AttemptState.SUCCEEDED.value
    )
    return connection.execute(query).scalar_one()


def _others(connection: sa.Connection, fleet: Row, row: Row, *, now: int) -> int:
    pinned_until = _instances.c.pinned_until
    query = sa.select(sa.func.count()).where(
        _instances.c.fleet_id == fleet["fleet_id"],
        _instances.c.image != row["image"],
        _instances.c.state.in_(_STAYING),
        sa.or_(pinned_until.is_(None), pinned_until <= now),
    )
    return connection.execute(query).scalar_one()


def status(connection: sa.Connection, fleet: str) -> RolloutRecord:
    """Show the rollout that is under way on a fleet, or the last one.

    Raises:
        NotFound: there is no such fleet, or nothing was ever rolled out on it.
    """
    row = fleets.find(connection, fleet)
    last = _last_of(connection, row["fleet_id"])
    if last is None:
        raise NotFound("nothing was rolled out on this fleet", field="fleet", value=fleet)
    return _record(connection, row, last)


def stage(connection: sa.Connection, fleet_id: str) -> Stage | None:
    """Tell how far another image may replace that of a fleet."""
    row = _live_of(connection, fleet_id)
    return None if row is None else _stage(row)


def stages(connection: sa.Connection) -> Mapping[str, Stage]:
    """Tell the same of all fleets on which something is rolled out."""
    return {row["fleet_id"]: _stage(dict(row)) for row in connection.execute(_LIVE).mappings()}


def untended(connection: sa.Connection, fleet_id: str, *, before: int) -> tuple[str, str] | None:
    """Name the rollout of a fleet that no workflow has looked after of late, and its image."""
    query = _LIVE.where(_rollouts.c.fleet_id == fleet_id, _rollouts.c.tended_at < before)
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else (str(row["rollout_id"]), str(row["image"]))


def _stage(row: Row) -> Stage:
    return Stage(
        rollout_id=row["rollout_id"],
        image=row["image"],
        state=RolloutState(row["state"]),
        is_paused=bool(row["paused"]),
    )


def _under_way(connection: sa.Connection, fleet: str) -> tuple[Row, Row]:
    row = fleets.lock(connection, fleet)
    found = _live_of(connection, row["fleet_id"])
    if found is None:
        raise NotFound("nothing is being rolled out on this fleet", field="fleet", value=fleet)
    return row, found


def _live_of(connection: sa.Connection, fleet_id: str) -> Row | None:
    query = _LIVE.where(_rollouts.c.fleet_id == fleet_id)
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else dict(row)


def _last_of(connection: sa.Connection, fleet_id: str) -> Row | None:
    query = sa.select(_rollouts).where(_rollouts.c.fleet_id == fleet_id)
    newest = query.order_by(_rollouts.c.created_at.desc(), _rollouts.c.rollout_id.desc()).limit(1)
    row = connection.execute(newest).mappings().one_or_none()
    return None if row is None else dict(row)


def _record(connection: sa.Connection, fleet: Row, row: Row) -> RolloutRecord:
    query = (
        sa.select(_instances.c.image, _instances.c.state, sa.func.count())
        .where(_instances.c.fleet_id == fleet["fleet_id"], _instances.c.may_exist == 1)
        .group_by(_instances.c.image, _instances.c.state)
        .order_by(_instances.c.image, _instances.c.state)
    )
    counts: dict[str, dict[str, int]] = {}
    for image, state, count in connection.execute(query):
        counts.setdefault(image, {})[state] = count
    return RolloutRecord(
        rollout_id=row["rollout_id"],
        fleet=fleet["name"],
        image=row["image"],
        before=row["before"],
        state=RolloutState(row["state"]),
        state_reason=row["state_reason"],
        paused=bool(row["paused"]),
        pause_reason=row["pause_reason"],
        machines=tuple(ImageCount(image=name, states=each) for name, each in counts.items()),
        created_at=row["created_at"],
        stage_at=row["stage_at"],
        ended_at=row["ended_at"],
    )
