"""What holds a job back whatever runners there are: a pause, a quota, a key that another job has.

Checked before a runner is looked for, and again at commit on rows that are locked. A gate costs a
job nothing but time; nothing is dropped.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Protocol

from forgeyard.model.units import Resources
from forgeyard.scheduler.scopes import POOL, ROOT, SchedulingScope


class GateCode(StrEnum):
    """What sort of gate is shut."""

    QUEUE_PAUSED = "queue_paused"
    KEY_HELD = "key_held"
    QUOTA_BLOCKED = "quota_blocked"
    BACKPRESSURE = "backpressure"


class Claimant(Protocol):
    """Who wants to pass: a job of a snapshot, or of a plan that is committed."""

    @property
    def name(self) -> str:
        """Tell its name."""
        ...

    @property
    def scopes(self) -> tuple[str, ...]:
        """List the scopes that it belongs to, outermost first."""
        ...

    @property
    def resources(self) -> Resources:
        """Tell what it would hold."""
        ...

    @property
    def keys(self) -> tuple[str, ...]:
        """List its exclusivity keys."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A shut gate: what is shut, and why, as the end of a sentence."""

    code: GateCode
    subject: str
    """The name of the scope or key."""
    text: str


class Gates:
    """The gates of one cycle; each job that passes is counted."""

    def __init__(self, scopes: Mapping[str, SchedulingScope], keys: Mapping[str, str]) -> None:
        self._limiting = {name: scope for name, scope in scopes.items() if scope.is_limiting}
        self._used = {name: scope.used for name, scope in scopes.items()}
        self._keys = dict(keys)
        pools = (scope for scope in self._limiting.values() if scope.kind == POOL)
        self._pools = sorted(pools, key=attrgetter("scope_id"))

    def against(self, job: Claimant) -> Gate | None:
        """Find the first gate that is shut to a job, or nothing."""
        return self._gate(job, bursting=0)

    def against_bursting(self, job: Claimant) -> Gate | None:
        """Find what is shut to a job even if it may use what nobody else wants."""
        return self._gate(job, bursting=1)

    def pools_against(self, job: Claimant) -> dict[str, Gate]:
        """List the runner pools that are shut to a job, each with its gate (QUO-006)."""
        return self._shut_pools(job, bursting=0)

    def pools_against_bursting(self, job: Claimant) -> dict[str, Gate]:
        """List the pools that are shut even if it may use what nobody else wants."""
        return self._shut_pools(job, bursting=1)

    def admit(self, job: Claimant, pool_id: str = "") -> None:
        """Count a job that was placed in a pool, and give it its keys."""
        for scope_id in (ROOT, *job.scopes, pool_id):
            if scope_id in self._limiting:
                self._used[scope_id] = self._used[scope_id].plus(job.resources)
        for key in job.keys:
            self._keys[key] = job.name

    def _gate(self, job: Claimant, *, bursting: int) -> Gate | None:
        """Look for a pause, then for a key, then for a quota."""
        full: Gate | None = None
        for scope_id in (ROOT, *job.scopes):
            scope = self._limiting.get(scope_id)
            if scope is None:
                continue
            if scope.paused:
                return _paused(scope)
            full = full or self._full(job, scope, bursting=bursting)
        return self._held(job) or full

    def _held(self, job: Claimant) -> Gate | None:
        for key in job.keys:
            if key in self._keys:
                text = f"job {self._keys[key]} holds the key {key}"
                return Gate(code=GateCode.KEY_HELD, subject=key, text=text)
        return None

    def _shut_pools(self, job: Claimant, *, bursting: int) -> dict[str, Gate]:
        shut = (
            (
                pool.scope_id,
                _paused(pool) if pool.paused else self._full(job, pool, bursting=bursting),
            )
            for pool in self._pools
        )
        return {scope_id: gate for scope_id, gate in shut if gate is not None}

    def _full(self, job: Claimant, scope: SchedulingScope, *, bursting: int) -> Gate | None:
        quota, used = scope.quota, self._used[scope.scope_id]
        over = quota.excess(used, job.resources, burst=bursting * quota.burst_percent)
        if over is None:
            return None
        text = f"{scope.kind} {scope.name} has used up its quota of {over}"
        return Gate(code=GateCode.QUOTA_BLOCKED, subject=scope.name, text=text)


def _paused(scope: SchedulingScope) -> Gate:
    note = f": {scope.note}" if scope.note else ""
    text = f"{scope.kind} {scope.name} is paused{note}"
    return Gate(code=GateCode.QUEUE_PAUSED, subject=scope.name, text=text)
