"""What holds a job back whatever runners there are: a pause, a quota, a key that another job has.

Checked before a runner is looked for, and again at commit on rows that are locked. A gate costs a
job nothing but time; nothing is dropped.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from forgeyard.model.units import Resources
from forgeyard.scheduler.scopes import ROOT, SchedulingScope, Usage


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
        self._scopes = scopes
        self._used = {name: scope.used for name, scope in scopes.items()}
        self._keys = dict(keys)

    def against(self, job: Claimant) -> Gate | None:
        """Find the first gate that is shut to a job, or nothing."""
        return self._paused(job) or self._held(job) or self._full(job, bursting=0)

    def against_bursting(self, job: Claimant) -> Gate | None:
        """Find what is shut to a job even if it may use what nobody else wants."""
        return self._paused(job) or self._held(job) or self._full(job, bursting=1)

    def admit(self, job: Claimant) -> None:
        """Count a job that was placed, and give it its keys."""
        for scope_id in (ROOT, *job.scopes):
            self._used[scope_id] = self._used.get(scope_id, Usage()).plus(job.resources)
        self._keys.update(dict.fromkeys(job.keys, job.name))

    def _paused(self, job: Claimant) -> Gate | None:
        for scope in self._limiting(job):
            if scope.paused:
                note = f": {scope.note}" if scope.note else ""
                text = f"{scope.kind} {scope.name} is paused{note}"
                return Gate(code=GateCode.QUEUE_PAUSED, subject=scope.name, text=text)
        return None

    def _held(self, job: Claimant) -> Gate | None:
        for key in job.keys:
            if key in self._keys:
                text = f"job {self._keys[key]} holds the key {key}"
                return Gate(code=GateCode.KEY_HELD, subject=key, text=text)
        return None

    def _full(self, job: Claimant, *, bursting: int) -> Gate | None:
        for scope in self._limiting(job):
            usage = self._used.get(scope.scope_id, Usage()).plus(job.resources)
            over = scope.quota.excess(usage, burst=bursting * scope.quota.burst_percent)
            if over is not None:
                text = f"{scope.kind} {scope.name} has used up its quota of {over}"
                return Gate(code=GateCode.QUOTA_BLOCKED, subject=scope.name, text=text)
        return None

    def _limiting(self, job: Claimant) -> list[SchedulingScope]:
        return [self._scopes[name] for name in (ROOT, *job.scopes) if name in self._scopes]
