"""Deciding about a fleet, looking at its provider, and doing what people ask of it.

Read, decide, write: the rule is pure, and what it decided is void if anybody acted meanwhile.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import sqlalchemy as sa
from temporalio import activity

from activities import contracts
from activities.provisioning import Infrastructure
from forgeyard import telemetry, tracing
from forgeyard.errors import Conflict, ForgeyardError, InvalidRequest
from forgeyard.fleet.allocate import allocate
from forgeyard.fleet.plan import decide
from forgeyard.fleet.ports import FleetProvider, Listing, PricedProvider
from forgeyard.fleet.telling import told
from forgeyard.fleet.view import FleetView
from forgeyard.model.fleet import FleetState
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.scheduler.demand import unmet
from forgeyard.store import (
    fleet_decisions,
    fleet_history,
    fleet_reading,
    fleets,
    lineage,
    machines,
    policies,
    prices,
    provider_checks,
    rollouts,
    sightings,
)
from forgeyard.store.engine import database_now, read, write
from forgeyard.store.fleet_decisions import Committed
from forgeyard.store.shares import Intent
from forgeyard.store.sightings import Orphan

TRIES: Final = 5
"""Decisions that may be void one after the other, until the next look."""
ROLLOUT_UNTENDED_MS: Final = 3 * 60 * 1000
"""A rollout that was not judged for so long has lost its workflow."""
STATES: Final = {
    "activate": FleetState.ACTIVE,
    "freeze": FleetState.FROZEN,
    "scale_up_only": FleetState.SCALE_UP_ONLY,
    "drain": FleetState.DRAINING,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """How often what is done, in milliseconds."""

    look: int = 10_000
    """Between two looks at a fleet."""
    observe: int = 30_000
    """Between two looks at everything that a provider has."""


class FleetActivities:
    """Fleets over one store and the providers of the configuration."""

    def __init__(
        self,
        engine: sa.Engine,
        built_in: SchedulingPolicy,
        providers: Mapping[str, Infrastructure],
        rhythm: Rhythm,
        *,
        rng: random.Random,
    ) -> None:
        self._engine = engine
        self._built_in = built_in
        self._providers = providers
        self._rhythm = rhythm
        self._rng = rng
        self._advice: dict[str, tuple[int, int | None]] = {}
        """By fleet: until when it counts, and how many machines will be needed."""

    @activity.defn(name="fleet.tick")
    def tick_fleet(self, request: contracts.Fleet) -> contracts.FleetTick:
        """Decide about a fleet, and make the decision real; decide anew if anybody was first."""
        for _ in range(TRIES):
            try:
                return self._tick(request)
            except Conflict:
                continue
        return contracts.FleetTick(
            line="others decided all the time; decided next time",
            is_observing_due=True,  # as far as anybody knows
            wait_ms=self._rhythm.look,
        )

    def _tick(self, request: contracts.Fleet) -> contracts.FleetTick:
        with read(self._engine) as connection:
            lineage.demand_free(connection)
            policy = policies.current(connection, self._built_in).policy
            found = fleet_reading.read(connection, request.partition, policy)
        view = found.fleet(request.fleet_id)
        if view is None:
            return contracts.FleetTick(gone=True)
        view = self._advised(view, now=found.now)
        with tracing.span("fleet.plan", fleet=view.spec.name) as span:
            demand = unmet(found.snapshot, found.policy)
            allocation = allocate(demand, found.fleets, found.now)
            share = allocation.of(view.fleet_id)
            decision = decide(view, share, demand=demand, now=found.now)
            span.note(wanted=decision.wanted, usable=decision.usable)
        with write(self._engine) as connection:
            done = fleet_decisions.commit(
                connection,
                view,
                decision,
                partition=request.partition,
                demand=demand,
                allocation=allocation,
                version=found.allocation_version,
                rng=self._rng,
            )
            gone = fleet_decisions.finish_deletion(connection, view.fleet_id)
        _count(view, done)
        rollout_id, image = self._untended_rollout(view.fleet_id)
        return contracts.FleetTick(
            gone=gone,
            wanted=decision.wanted,
            usable=decision.usable,
            launched=len(done.launched),
            drained=len(done.drained),
            state=view.state.value,
            health=done.health.value,
            line=told(view, decision),
            untended=self._untended(view),
            rollout_id=rollout_id,
            image=image,
            is_observing_due=self._is_observing_due(view.spec.provider, now=found.now),
            wait_ms=self._rhythm.look,
        )

    def _advised(self, view: FleetView, *, now: int) -> FleetView:
        """Add what the past says of the near future, found anew with every step of it."""
        if not view.spec.scaling.forecast:
            return view
        known = self._advice.get(view.fleet_id)
        if known is None or known[0] <= now:
            advice = fleet_history.outlook(self._engine, view.fleet_id).advice
            known = self._advice[view.fleet_id] = (now + fleet_history.BUCKET_MS, advice.count)
        return replace(view, forecast=known[1])

    def _untended(self, view: FleetView) -> tuple[contracts.Machine, ...]:
        with write(self._engine) as connection:
            found = machines.claim_untended(
                connection,
                view.fleet_id,
                silence=view.spec.deadlines.bootstrap,
                now=database_now(connection),
            )
        return tuple(
            contracts.Machine(instance_id=instance_id, runner_name=name)
            for instance_id, name in found
        )

    def _untended_rollout(self, fleet_id: str) -> tuple[str, str]:
        with read(self._engine) as connection:
            before = database_now(connection) - ROLLOUT_UNTENDED_MS
            return rollouts.untended(connection, fleet_id, before=before) or ("", "")

    def _is_observing_due(self, provider: str, *, now: int) -> bool:
        with read(self._engine) as connection:
            every = self._period(connection, provider, now=now)
            return sightings.is_due(connection, provider, every=every, now=now)

    @activity.defn(name="fleet.observe")
    def observe_fleet(self, request: contracts.Fleet) -> contracts.Observed:
        """Look at all that the provider of a fleet has, if nobody has done so of late."""
        with write(self._engine) as connection:
            lineage.demand_free(connection)
            name = str(fleets.find(connection, request.fleet_id)["provider"])
            frozen = machines.is_frozen(connection, name)
            now = database_now(connection)
            every = self._period(connection, name, now=now)
            mine = sightings.take_turn(connection, name, every=every, now=now)
            installation = lineage.current(connection).store_id
        found = self._providers.get(name)
        if not mine or found is None or not installation:
            return contracts.Observed(skipped="another worker looked, or none of ours can")
        with tracing.span("fleet.reconcile", provider=name):
            self._check(name, found.provider)
            self._price(name, found.provider)
            interrupted = self._hear(name, found.provider)
            activity.heartbeat("listing")
            listing = found.provider.list_machines(installation)
            return self._hold(name, found, installation, listing, interrupted, frozen=frozen)

    def _period(self, connection: sa.Connection, name: str, *, now: int) -> int:
        usual, found = self._rhythm.observe, self._providers.get(name)
        soon = usual if found is None else found.pace.look
        return sightings.period(connection, name, usual=usual, soon=soon, now=now)

    def _check(self, name: str, provider: FleetProvider) -> None:
        """Ask now and then whether we are let in and all that fleets want is there."""
        with read(self._engine) as connection:
            now = database_now(connection)
            offerings = provider_checks.due(connection, name, now=now)
        if not offerings:
            return
        activity.heartbeat("checks")
        found = provider.check(offerings)
        with write(self._engine) as connection:
            provider_checks.keep(connection, name, found, now=database_now(connection))

    def _price(self, name: str, provider: FleetProvider) -> None:
        """Ask now and then what machines cost, and write down each answer as it comes."""
        if not isinstance(provider, PricedProvider):
            return
        with read(self._engine) as connection:
            now = database_now(connection)
            due = prices.due(connection, name, now=now)
        for sku in due:
            activity.heartbeat("prices")
            answer = provider.price(sku, now=now)
            with write(self._engine) as connection:
                prices.keep(connection, name, (answer,), now=database_now(connection))

    def _hear(self, name: str, provider: FleetProvider) -> int:
        """Write down what was announced, then let the provider forget it."""
        announced = provider.interruptions()
        # From 0 on, so that whoever watches sees the first one as one.
        counted = telemetry.FLEET_INTERRUPTIONS.labels(provider.kind)
        if not announced:
            return 0
        with write(self._engine) as connection:
            now = database_now(connection)
            count = sightings.interrupted(connection, name, announced, now=now)
        provider.acknowledge(tuple(one.receipt for one in announced if one.receipt))
        counted.inc(count)
        return count

    def _hold(
        self,
        name: str,
        found: Infrastructure,
        installation: str,
        listing: Listing,
        interrupted: int,
        *,
        frozen: bool,
    ) -> contracts.Observed:
        with write(self._engine) as connection:
            now = database_now(connection)
            seen = sightings.observe(connection, name, installation, listing, now=now)
        for orphan in () if frozen else seen.orphans:
            activity.heartbeat(orphan.ref)
            self._end(found.provider, installation, orphan)
        return contracts.Observed(
            machines=seen.machines,
            orphans=len(seen.orphans),
            interrupted=interrupted,
            news=seen.news + interrupted,
        )

    def _end(self, provider: FleetProvider, installation: str, orphan: Orphan) -> None:
        """End a machine of ours that was given up; it is counted and looked at until it is gone."""
        sought = machines.sought(orphan.row, installation, ref=orphan.ref)
        try:
            provider.terminate(sought)
        except ForgeyardError as error:
            activity.logger.warning("an orphan could not be ended: %s", error.message)

    @activity.defn(name="fleet.command")
    def command_fleet(self, request: contracts.FleetOrder) -> contracts.Ordered:
        """Do what a person asks of a fleet; asked twice, it is done once."""
        order = request.command
        intent = Intent(actor=order.actor, channel="temporal", reason=order.reason)
        with write(self._engine) as connection:
            if order.action == "scale":
                fleets.scale(
                    connection,
                    request.fleet_id,
                    order.count,
                    intent,
                    for_ms=order.for_ms or None,
                    rng=self._rng,
                )
                return contracts.Ordered(line=f"there shall be {order.count}")
            state = STATES.get(order.action)
            if state is None:
                raise InvalidRequest(
                    "a fleet cannot do that",
                    field="action",
                    value=order.action,
                    allowed=", ".join((*STATES, "scale")),
                )
            fleets.set_state(connection, request.fleet_id, state, intent)
        return contracts.Ordered(line=f"it is {state}")


def _count(view: FleetView, done: Committed) -> None:
    name = view.spec.name
    if done.launched:
        telemetry.FLEET_SCALE_UP.labels(name).inc(len(done.launched))
    if done.drained:
        telemetry.FLEET_SCALE_DOWN.labels(name).inc(len(done.drained))
    for instance_id in done.launched:
        with tracing.root_span("fleet.intend", of=instance_id, fleet=name, machine=instance_id):
            pass
