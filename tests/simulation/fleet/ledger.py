"""What must hold of fleets, looked at after every event: what SQL says against what is true."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import sqlalchemy as sa

from forgeyard.model.capacity import CapacityInstanceState
from forgeyard.model.enrolment import Admission
from forgeyard.model.fleet import FleetSpec, FleetState, Override
from forgeyard.store import codec, fleet_tables, tables
from forgeyard.store.engine import read
from tests.simulation.fleet.agents import Agents
from tests.simulation.fleet.cloud import Cloud, Made
from tests.simulation.world import Violated, World

S = CapacityInstanceState
_instances, _fleets = fleet_tables.capacity_instances, fleet_tables.fleets
_decisions, _overrides = fleet_tables.fleet_decisions, fleet_tables.fleet_overrides
_leases, _runners, _audit = tables.leases, tables.runners, tables.audit
LIVE = ("offered", "active")
ENDING = (S.FAILED.value, S.TERMINATING.value, S.TERMINATED.value)
BUSY_DRAIN = "a machine drained that had a lease"
AT_MOST = "a fleet was as large as it may be"
KEPT = "a draining machine was taken back"
AGAIN = "a create was asked for again after looking"
ADOPTED = "a machine was found whose answer was lost"
OVERDUE = "work was taken from a machine for cause"
PRECONDITIONS = (BUSY_DRAIN, AT_MOST, AGAIN, ADOPTED, OVERDUE)
MINUTE = 60_000


@dataclass(kw_only=True)
class Bounds:
    """What a fleet may have, as it was when somebody last looked."""

    name: str
    most: int
    least: int
    apart: int
    hourly: int | None
    most_ever: int = 0
    numbered: int = 0
    decisions: int = 0
    costs: dict[str, int] = field(default_factory=dict)


class Ledger:
    """Knows what was true at the last look, and demands what must be now."""

    def __init__(self, world: World, clouds: Mapping[str, Cloud], agents: Agents) -> None:
        self._world, self._clouds, self._agents = world, clouds, agents
        self._bounds: dict[str, Bounds] = {}
        self._states: dict[str, str] = {}
        self._leases: set[str] = set()
        self._lost: set[int] = set()
        self._rows: dict[str, sa.RowMapping] = {}
        for cloud in clouds.values():
            cloud.ending = self.demand_may_end

    def look(self) -> None:
        """Insist on everything."""
        with read(self._world.engine) as connection:
            rows = connection.execute(_ROWS).mappings().all()
            self._rows = {row["instance_id"]: row for row in rows}
            fleets = connection.execute(_FLEETS).mappings().all()
            for fleet in fleets:
                self._demand_bounds(connection, fleet)
            self._demand_leases(connection)
            self._demand_cause(connection)
        self._demand_truth()
        for cloud in self._clouds.values():
            cloud.demand_foreign_untouched()
        self._note()

    # I12

    def demand_may_end(self, made: Made) -> None:
        """Insist that a machine whose end is asked for has no live lease (I13)."""
        with read(self._world.engine) as connection:
            row = connection.execute(_OWN, {"own": made.instance_id}).mappings().first()
            if row is None:
                raise Violated(f"{made.thing.ref} was to end, of which no row speaks")
            held = connection.execute(_HELD, {"own": row["runner_id"]}).scalar_one()
        if held and row["ended_at"] is None:
            raise Violated(f"{row['runner_name']} was to end with {held} leases on it")
        # A second one that came late for the same row is another machine: its row lives on.
        is_its_own = row["provider_ref"] in (None, made.thing.ref)
        if is_its_own and row["state"] not in ENDING:
            raise Violated(f"{row['runner_name']} was to end while {row['state']}")

    def _demand_truth(self) -> None:
        by_instance: Counter[str] = Counter()
        by_fleet: Counter[str] = Counter()
        for cloud in self._clouds.values():
            for made in cloud.living():
                row = self._rows.get(made.instance_id)
                if row is None:
                    raise Violated(f"{made.thing.ref} was made, and no row speaks of it")
                if made.is_late:
                    continue
                if row["ended_at"] is not None:
                    raise Violated(f"{row['runner_name']} counts as gone, and {made.thing.ref} is")
                by_instance[row["runner_name"]] += 1
                by_fleet[row["fleet_id"]] += 1
        for name, count in by_instance.items():
            if count > 1:
                raise Violated(f"{count} machines exist for {name}")
        for fleet_id, count in by_fleet.items():
            bounds = self._bounds[fleet_id]
            if count > bounds.most_ever + bounds.apart:
                raise Violated(f"{bounds.name} has {count} machines, and may have {bounds}")

    # I14

    def _demand_bounds(self, connection: sa.Connection, fleet: sa.RowMapping) -> None:
        now, fleet_id = self._world.now_ms, fleet["fleet_id"]
        spec = codec.decode(FleetSpec, fleet["spec"])
        override = self._override(connection, fleet_id)
        most = spec.scaling.max if override is None or override.max is None else override.max
        least = spec.scaling.min if override is None or override.min is None else override.min
        last = self._bounds.get(fleet_id)
        bounds = Bounds(
            name=spec.name,
            most=most,
            least=min(least, most),
            apart=spec.scaling.quarantined,
            hourly=spec.guardrail.hourly,
            most_ever=max(most, last.most_ever if last else 0),
            numbered=fleet["numbered"],
            decisions=fleet["decisions"],
            costs={one.name: one.cost for one in spec.offerings},
        )
        self._bounds[fleet_id] = bounds
        before = last or bounds
        rows = [
            row for row in self._rows.values() if row["fleet_id"] == fleet_id and row["may_exist"]
        ]
        # One that was kept when it was decided may have begun to end in the same step.
        sick = sum(
            S.QUARANTINED.value in (row["state"], self._states.get(row["instance_id"]))
            for row in rows
        )
        exist = len(rows) - min(sick, bounds.apart)
        if exist == most > 0:
            self._world.weather.note(AT_MOST)
        if fleet["numbered"] > (last.numbered if last else 0):
            self._demand_room(bounds, before, exist)
            self._demand_cost(bounds, rows, now)
        if fleet["decisions"] > (last.decisions if last else 0):
            self._demand_wanted(connection, fleet, bounds, before)

    def _demand_room(self, bounds: Bounds, before: Bounds, exist: int) -> None:
        most = max(bounds.most, before.most)
        if exist > most:
            raise Violated(f"{bounds.name} asked for more: {exist} may exist, at most {most}")

    def _demand_cost(self, bounds: Bounds, rows: list[sa.RowMapping], now: int) -> None:
        if bounds.hourly is None:
            return
        names = [codec.decode_part(str, row["offering"], "name") for row in rows]
        cost = sum(bounds.costs[name] for name in names)
        if cost > bounds.hourly:
            raise Violated(f"{bounds.name} costs {cost} an hour, and may cost {bounds.hourly}")

    def _demand_wanted(
        self, connection: sa.Connection, fleet: sa.RowMapping, bounds: Bounds, before: Bounds
    ) -> None:
        own = {"own": fleet["fleet_id"], "number": fleet["decisions"]}
        wanted = connection.execute(_WANTED, own).scalar_one()
        least = min(bounds.least, before.least)
        if fleet["state"] in (FleetState.DRAINING.value, FleetState.DELETING.value):
            least = 0
        if not least <= wanted <= max(bounds.most, before.most):
            raise Violated(f"{bounds.name} wants {wanted}: {bounds}")

    def _override(self, connection: sa.Connection, fleet_id: str) -> Override | None:
        own = {"own": fleet_id, "now": self._world.now_ms}
        found = connection.execute(_OVERRIDE, own).scalar()
        return None if found is None else codec.decode(Override, found)

    # I13, I15

    def _demand_leases(self, connection: sa.Connection) -> None:
        leases = connection.execute(_LEASED).mappings().all()
        by_runner = {row["runner_id"]: row for row in self._rows.values() if row["runner_id"]}
        for lease in leases:
            row = by_runner.get(lease["runner_id"])
            if row is not None and row["state"] in ENDING:
                raise Violated(f"{row['runner_name']} is {row['state']} and has a lease")
            is_new = lease["lease_id"] not in self._leases
            if not is_new or lease["state"] != "offered":
                continue
            if lease["drain_requested"] or lease["runner_state"] not in ("online", "saturated"):
                raise Violated(f"a lease for {lease['name']}, which is {lease['runner_state']}")
            if lease["admission"] != Admission.VERIFIED.value:
                raise Violated(f"a lease for {lease['name']}, which is {lease['admission']}")
        self._leases |= {lease["lease_id"] for lease in leases}
        busy = {lease["runner_id"] for lease in leases}
        for row in self._rows.values():
            was = self._states.get(row["instance_id"])
            if row["state"] == S.DRAINING.value != was and row["runner_id"] in busy:
                self._world.weather.note(BUSY_DRAIN)

    def _demand_cause(self, connection: sa.Connection) -> None:
        """Insist that work is only taken from a machine that is lost, sick or overdue."""
        for number, target, detail in connection.execute(_LOSSES):
            if number in self._lost:
                continue
            self._lost.add(number)
            row = self._rows[target]
            if not any(cause(row) for cause in self._causes()):
                raise Violated(f"work was taken from {row['runner_name']} without cause: {detail}")
            self._world.weather.note(OVERDUE)

    def _causes(self) -> tuple[Callable[[sa.RowMapping], bool], ...]:
        return (self._is_gone, self._is_silent, self._is_overdue, self._is_sick)

    def _is_gone(self, row: sa.RowMapping) -> bool:
        now = self._world.now_ms
        made = self._made(row)
        return made is None or made.thing.stopping_at <= now or made.thing.gone_at <= now

    def _is_silent(self, row: sa.RowMapping) -> bool:
        made = self._made(row)
        agent = self._agents.on.get(made.thing.ref) if made else None
        return agent is None or self._world.now_ms - agent.heard_at > MINUTE

    def _is_overdue(self, row: sa.RowMapping) -> bool:
        drained = row["drained_at"]
        return drained is not None and self._world.now_ms - drained >= 2 * MINUTE

    def _is_sick(self, row: sa.RowMapping) -> bool:
        made = self._made(row)
        agent = self._agents.on.get(made.thing.ref) if made else None
        return agent is not None and agent.sort == "a token that came with two keys"

    def _made(self, row: sa.RowMapping) -> Made | None:
        cloud = self._clouds[row["provider"]]
        return cloud.made.get(row["provider_ref"] or "")

    def _note(self) -> None:
        for row in self._rows.values():
            was = self._states.get(row["instance_id"])
            if was == S.DRAINING.value and row["state"] == S.HEALTHY.value:
                self._world.weather.note(KEPT)
            if row["calls"] > 1 and f"{row['instance_id']}/2" not in self._states:
                self._states[f"{row['instance_id']}/2"] = ""
                self._world.weather.note(AGAIN)
            made = self._made(row) if row["provider_ref"] else None
            if made and f"{row['instance_id']}/ref" not in self._states:
                self._states[f"{row['instance_id']}/ref"] = ""
                if self._world.now_ms - made.at > 1_000:
                    self._world.weather.note(ADOPTED)
            self._states[row["instance_id"]] = row["state"]

    # I18

    def unrest(self) -> str:
        """Say what is left to do, or nothing if all has come to rest."""
        with read(self._world.engine) as connection:
            jobs = connection.execute(_OPEN).scalar_one()
            fleets = {row["fleet_id"]: row for row in connection.execute(_FLEETS).mappings()}
            rows = connection.execute(_ROWS).mappings().all()
        if jobs:
            return f"{jobs} jobs are open"
        living = [row for row in rows if row["ended_at"] is None]
        for row in living:
            if row["state"] != S.HEALTHY.value:
                return f"{row['runner_name']} is {row['state']}: {row['detail']}"
        for fleet_id, fleet in fleets.items():
            if fleet["live"] is None:
                continue
            least = codec.decode(FleetSpec, fleet["spec"]).scaling.min
            count = sum(row["fleet_id"] == fleet_id for row in living)
            if count != least:
                return f"{fleet['name']} has {count} machines and needs {least}"
        known = {(row["provider"], row["provider_ref"]) for row in living}
        for cloud in self._clouds.values():
            for ref in cloud.left():
                if (cloud.name, ref) not in known:
                    return f"{ref} is left at {cloud.name}, of which no living row speaks"
        return ""


_SEEN = ("instance_id", "fleet_id", "state", "may_exist", "ended_at", "runner_id", "runner_name")
_SEEN_OF_PROVIDER = ("provider", "provider_ref", "drained_at", "calls", "detail", "offering")
_ROWS = sa.select(*(_instances.c[name] for name in (*_SEEN, *_SEEN_OF_PROVIDER))).order_by(
    _instances.c.instance_id
)
_OWN = _ROWS.where(_instances.c.instance_id == sa.bindparam("own"))
_FLEETS = sa.select(_fleets).order_by(_fleets.c.fleet_id)
_HELD = (
    sa.select(sa.func.count())
    .select_from(_leases)
    .where(_leases.c.runner_id == sa.bindparam("own"), _leases.c.state.in_(LIVE))
)
_LEASED = (
    sa.select(
        _leases.c.lease_id,
        _leases.c.runner_id,
        _leases.c.state,
        _runners.c.name,
        _runners.c.state.label("runner_state"),
        _runners.c.drain_requested,
        _runners.c.admission,
    )
    .join(_runners, _runners.c.runner_id == _leases.c.runner_id)
    .where(_leases.c.state.in_(LIVE))
)
_LOSSES = sa.select(_audit.c.audit_id, _audit.c.target, _audit.c.detail).where(
    _audit.c.action == "instance.lose_work"
)
_WANTED = sa.select(_decisions.c.wanted).where(
    _decisions.c.fleet_id == sa.bindparam("own"), _decisions.c.number == sa.bindparam("number")
)
_OVERRIDE = (
    sa.select(_overrides.c.override)
    .where(
        _overrides.c.fleet_id == sa.bindparam("own"),
        _overrides.c.ended_at.is_(None),
        _overrides.c.expires_at > sa.bindparam("now"),
    )
    .order_by(_overrides.c.override_id.desc())
)
_OPEN = (
    sa.select(sa.func.count())
    .select_from(tables.jobs)
    .where(tables.jobs.c.state.not_in(("succeeded", "failed", "cancelled", "skipped", "timed_out")))
)
