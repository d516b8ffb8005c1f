"""Who wants something, and what befalls providers: jobs, operators, and bad days of a cloud."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum

import sqlalchemy as sa

from forgeyard.errors import ForgeyardError
from forgeyard.fleet.ports import TAG_INSTALLATION, TAG_INSTANCE, TAG_OPERATION
from forgeyard.model.capacity import CapacityInstanceState
from forgeyard.model.fleet import FleetSpec, FleetState
from forgeyard.model.job import RetryPolicy
from forgeyard.store import fleet_tables, fleet_wishes, fleets, lineage, tables
from forgeyard.store.engine import read, write
from forgeyard.store.shares import Intent
from tests.builders import a_job_spec, submit_run
from tests.fleet.fake import NEVER
from tests.simulation.fleet.cloud import Cloud
from tests.simulation.fleet.control import Control
from tests.simulation.world import World

MINUTE = 60_000
INTENT = Intent(actor="operator", channel="cli", reason="the simulation wants it")
MOST_OPEN = 14
FINAL = ("succeeded", "failed", "cancelled", "skipped", "timed_out")
_instances = fleet_tables.capacity_instances


class Fault(StrEnum):
    """What befalls a provider or is asked of a fleet; each is counted when it happens."""

    LOST_ANSWER = "a create was made and its answer lost"
    ERROR_THOUGH_MADE = "a create was made and answered with an error"
    KILLED = "a machine died out of band"
    RETAGGED = "tags were edited"
    LOOK_ALIKE = "a machine of another installation"
    COPIED_TAGS = "a machine with copied tags"
    NOTICE = "an interruption was announced"
    NOTICE_TWICE = "an interruption was announced twice, and late"
    NOTICE_LOST = "an interruption was never announced"
    EMPTY = "listings were empty"
    PARTIAL = "a listing missed a page"
    SHUFFLED = "pages were shuffled"
    INEFFECTIVE = "ends were accepted and came to nothing"
    SLOW_END = "ends took minutes"
    NO_CAPACITY = "an offering was out of capacity"
    QUOTA = "an offering met a quota"
    UNKNOWN_CODE = "an offering answered with an unknown code"
    THROTTLED = "a provider throttled"
    DOWN = "a provider answered 500 to everything"
    CLOCK = "a provider's clock was off"
    FROZEN = "a fleet was frozen"
    PROVIDER_FROZEN = "a provider was frozen"
    OVERRIDDEN = "a fleet was scaled by hand"
    DRAINED = "a fleet was drained"
    DELETED = "a fleet was deleted"
    CHANGED = "a fleet's document was changed"
    PINNED = "a machine was pinned"
    RELEASED = "a quarantined machine was let go"


class People:
    """Everybody outside: who submits, who operates, and fate."""

    def __init__(
        self,
        world: World,
        clouds: Mapping[str, Cloud],
        control: Control,
        specs: Mapping[str, FleetSpec],
    ) -> None:
        self.world = world
        self.specs = dict(specs)
        self._clouds = clouds
        self._control = control
        with read(world.engine) as connection:
            self._installation = lineage.current(connection).store_id
        self._planted = 0

    def begin(self) -> None:
        """Apply the fleets, and let everybody do things from now on."""
        world = self.world
        for name in self.specs:
            world.after(10, name, lambda name=name: self._apply(name))
        world.after(1_000, "people", self._submit)
        world.after(world.between(5_000, 40_000), "fate", self._befall)
        world.after(world.between(60_000, 200_000), "operator", self._operate)

    def _apply(self, name: str) -> None:
        def act() -> None:
            with write(self.world.engine) as connection:
                record = fleets.apply(
                    connection,
                    self.specs[name],
                    INTENT,
                    expected_version=None,
                    rng=self.world.ids,
                )
            if record.outcome is fleets.Outcome.CREATED:
                self._control.reconcile(record.fleet_id, name)

        self.world.insist(name, act)

    # Work

    def _submit(self) -> None:
        world = self.world
        world.after(world.between(30_000, 120_000), "people", self._submit)
        if world.weather.is_calm or self.open_jobs() > MOST_OPEN:
            return
        count = world.rng.choice((1, 2, 3, 8))
        # No job fails of itself here, and one whose machine dies is tried again and again.
        retry = RetryPolicy(max_attempts=10)
        jobs = [a_job_spec(f"job-{place}", retry=retry) for place in range(count)]
        world.tell("people", f"submit {count} jobs")
        world.insist("people", lambda: world.change(submit_run, *jobs) and None)

    def open_jobs(self) -> int:
        """Count the jobs that are not over."""
        jobs = tables.jobs
        query = sa.select(sa.func.count()).where(jobs.c.state.not_in(FINAL))
        with read(self.world.engine) as connection:
            return int(connection.execute(query).scalar_one())

    # Fate

    def _befall(self) -> None:
        world = self.world
        if world.weather.is_calm:
            return
        world.after(world.between(10_000, 60_000), "fate", self._befall)
        cloud = world.rng.choice(list(self._clouds.values()))
        world.rng.choice(_FATES)(self, cloud)

    def _note(self, cloud: Cloud, fault: Fault) -> None:
        self.world.weather.note(fault)
        self.world.tell(cloud.name, fault)

    def _for_a_while(self, undo: Callable[[], None], *, most: float = 4 * MINUTE) -> None:
        self.world.after(self.world.between(MINUTE, most), "fate", undo)

    def _creates(self, cloud: Cloud) -> None:
        for _ in range(self.world.rng.randint(1, 3)):
            plan = self.world.rng.choice(("lost", "raises"))
            fault = Fault.LOST_ANSWER if plan == "lost" else Fault.ERROR_THOUGH_MADE
            cloud.fake.knobs.creates.append(plan)
            self._note(cloud, fault)

    def _machine_of(self, cloud: Cloud) -> str | None:
        living = [one.thing.ref for one in cloud.living()]
        return self.world.rng.choice(living) if living else None

    def _kill(self, cloud: Cloud) -> None:
        ref = self._machine_of(cloud)
        if ref is not None:
            self._note(cloud, Fault.KILLED)
            cloud.fake.kill(ref)

    def _retag(self, cloud: Cloud) -> None:
        """Edit tags, though not of a machine that nobody knows by name yet."""
        known = sa.select(_instances.c.provider_ref).where(
            _instances.c.provider_ref.is_not(None), _instances.c.provider == cloud.name
        )
        with read(self.world.engine) as connection:
            refs = [
                ref
                for ref in connection.execute(known).scalars()
                if ref in cloud.made and cloud.is_living(cloud.made[ref].thing)
            ]
        if refs:
            self._note(cloud, Fault.RETAGGED)
            ref = self.world.rng.choice(sorted(refs))
            tags = {**cloud.made[ref].thing.tags, TAG_OPERATION: "edited"}
            if self.world.rng.random() < 0.5:
                tags.pop(TAG_INSTALLATION, None)
            cloud.fake.retag(ref, tags)

    def _plant(self, cloud: Cloud) -> None:
        with read(self.world.engine) as connection:
            rows = connection.execute(sa.select(_instances.c.instance_id)).scalars().all()
        if not rows:
            return
        self._planted += 1
        tags = {TAG_INSTALLATION: self._installation, TAG_OPERATION: "somebody-else"}
        tags[TAG_INSTANCE] = self.world.rng.choice(sorted(rows))
        fault = Fault.COPIED_TAGS
        if self.world.rng.random() < 0.4:
            fault, tags[TAG_INSTALLATION] = Fault.LOOK_ALIKE, "str_other"
        self._note(cloud, fault)
        cloud.plant(f"x-{self._planted}", tags)

    def _announce(self, cloud: Cloud) -> None:
        ref = self._machine_of(cloud)
        if ref is None:
            return
        fault = self.world.rng.choice((Fault.NOTICE, Fault.NOTICE_TWICE, Fault.NOTICE_LOST))
        copies = {Fault.NOTICE: 1, Fault.NOTICE_TWICE: 2, Fault.NOTICE_LOST: 0}[fault]
        self._note(cloud, fault)
        late = self.world.between(30_000, 150_000) if fault is Fault.NOTICE_TWICE else 0
        cloud.fake.announce(ref, copies=copies, late_ms=late)

    def _knob(self, fault: Fault, name: str, bad: object, good: object) -> Callable[..., None]:
        def turn(cloud: Cloud) -> None:
            self._note(cloud, fault)
            setattr(cloud.fake.knobs, name, bad)
            self._for_a_while(lambda: setattr(cloud.fake.knobs, name, good))

        return turn

    def _listing(self, cloud: Cloud) -> None:
        knobs = cloud.fake.knobs
        if self.world.rng.random() < 0.5:
            self._note(cloud, Fault.PARTIAL)
            knobs.lost_pages += 2
        else:
            self._note(cloud, Fault.SHUFFLED)
            knobs.shuffles = True

    def _empty(self, cloud: Cloud) -> None:
        self._knob(Fault.EMPTY, "is_empty", True, False)(cloud)

    def _ends(self, cloud: Cloud) -> None:
        if self.world.rng.random() < 0.5:
            self._knob(Fault.INEFFECTIVE, "stop_ms", NEVER, 5_000)(cloud)
        else:
            self._knob(Fault.SLOW_END, "stop_ms", 2 * MINUTE, 5_000)(cloud)

    def _refuse(self, cloud: Cloud) -> None:
        code, fault = self.world.rng.choice(
            (
                ("ice", Fault.NO_CAPACITY),
                ("quota", Fault.QUOTA),
                ("unknown", Fault.UNKNOWN_CODE),
            )
        )
        offering = self.world.rng.choice(("cheap", "dear", "spot"))
        self._note(cloud, fault)
        cloud.fake.knobs.offerings[offering] = code
        self._for_a_while(lambda: cloud.fake.knobs.offerings.pop(offering, None) and None)

    def _outage(self, cloud: Cloud) -> None:
        code = self.world.rng.choice(("down", "throttled"))
        self._note(cloud, Fault.DOWN if code == "down" else Fault.THROTTLED)
        cloud.fake.knobs.calls = code
        most = 15 * MINUTE if self.world.rng.random() < 0.2 else 3 * MINUTE
        self._for_a_while(lambda: setattr(cloud.fake.knobs, "calls", ""), most=most)

    def _clock(self, cloud: Cloud) -> None:
        self._note(cloud, Fault.CLOCK)
        cloud.fake.knobs.clock_offset_ms = self.world.between(-30 * MINUTE, 30 * MINUTE)

    # Operators

    def _operate(self) -> None:
        world = self.world
        if world.weather.is_calm:
            return
        world.after(world.between(30_000, 200_000), "operator", self._operate)
        name = world.rng.choice(list(self.specs))
        what = world.rng.choice(_ORDERS)
        try:
            what(self, name)
        except ForgeyardError as error:
            world.tell("operator", f"{name}: {error.message}")

    def _order(self, fault: Fault, name: str, do: Callable[..., object], *args: object) -> None:
        self.world.tell("operator", f"{name}: {fault}")
        self.world.change(do, *args)
        self.world.weather.note(fault)

    def _state(self, fault: Fault, name: str, state: FleetState) -> None:
        self._order(fault, name, fleets.set_state, name, state, INTENT)
        self._for_a_while(lambda: self._activate(name))

    def _activate(self, name: str) -> None:
        def act() -> None:
            try:
                self.world.change(fleets.set_state, name, FleetState.ACTIVE, INTENT)
            except ForgeyardError as error:
                if error.code == "store.unavailable":
                    raise
                self.world.tell("operator", f"{name}: {error.message}")

        self.world.insist("operator", act)

    def _freeze(self, name: str) -> None:
        self._state(Fault.FROZEN, name, FleetState.FROZEN)

    def _drain(self, name: str) -> None:
        self._state(Fault.DRAINED, name, FleetState.DRAINING)

    def _freeze_provider(self, name: str) -> None:
        provider = self.specs[name].provider
        self._order(Fault.PROVIDER_FROZEN, name, fleet_wishes.freeze_provider, provider, INTENT)
        self._for_a_while(lambda: self.thaw(provider))

    def thaw(self, provider: str) -> None:
        """Let a provider make and end machines again."""
        act = fleet_wishes.thaw_provider
        self.world.insist("operator", lambda: self.world.change(act, provider, INTENT))

    def _override(self, name: str) -> None:
        count = self.world.rng.randint(0, 4)
        with write(self.world.engine) as connection:
            fleets.scale(connection, name, count, INTENT, for_ms=3 * MINUTE, rng=self.world.ids)
        self.world.weather.note(Fault.OVERRIDDEN)
        self.world.tell("operator", f"{name}: scaled to {count}")

    def _delete(self, name: str) -> None:
        if self.world.rng.random() < 0.4:
            self._order(Fault.DELETED, name, fleets.delete, name, INTENT)
            self._for_a_while(lambda: self._recreate(name))

    def _recreate(self, name: str) -> None:
        """Apply a fleet anew once nothing is left of the old one."""
        with read(self.world.engine) as connection:
            known = {one.spec.name for one in fleets.list_all(connection)}
        if name in known:
            self.world.after(MINUTE, "operator", lambda: self._recreate(name))
        else:
            self._apply(name)

    def _change(self, name: str) -> None:
        spec = self.specs[name]
        most = self.world.rng.choice((3, 4, 5))
        self.specs[name] = replace(spec, scaling=replace(spec.scaling, max=most))
        self.world.weather.note(Fault.CHANGED)
        with write(self.world.engine) as connection:
            fleets.apply(
                connection, self.specs[name], INTENT, expected_version=None, rng=self.world.ids
            )

    def _pin(self, name: str) -> None:
        healthy = self._in_state(CapacityInstanceState.HEALTHY)
        if healthy:
            with write(self.world.engine) as connection:
                fleet_wishes.pin(
                    connection, self.world.rng.choice(healthy), INTENT, for_ms=2 * MINUTE
                )
            self.world.weather.note(Fault.PINNED)

    def release(self, name: str) -> None:
        """Let quarantined machines go."""
        for instance_id in self._in_state(CapacityInstanceState.QUARANTINED):
            self._order(Fault.RELEASED, name, fleet_wishes.release, instance_id, INTENT)

    def _in_state(self, state: CapacityInstanceState) -> list[str]:
        query = sa.select(_instances.c.instance_id).where(_instances.c.state == state.value)
        with read(self.world.engine) as connection:
            return sorted(connection.execute(query).scalars())

    # The end

    def put_right(self) -> None:
        """Take back everything that keeps fleets from what is wanted of them."""
        for cloud in self._clouds.values():
            knobs = cloud.fake.knobs
            knobs.creates.clear()
            knobs.offerings.clear()
            knobs.calls, knobs.is_empty, knobs.lost_pages, knobs.stop_ms = "", False, 0, 5_000
            cloud.odds = 0
            self.thaw(cloud.name)
        for name in self.specs:
            self._activate(name)
        self._let_go()

    def _let_go(self) -> None:
        self.world.after(2 * MINUTE, "operator", self._let_go)
        self.release("all")


_FATES: tuple[Callable[[People, Cloud], None], ...] = (
    People._creates,
    People._creates,
    People._creates,
    People._kill,
    People._retag,
    People._plant,
    People._announce,
    People._announce,
    People._listing,
    People._empty,
    People._ends,
    People._refuse,
    People._outage,
    People._clock,
)
_ORDERS: tuple[Callable[[People, str], None], ...] = (
    People._freeze,
    People._drain,
    People._freeze_provider,
    People._override,
    People._override,
    People._delete,
    People._change,
    People._pin,
    People.release,
)
