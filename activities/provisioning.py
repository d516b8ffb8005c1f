"""One machine, one step: what SQL says, what its provider says, what is asked of it.

No transaction is open while a provider is called. That it is about to be called is written down
before, so that whoever comes after a crash looks before anything is asked for again; what came of
it is written down only on the generation that it was asked for.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import sqlalchemy as sa
from temporalio import activity

from activities import contracts
from forgeyard import telemetry, tracing
from forgeyard.errors import (
    Denied,
    ForgeyardError,
    InvalidSpec,
    NotFound,
    OutOfCapacity,
    ProviderQuotaExceeded,
    Throttled,
    Unavailable,
)
from forgeyard.fleet.lifecycle import WANT_NONE, Act, Pace
from forgeyard.fleet.ports import (
    Bootstrap,
    FleetProvider,
    Machine,
    ProvisionRequest,
    Sought,
)
from forgeyard.fleet.view import COMING
from forgeyard.model.capacity import CapacityInstanceState
from forgeyard.model.enrolment import Expectation, Grant
from forgeyard.model.equipment import IsolationClass as Isolation
from forgeyard.model.fleet import CapacityClass, FleetSpec, Offering
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.store import (
    breakers,
    codec,
    enrolments,
    image_standing,
    lineage,
    machine_life,
    machines,
    policies,
)
from forgeyard.store.changes import Row
from forgeyard.store.engine import database_now, read, write
from forgeyard.store.enrolments import Wanted
from forgeyard.store.machine_life import Advance
from forgeyard.store.machines import AUTOSCALER, binding_of
from forgeyard.trust.invitations import Invitations

CALLS_AT_ONCE: Final = 4
"""How many calls one step makes before it lets others have their turn."""
LONGEST_PAUSE_MS: Final = 60_000
CERTAIN: Final = (OutOfCapacity, ProviderQuotaExceeded, Denied, InvalidSpec)
"""Answers after which nothing was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Infrastructure:
    """A provider of the configuration, and how it is dealt with."""

    provider: FleetProvider
    pace: Pace = field(default_factory=Pace)


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """Where new machines go to become runners."""

    url: str
    """Of the agent API."""
    invitations: Invitations | None = None
    """None where agents on this host use its own token."""


class ProvisioningActivities:
    """Steps of machines over one store and the providers of the configuration."""

    def __init__(
        self,
        engine: sa.Engine,
        built_in: SchedulingPolicy,
        providers: Mapping[str, Infrastructure],
        home: Home,
        *,
        rng: random.Random,
    ) -> None:
        self._engine = engine
        self._built_in = built_in
        self._providers = providers
        self._home = home
        self._rng = rng

    @activity.defn(name="instance.advance")
    def advance_instance(self, request: contracts.Machine) -> contracts.Advanced:
        """Take a machine one step on its way."""
        step = self._advance(request.instance_id)
        for _ in range(CALLS_AT_ONCE):
            if step.act is None:
                break
            activity.heartbeat(step.act.value)
            of, fleet = request.instance_id, step.known.fleet["name"]
            with tracing.span(_SPANS[step.act], of=of, fleet=fleet, machine=of) as span:
                span.error = self._call(step)
            step = self._advance(request.instance_id)
        row = step.known.row
        return contracts.Advanced(
            state=row["state"],
            ended=row["ended_at"] is not None,
            wait_ms=step.wait,
            line=_line(row),
        )

    def _advance(self, instance_id: str) -> Advance:
        with read(self._engine) as connection:
            policy = policies.current(connection, self._built_in).policy
            provider, before = machines.provider_and_state(connection, instance_id)
        pace = self._providers[provider].pace if provider in self._providers else Pace()
        with write(self._engine) as connection:
            lineage.demand_free(connection)
            step = machine_life.advance(connection, instance_id, pace, policy.lease)
            if step.act is Act.PROVISION:
                self._invite(connection, step)
        _count(step, before)
        _trace(step, before)
        return step

    def _invite(self, connection: sa.Connection, step: Advance) -> None:
        """Make the enrolment of a machine before the machine: its window opens once it is seen.

        One that has an enrolment keeps it, whatever its fleet's document says by now (FLT-029).
        """
        invitations, row = self._home.invitations, step.known.row
        binding = binding_of(row)
        if invitations is None or enrolments.is_there(connection, binding):
            return
        wanted = Wanted(
            binding=binding,
            runner_name=row["runner_name"],
            grant=grant_of(step.known.spec, codec.decode(CapacityClass, row["capacity"])),
            opens_when_seen=_opens_when_seen(self._providers.get(row["provider"])),
        )
        enrolments.mint(connection, wanted, AUTOSCALER, mark=invitations.mark_of, rng=self._rng)

    def _call(self, step: Advance) -> str:
        """Ask the provider once, and write down what came of it; return the code of a failure."""
        asked = step.known.row
        try:
            machine = self._ask(step)
        except ForgeyardError as error:
            telemetry.FLEET_PROVIDER_FAILURES.labels(step.known.fleet["name"], error.code).inc()
            failure = error
            self._record(asked, lambda connection, row: _failed(connection, row, step.act, failure))
            return error.code
        self._record(asked, lambda connection, row: _told(connection, row, step.act, machine))
        return ""

    def _ask(self, step: Advance) -> Machine | None:
        known = step.known
        found = self._providers.get(known.row["provider"])
        if found is None:
            raise Unavailable(
                f"this worker has no provider {known.row['provider']}", field="fleet.providers"
            )
        sought = self._sought(step)
        if step.act is Act.TERMINATE:
            found.provider.terminate(sought)
            return None
        if step.act is Act.LOOK or known.row["calls"] > 1:
            machine = found.provider.inspect(sought)
            if machine is not None or step.act is Act.LOOK:
                return machine
        return found.provider.provision(self._request(step, sought))

    def _sought(self, step: Advance) -> Sought:
        scope = step.known.spec.scope
        whose = scope.project_id or scope.tenant_id or ""
        return machines.sought(step.known.row, self._installation(), scope=whose)

    def _installation(self) -> str:
        with read(self._engine) as connection:
            store_id = lineage.current(connection).store_id
        if not store_id:
            raise Unavailable("the store has no identity yet, by which machines are found again")
        return store_id

    def _request(self, step: Advance, sought: Sought) -> ProvisionRequest:
        row = step.known.row
        return ProvisionRequest(
            owner=sought.owner,
            operation_key=sought.operation_key,
            runner_name=row["runner_name"],
            capacity=codec.decode(CapacityClass, row["capacity"]),
            offering=sought.offering,
            bootstrap=self._bootstrap(row),
            ref=sought.ref,
            image=self._image(row, sought.offering),
        )

    def _image(self, row: Row, offering: Offering) -> str:
        """Tell what the provider calls the image of a machine, if that is on record."""
        with read(self._engine) as connection:
            places = (offering.name, offering.region)
            return image_standing.reference(connection, row["image"], row["provider"], *places)

    def _bootstrap(self, row: Row) -> Bootstrap:
        invitations, binding = self._home.invitations, binding_of(row)
        if invitations is None:
            return Bootstrap(url=self._home.url)
        with read(self._engine) as connection:
            enrolment_id = enrolments.id_of(connection, binding)
        return Bootstrap(
            url=self._home.url,
            token=invitations.token(enrolment_id, binding).written(),
            pin=invitations.authority.pin(),
        )

    def _record(self, asked: Row, how: Callable[[sa.Connection, Row], None]) -> None:
        """Write down an answer, unless it is about a machine that is another one by now."""
        with write(self._engine) as connection:
            row = machines.lock(connection, asked["instance_id"]).row
            if row["generation"] == asked["generation"] and row["ended_at"] is None:
                how(connection, row)


def _count(step: Advance, before: CapacityInstanceState) -> None:
    """Count what came of a machine that was coming."""
    row, fleet = step.known.row, step.known.fleet["name"]
    after = step.known.facts.state
    # From 0 on, so that whoever watches sees the first failure as one.
    failures = telemetry.FLEET_BOOTSTRAP_FAILURES.labels(fleet)
    if before not in COMING or after in COMING:
        return
    if after is CapacityInstanceState.HEALTHY:
        took = row["healthy_at"] - row["requested_at"]
        telemetry.FLEET_PROVISION_LATENCY.labels(fleet).observe(took / 1000)
    elif row["calls"] and (row["failure"] or step.known.facts.fleet_state not in WANT_NONE):
        failures.inc()


def _trace(step: Advance, before: CapacityInstanceState) -> None:
    """Record the phases of a machine's life that have ended with a step, well or not."""
    row = step.known.row
    for name, states, begin, end in _PHASES:
        began, ended = row[begin], row[end] or row["ending_at"]
        if before in states and began is not None and ended is not None:
            tracing.past(
                name,
                of=row["instance_id"],
                lasted_ms=max(0, ended - began),
                fleet=step.known.fleet["name"],
                machine=row["instance_id"],
                state=row["state"],
            )


def _told(connection: sa.Connection, row: Row, act: Act | None, machine: Machine | None) -> None:
    if act is Act.TERMINATE:
        return
    now = database_now(connection)
    if machine is None:
        machines.not_seen(connection, row, now=now)
        return
    machines.seen(connection, row, machine, now=now)
    if act is Act.PROVISION:
        breakers.made(connection, row["provider"], row["fleet_id"], machines.offering_name(row))


def _failed(connection: sa.Connection, row: Row, act: Act | None, error: ForgeyardError) -> None:
    """Take a failure for what it is: a certain no, a used-up key, or no answer at all."""
    now, text = database_now(connection), f"{error.code}: {error.message}"
    if isinstance(error, NotFound):
        if act is Act.PROVISION:
            machines.used_up(connection, row)
        else:
            machines.not_seen(connection, row, now=now)
        return
    where = (row["provider"], row["fleet_id"], machines.offering_name(row))
    closed_until = breakers.failed(connection, *where, error, now=now)
    if act is Act.PROVISION and isinstance(error, CERTAIN):
        machines.refused(connection, row, text)
        return
    # While a breaker is open every machine asks now and then only, however many there are.
    pause = max(_pause(error, row["calls"]), min(closed_until - now, LONGEST_PAUSE_MS))
    machines.put_off(connection, row, text, until=now + pause)


def _opens_when_seen(found: Infrastructure | None) -> bool:
    """Tell whether a machine is seen before it enrols; one that people set up is not."""
    return found is None or found.provider.kind != "manual"


def _pause(error: ForgeyardError, calls: int) -> int:
    if isinstance(error, Throttled) and error.retry_after_s is not None:
        return min(int(error.retry_after_s * 1000), LONGEST_PAUSE_MS)
    return int(min(1_000 * 2 ** min(calls, 10), LONGEST_PAUSE_MS))


def grant_of(spec: FleetSpec, capacity: CapacityClass) -> Grant:
    """Say what the machines of a fleet are trusted with, and what they must be at least."""
    trusted = [tool.name for tool in capacity.toolchains if tool.name.startswith("trusted.")]
    return Grant(
        trust=capacity.trust,
        pool=spec.pool,
        labels=dict(capacity.labels),
        trusted=tuple(trusted),
        isolation=(Isolation(capacity.isolation.value),),
        expects=Expectation(
            platform=capacity.platform,
            architecture=capacity.architecture,
            cpu=capacity.resources.cpu,
            memory=capacity.resources.memory,
            gpus=capacity.equipment.gpus or (),
        ),
    )


def _line(row: Row) -> str:
    said = row["failure"] or row["detail"]
    return f"{row['state']}{f': {said}' if said else ''}"


_PHASES: Final = (
    ("fleet.bootstrap", COMING - {CapacityInstanceState.ENROLLING}, "running_at", "enrolled_at"),
    ("fleet.admit", COMING, "enrolled_at", "healthy_at"),
    ("fleet.drain", {CapacityInstanceState.DRAINING}, "drained_at", "ending_at"),
)
"""What a phase is called, where a machine was before it ended, when it begins and ends."""
_SPANS: Final = {
    Act.PROVISION: "fleet.provision",
    Act.LOOK: "fleet.inspect",
    Act.TERMINATE: "fleet.terminate",
}
