"""The planner as one would first write it: every job against every runner, from scratch.

The oracle of the tests and the reference of `benchmarks.placement`. It lives here because the
product never runs it, and because tests may import benchmarks while benchmarks import no tests.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from forgeyard.model.policy import SchedulingPolicy
from forgeyard.model.units import Resources
from forgeyard.scheduler.avoidance import nearness_to_losses
from forgeyard.scheduler.devices import Held, allocate, plus
from forgeyard.scheduler.diagnose import Diagnosis, diagnose, gated
from forgeyard.scheduler.eligibility import can_ever_run, is_eligible
from forgeyard.scheduler.gates import Gate, GateCode, Gates
from forgeyard.scheduler.order import sort_key
from forgeyard.scheduler.place import Decision
from forgeyard.scheduler.scene import Scene
from forgeyard.scheduler.score import TERMS, PlacementScore, score, tie_break
from forgeyard.scheduler.snapshot import SchedulingJob, Snapshot

Ranked = list[tuple[int, int, int, str, PlacementScore]]
"""Nearness to losses, score below zero, tie break, runner id: the best comes first."""


@dataclass(kw_only=True)
class NaivePlanner:
    """Plans one cycle, and counts what makes a faster planner hard to get right."""

    snapshot: Snapshot
    policy: SchedulingPolicy
    decisions: list[Decision] = field(default_factory=list[Decision])
    blocked: list[SchedulingJob] = field(default_factory=list[SchedulingJob])
    held: list[tuple[SchedulingJob, Gate]] = field(default_factory=list[tuple[SchedulingJob, Gate]])
    lent: int = 0
    """Jobs beyond their quota that got what nobody else could use."""
    spilled: int = 0
    """Jobs that got what the owner of a reserved pool left idle."""
    used_a_hold: int = 0
    """Jobs on runners where room was held, for them or for others."""
    pooled: int = 0
    """Times a job was kept from the only runners that had room, for their pool was shut."""
    ties: int = 0
    """Decisions between runners of one score."""
    stale: int = 0
    """Decisions that scores from the beginning of the cycle would have got wrong."""
    devices_short: int = 0
    """Decisions against a runner whose devices went to a job before, in the same cycle."""
    avoided: int = 0
    """Decisions that losses turned away from another runner."""
    forced: int = 0
    """Decisions for a runner near to a loss, for want of another."""
    passed_over: int = 0
    """Decisions in which a better runner was not compared."""
    decided: Counter[str] = field(default_factory=Counter[str])
    """Decisions that would have been others without a term of the score."""

    def __post_init__(self) -> None:
        self._runners = {runner.runner_id: runner for runner in self.snapshot.runners}
        self._before = {name: runner.free for name, runner in self._runners.items()}
        self.free = dict(self._before)
        self._held_before = {name: it.held_devices for name, it in self._runners.items()}
        self.holdings = dict(self._held_before)
        self._holds = list(self.snapshot.held_room)
        self.scene = Scene(self.snapshot, self.policy)

    def run(self, *, watched: bool = False) -> "NaivePlanner":
        """Place as many of the first jobs as fit; stale scores are counted where it is watched."""
        turns = NaiveTurns(self.snapshot, self.policy)
        gates = Gates(self.snapshot.scopes, self.snapshot.keys)
        for job in turns:
            if len(self.decisions) >= self.policy.batch:
                break
            job = self.scene.kin.bind(job)
            gate = gates.against(job)
            if gate is not None:
                self.held.append((job, gate))
                continue
            shut = gates.pools_against(job)
            every = self._past(self._rank(job, self.free, self.holdings), shut)
            ranked = self._compared(every)
            if watched and ranked:
                self._watch(job, ranked, every, shut)
            if self._decide(job, ranked, shut):
                turns.charge(job)
                gates.admit(job, self._pool_of(ranked[0][3]))
        self._lend(gates)
        return self

    def _lend(self, gates: Gates) -> None:
        """Give what is left to jobs that may burst."""
        held, self.held = self.held, []
        for job, gate in held:
            may = gate.code is GateCode.QUOTA_BLOCKED and gates.against_bursting(job) is None
            if len(self.decisions) >= self.policy.batch or not may:
                self.held.append((job, gate))
                continue
            job = self.scene.kin.bind(job)
            shut = gates.pools_against_bursting(job)
            ranked = self._compared(self._past(self._rank(job, self.free, self.holdings), shut))
            if self._decide(job, ranked, shut):
                self.lent += 1
                gates.admit(job, self._pool_of(ranked[0][3]))
        self._spill(gates)

    def _spill(self, gates: Gates) -> None:
        """Give what is left of kept pools to others, unless their owner waits for it."""
        pools = {it.pool.pool_id: it.pool for it in self.snapshot.runners if it.pool.spillover}
        lent = frozenset(
            name
            for name, pool in pools.items()
            if not any(
                pool.owner_id in job.scopes and runner.pool == pool and can_ever_run(job, runner)
                for job in self.blocked
                for runner in self.snapshot.runners
            )
        )
        if not lent:
            return
        blocked, self.blocked = self.blocked, []
        for waiting in blocked:
            job = self.scene.kin.bind(waiting)
            full = len(self.decisions) >= self.policy.batch
            if full or gates.against_bursting(job) is not None:
                self.blocked.append(job)
                continue
            shut = gates.pools_against_bursting(job)
            behind = self._rank(job, self.free, self.holdings, lent=lent)
            ranked = self._compared(self._past(behind, shut))
            if self._decide(job, ranked, shut, lent=lent):
                self.spilled += 1
                gates.admit(job, self._pool_of(ranked[0][3]))

    def diagnoses(self) -> tuple[Diagnosis, ...]:
        """Judge each blocked job against each runner."""
        return (
            *(
                diagnose(job, self.snapshot.runners, self._unheld(), held=self.holdings)
                for job in self.blocked
            ),
            *(gated(job, gate) for job, gate in self.held),
        )

    def _unheld(self) -> dict[str, Resources]:
        """Tell what is left for a job that may use no held room."""
        free = dict(self.free)
        for hold in self._holds:
            if hold.runner_id in free:
                free[hold.runner_id] = free[hold.runner_id].minus(hold.room)
        return free

    def _rank(
        self,
        job: SchedulingJob,
        free: dict[str, Resources],
        held: dict[str, Held],
        *,
        lent: frozenset[str] = frozenset(),
    ) -> Ranked:
        ranked: Ranked = []
        for name, runner in self._runners.items():
            left = self._usable(job, name, free[name])
            if is_eligible(job, runner, free=left, held=held[name], lent=lent):
                judged = score(job, runner, left, self.scene)
                near = nearness_to_losses(job, runner, self.scene)
                ranked.append((near, -judged.weighed, tie_break(job.job_id, name), name, judged))
        return sorted(ranked, key=lambda one: one[:3])

    def _compared(self, ranked: Ranked) -> Ranked:
        """Keep those that are compared with the first at all."""
        group = [one for one in ranked if one[0] == ranked[0][0]]
        most = self.policy.score_at_most or len(group)
        seen = sorted(group, key=lambda one: one[2])[:most]
        self.passed_over += bool(seen) and group[0] not in seen
        return sorted(seen, key=lambda one: one[:3])

    def _watch(
        self, job: SchedulingJob, ranked: Ranked, every: Ranked, shut: Mapping[str, Gate]
    ) -> None:
        """Count what decided."""
        before = self._compared(self._past(self._rank(job, self._before, self._held_before), shut))
        self.stale += before[0][3] != ranked[0][3]
        self.devices_short += len(self._rank(job, self.free, self._held_before)) > len(
            self._rank(job, self.free, self.holdings)
        )
        self.forced += ranked[0][0] > 0
        self.avoided += ranked[0][0] == 0 and every[-1][0] > 0
        weights = self.scene.weights(job)
        for name in TERMS:
            weight = getattr(weights, name)
            without = min((one[1] + weight * getattr(one[4], name), one[2:4]) for one in ranked)
            self.decided[name] += without[1][1] != ranked[0][3]

    def _usable(self, job: SchedulingJob, name: str, free: Resources) -> Resources:
        """Leave alone what is held for others, unless the job is over before that is due."""
        for hold in self._holds:
            over_in_time = self.snapshot.taken_at + job.lasts <= hold.deadline
            may = hold.job_id == job.job_id or (hold.kind == "backfill" and over_in_time)
            if hold.runner_id == name and not may:
                free = free.minus(hold.room)
        return free

    def _pool_of(self, runner_id: str) -> str:
        return self._runners[runner_id].pool_id

    def _past(self, ranked: Ranked, shut: Mapping[str, Gate]) -> Ranked:
        """Keep the runners whose pool is not shut."""
        return [one for one in ranked if self._pool_of(one[3]) not in shut]

    def _decide(
        self,
        job: SchedulingJob,
        ranked: Ranked,
        shut: Mapping[str, Gate],
        *,
        lent: frozenset[str] = frozenset(),
    ) -> bool:
        if not ranked:
            behind = self._compared(self._rank(job, self.free, self.holdings, lent=lent))
            if behind:
                self.held.append((job, shut[self._pool_of(behind[0][3])]))
                self.pooled += 1
            else:
                self.blocked.append(job)
            return False
        self.ties += len(ranked) > 1 and ranked[0][1] == ranked[1][1]
        best = ranked[: 1 if job.bounds else 1 + self.policy.candidates]
        winner = best[0][3]
        self.scene.kin.place(job, winner)
        self.free[winner] = self.free[winner].minus(job.resources)
        wanted = job.requirements.equipment.device_part
        equipment = self._runners[winner].capabilities.equipment
        shares = allocate(wanted, equipment, self.holdings[winner])
        assert shares is not None
        self.holdings[winner] = plus(self.holdings[winner], shares)
        self.used_a_hold += any(hold.runner_id == winner for hold in self._holds)
        self._holds = [hold for hold in self._holds if hold.job_id != job.job_id]
        candidates = tuple((name, judged.total) for *_, name, judged in best)
        decision = Decision(job_id=job.job_id, candidates=candidates, equipment=wanted)
        self.decisions.append(decision)
        return True


class NaiveTurns:
    """Whose turn it is, looked up among all scopes that still have a job, each time anew."""

    def __init__(self, snapshot: Snapshot, policy: SchedulingPolicy) -> None:
        self._scopes = snapshot.scopes
        self._finish = {name: scope.finish_tag for name, scope in snapshot.scopes.items()}
        self._clock = {name: scope.clock for name, scope in snapshot.scopes.items()}
        now = snapshot.taken_at
        line = sorted(snapshot.jobs, key=lambda job: sort_key(job, policy, now), reverse=True)
        self._urgent = [job for job in line if job.priority == "emergency"]
        self._others = [job for job in line if job.priority != "emergency"]

    def __iter__(self) -> Iterator[SchedulingJob]:
        for line in (self._urgent, self._others):
            queues: dict[tuple[str, ...], list[SchedulingJob]] = {}
            for job in line:
                queues.setdefault(job.scopes, []).append(job)
            while queues:
                path = min(queues, key=lambda path: [(self._finish.get(x, 0), x) for x in path])
                yield queues[path].pop()
                if not queues[path]:
                    del queues[path]

    def charge(self, job: SchedulingJob) -> None:
        """Count a job to its scopes, from the description of start-time fair queueing."""
        amount = max(job.resources.cpu, job.resources.memory // (4 * 2**20), 100)
        for parent, name in zip(("scp_root", *job.scopes), job.scopes, strict=False):
            weight = self._scopes[name].weight if name in self._scopes else 1
            start = max(self._finish.get(name, 0), self._clock.get(parent, 0))
            self._clock[parent] = start
            self._finish[name] = start + amount * 1_000 // weight
