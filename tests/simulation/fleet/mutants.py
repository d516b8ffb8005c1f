"""The product without one of its safeguards. The simulation of fleets must find every one out."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import sqlalchemy as sa

from forgeyard.fleet import lifecycle
from forgeyard.fleet.lifecycle import Act, Facts, Pace, Verdict
from forgeyard.fleet.ports import Listing
from forgeyard.fleet.view import USABLE
from forgeyard.model.capacity import CapacityInstanceState, MachineState, OperationState
from forgeyard.store import (
    fleet_decisions,
    fleet_reading,
    fleet_tables,
    machine_life,
    machines,
    sightings,
)
from forgeyard.store.changes import Row

S = CapacityInstanceState
_instances = fleet_tables.capacity_instances


@contextmanager
def without_inspection() -> Iterator[None]:
    """Ask for a machine again as soon as no answer came."""
    judge = lifecycle._JUDGES[S.PROVISIONING]

    def eager(facts: Facts, pace: Pace, now: int) -> Verdict:
        if facts.operation is OperationState.UNKNOWN and now >= facts.next_at:
            return Verdict(act=Act.PROVISION)
        return judge(facts, pace, now)

    with patch.dict(lifecycle._JUDGES, {S.PROVISIONING: eager}):
        yield


@contextmanager
def without_stable_key() -> Iterator[None]:
    """Ask under another key each time."""
    key = machines.operation_key

    def other(row: Row) -> str:
        return f"{key(row)}-{row['calls']}"

    with patch.object(machines, "operation_key", other):
        yield


@contextmanager
def with_one_sighting() -> Iterator[None]:
    """Believe a provider that says nothing of a machine once."""

    def absent(facts: Facts, _pace: Pace, _now: int) -> bool:
        return facts.machine is MachineState.GONE or facts.sightings >= 1

    with patch.object(lifecycle, "_is_absent", absent):
        yield


@contextmanager
def with_listings_believed() -> Iterator[None]:
    """Take for gone what a listing does not name."""
    observe = sightings.observe

    def believe(
        connection: sa.Connection, provider: str, installation: str, listing: Listing, *, now: int
    ) -> Any:
        seen = observe(connection, provider, installation, listing, now=now)
        gone = sa.update(_instances).where(
            _instances.c.provider == provider,
            _instances.c.state == S.HEALTHY.value,
            _instances.c.missing_since.is_not(None),
        )
        connection.execute(gone.values(machine=MachineState.GONE.value))
        return seen

    with patch.object(sightings, "observe", believe):
        yield


@contextmanager
def without_drain() -> Iterator[None]:
    """End machines at once, whatever runs on them."""

    def at_once(_facts: Facts, _pace: Pace, _now: int) -> Verdict:
        return Verdict(to=S.TERMINATING, reason="at once")

    with (
        patch.dict(lifecycle._JUDGES, {S.DRAINING: at_once}),
        patch.object(machine_life, "_part", lambda *_arguments, **_named: True),
    ):
        yield


@contextmanager
def without_version() -> Iterator[None]:
    """Carry out decisions however old they are."""
    with patch.object(fleet_decisions, "_take_turn", lambda *_arguments, **_named: None):
        yield


@contextmanager
def with_only_usable_counted() -> Iterator[None]:
    """Count against the maximum only what is of use, and not what may exist."""
    query = fleet_reading._INSTANCES.where(_instances.c.state.in_([one.value for one in USABLE]))

    def room(connection: sa.Connection, view: Any) -> int:
        usable = sum(one.state in USABLE for one in view.instances)
        return max(0, int(view.spec.scaling.max) - usable)

    with ExitStack() as stack:
        stack.enter_context(patch.object(fleet_reading, "_INSTANCES", query))
        stack.enter_context(patch.object(fleet_decisions, "_room", room))
        yield


@contextmanager
def without_proof() -> Iterator[None]:
    """End whatever has our tags and that no living row speaks of."""
    with (
        patch.object(sightings, "_is_proved", lambda *_arguments: True),
        patch.object(sightings, "ORPHAN_GRACE_MS", 0),
    ):
        yield


MUTANTS: tuple[Callable[[], Any], ...] = (
    without_inspection,
    without_stable_key,
    with_one_sighting,
    with_listings_believed,
    without_drain,
    without_version,
    with_only_usable_counted,
    without_proof,
)
