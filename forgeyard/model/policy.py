"""Every number an operator may turn and every rule, in one versioned document (MOD-004, MOD-005).

Durations are milliseconds. What stands beside a number is for `policy_document`, which holds a
document from outside to it; code and tests may build any policy they like.
"""

import hashlib
import json
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Annotated

from annotated_types import MaxLen

from forgeyard.model.rules import BUILT_IN_RULES, MAX_RULES, PolicyRule, Words
from forgeyard.model.units import Millis

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000


@dataclass(frozen=True, slots=True)
class Setting:
    """What a number means, and the range that an operator may choose from."""

    least: int
    most: int
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasePolicy:
    """Deadlines of the lease protocol (DESIGN: offer 30 s, execution 60 s, renewal 15 s)."""

    offer_ttl: Annotated[
        Millis, Setting(SECOND, HOUR, "how long a runner may take to accept an offer")
    ] = Millis(30_000)
    execution_ttl: Annotated[
        Millis, Setting(SECOND, HOUR, "how long a lease lives without being renewed")
    ] = Millis(60_000)
    renew_every: Annotated[
        Millis, Setting(100, HOUR, "how often agents renew; told to them when they register")
    ] = Millis(15_000)
    connectivity_grace: Annotated[
        Millis, Setting(0, DAY, "how much longer a job may run that cannot reach the server")
    ] = Millis(60_000)
    offline_at_most: Annotated[
        Millis, Setting(0, 30 * DAY, "the longest that a job may ask to run on without the server")
    ] = Millis(0)
    longest_back_off: Annotated[
        Millis, Setting(100, 10 * MINUTE, "the longest pause of an agent between two tries")
    ] = Millis(15_000)
    deadline_slack: Annotated[
        Millis, Setting(0, HOUR, "how much later than the agent the server ends a phase")
    ] = Millis(15_000)
    settle_within: Annotated[
        Millis, Setting(0, HOUR, "after so long an ended attempt is settled by the sweep")
    ] = Millis(10_000)
    session_silence: Annotated[
        Millis, Setting(SECOND, DAY, "a session not heard of for so long is lost")
    ] = Millis(60_000)
    refusal_memory: Annotated[
        Millis, Setting(0, DAY, "how long a runner that refused a job is not asked again")
    ] = Millis(30_000)
    penalty_half_life: Annotated[
        Millis, Setting(MINUTE, 30 * DAY, "how soon half of a runner's losses is forgotten")
    ] = Millis(30 * MINUTE)

    @property
    def longest_offline(self) -> Millis:
        """Tell how long a job may ask to run on without the server: the usual grace anybody may."""
        return max(self.connectivity_grace, self.offline_at_most)

    def grace_of(self, asked: Millis | None) -> Millis:
        """Tell how long a job runs on without the server that asked for so long, or for nothing."""
        return self.connectivity_grace if asked is None else min(asked, self.longest_offline)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPolicy:
    """Limits of the sweep that enforces deadlines."""

    period: Annotated[
        Millis, Setting(100, MINUTE, "the pause between two sweeps for what is due")
    ] = Millis(2_000)
    expiries_per_sweep: Annotated[
        int, Setting(1, 1_000, "how many leases expire in a batch; more at once is an alert")
    ] = 50
    renewal_gap: Annotated[
        Millis,
        Setting(10 * SECOND, HOUR, "so long without renewals is an outage of ours, not of runners"),
    ] = Millis(15_000)
    outbox_age: Annotated[
        Millis, Setting(100, 10 * MINUTE, "after so long the sweep sends what nobody sent")
    ] = Millis(5_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcilePolicy:
    """How often what must agree is compared, and what counts as wrong (RCN-012 to RCN-018)."""

    period: Annotated[
        Millis, Setting(SECOND, DAY, "how often leases, reservations and queues are compared")
    ] = Millis(MINUTE)
    patience: Annotated[
        Millis, Setting(SECOND, DAY, "what passes by itself counts as wrong after so long")
    ] = Millis(MINUTE)
    repairs: Annotated[
        int, Setting(1, 10_000, "how many things one reconciliation repairs; the rest wait")
    ] = 500
    conflicts: Annotated[
        int, Setting(0, 1_000, "cycles that plan for a runner in vain make it suspect; 0: none")
    ] = 5
    conflict_window: Annotated[
        Millis, Setting(SECOND, DAY, "within how long, and how long it is left alone then")
    ] = Millis(5 * MINUTE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreWeights:
    """What the soft scores count for against each other (SCO-003); 0 switches one off."""

    headroom: Annotated[int, Setting(0, 1_000, "what room that stays free on a runner counts")] = 6
    load: Annotated[int, Setting(0, 1_000, "what few jobs side by side on a runner count")] = 3
    packing: Annotated[
        int, Setting(0, 1_000, "what filling up a runner before the next is begun counts")
    ] = 0
    locality: Annotated[
        int, Setting(0, 1_000, "what inputs that a runner has already, or near by, count")
    ] = 6
    cache: Annotated[int, Setting(0, 1_000, "what warm dependency caches count")] = 4
    reliability: Annotated[
        int, Setting(0, 1_000, "what having lost and broken nothing lately counts")
    ] = 8
    fairness: Annotated[
        int, Setting(0, 1_000, "what a pool that is the job's own counts over a shared one")
    ] = 3
    cost: Annotated[int, Setting(0, 1_000, "what being cheaper than the dearest counts")] = 3
    spot: Annotated[
        int, Setting(0, 1_000, "what machines count that stay, or may go, as the job prefers")
    ] = 6
    affinity: Annotated[
        int, Setting(0, 1_000, "what the runner counts where the job last succeeded")
    ] = 2
    spread: Annotated[
        int, Setting(0, 1_000, "what a host, site and region without other shards counts")
    ] = 6
    scarcity: Annotated[
        int, Setting(0, 1_000, "what sparing the rare, which the job does not need, counts")
    ] = 5
    interactive_factor: Annotated[
        int, Setting(1, 10, "how many times load and locality count for interactive jobs")
    ] = 2
    batch_factor: Annotated[int, Setting(1, 10, "how many times cost counts for batch jobs")] = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class AvoidancePolicy:
    """After how many losses a retry goes elsewhere, if it can (RTY-005); 0 is never."""

    runner: Annotated[int, Setting(0, 20, "after so many losses a retry avoids the runners")] = 1
    host: Annotated[int, Setting(0, 20, "after so many losses a retry avoids their hosts")] = 2
    site: Annotated[int, Setting(0, 20, "after so many losses a retry avoids their sites")] = 3
    region: Annotated[int, Setting(0, 20, "after so many losses a retry avoids their regions")] = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StalenessPolicy:
    """How old a capability report may be (ELG-029)."""

    general: Annotated[
        Millis, Setting(0, 365 * DAY, "a runner with an older report gets no work; 0s: any age")
    ] = Millis(0)
    sensitive: Annotated[
        Millis, Setting(0, 365 * DAY, "the same for deploy, signing and restricted trust; 0s: any")
    ] = Millis(30 * DAY)


@dataclass(frozen=True, slots=True, kw_only=True)
class OvercommitPolicy:
    """What jobs may be promised more of than there is: CPU alone, and within bounds (RES-017)."""

    cpu_percent: Annotated[
        int, Setting(100, 400, "how much of its CPU a runner may promise to jobs, in per cent")
    ] = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillPolicy:
    """When a runner is kept for a job that small ones would overtake for ever (FAR-026)."""

    after: Annotated[
        Millis, Setting(0, DAY, "a job that waited for room this long has a runner kept for it")
    ] = Millis(120_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionPolicy:
    """Whether, and how far, running jobs are stopped for urgent ones (PRE-002, PRE-003)."""

    enabled: Annotated[int, Setting(0, 1, "1: restartable jobs may be stopped for urgent ones")] = 0
    least_gap: Annotated[
        int, Setting(1, 400, "how much lower the base priority of a job must be to be stopped")
    ] = 200
    most_victims: Annotated[
        int, Setting(1, 100, "how many jobs may be stopped for a single one")
    ] = 4
    per_cycle: Annotated[int, Setting(1, 100, "for how many jobs a cycle may clear a runner")] = 1
    rest: Annotated[Millis, Setting(0, DAY, "a job that was stopped is left alone for so long")] = (
        Millis(3_600_000)
    )
    patience: Annotated[
        Millis, Setting(SECOND, DAY, "how long a cleared runner is kept for the urgent job")
    ] = Millis(180_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class PressurePolicy:
    """From where on the system counts as under pressure; twice as much is worse (BKP-005)."""

    outbox_lag: Annotated[
        Millis, Setting(100, HOUR, "events wait this long for Temporal: smaller batches")
    ] = Millis(10_000)
    store_latency: Annotated[
        Millis, Setting(100, HOUR, "the database takes this long for a snapshot: smaller batches")
    ] = Millis(2_000)
    queue_depth: Annotated[
        int, Setting(1, 10_000_000, "so many jobs wait: new runs of low priority are turned away")
    ] = 200_000
    saturation: Annotated[
        int, Setting(1, 1_001, "so many thousandths of all slots in use count as saturated")
    ] = 950


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityPolicy:
    """Which priorities may be asked for: low is 0, then by hundreds to emergency, 400 (FAR-007)."""

    free: Annotated[
        int, Setting(0, 400, "the priority up to which anybody may submit; low 0 … emergency 400")
    ] = 300
    elevated: Annotated[
        int, Setting(0, 400, "the priority up to which one may go who gives a reason; audited")
    ] = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPolicy:
    """What is added to the priority of a job for the class that it is in (FAR-017, FAR-024)."""

    interactive: Annotated[int, Setting(-100, 100, "added to jobs that people wait for")] = 0
    normal: Annotated[int, Setting(-100, 100, "added to ordinary jobs")] = 0
    batch: Annotated[int, Setting(-100, 100, "added to jobs that can wait")] = 0
    release: Annotated[int, Setting(-100, 100, "added to jobs of a release")] = 0
    emergency: Annotated[int, Setting(-100, 100, "added to jobs of the class emergency")] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestionPolicy:
    """How requests are suggested; a suggestion is never applied by itself (POL-002)."""

    attempts: Annotated[int, Setting(3, 200, "how many recent attempts a suggestion rests on")] = 20
    margin_percent: Annotated[int, Setting(0, 200, "what is added to what they used")] = 20
    least_cpu_milli: Annotated[
        int, Setting(1, 64_000, "no less is suggested, in thousandths of a core")
    ] = 100
    least_memory_mib: Annotated[int, Setting(1, 2**20, "no less memory is suggested, in MiB")] = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingPolicy:
    """How a cycle orders, scores and limits itself."""

    batch: Annotated[int, Setting(1, 1_000, "how many jobs one cycle places at most")] = 200
    candidates: Annotated[
        int, Setting(0, 20, "how many next-best runners a commit may fall back on")
    ] = 3
    aging_step: Annotated[
        Millis, Setting(SECOND, DAY, "waiting this long raises a job's priority by one point")
    ] = Millis(60_000)
    # One limit for all, so that the oldest wins there and nobody starves. Emergencies stay above.
    aging_limit: Annotated[
        int, Setting(0, 399, "the priority up to which waiting lifts a job; emergencies have 400")
    ] = 399
    cold_start_allowance: Annotated[
        Millis,
        Setting(
            0, DAY, "how long no runner may exist for a job without its queue timeout counting"
        ),
    ] = Millis(0)
    degraded_takes: Annotated[
        int, Setting(-1, 400, "the base priority up to which an unwell runner takes jobs; -1: none")
    ] = 100
    maintenance_lead: Annotated[
        Millis, Setting(0, 30 * DAY, "so long before maintenance a pool takes what ends in time")
    ] = Millis(DAY)
    score_at_most: Annotated[
        int, Setting(0, 1_000_000, "how many able runners are compared for a job; 0 compares all")
    ] = 0
    locality_bytes: Annotated[
        int, Setting(1, 2**50, "inputs of so many bytes make locality count in full")
    ] = 64 * 2**20
    spot_guard: Annotated[
        int, Setting(0, 1, "1 keeps release and signing jobs off machines that may be taken away")
    ] = 1
    priorities: PriorityPolicy = field(default_factory=PriorityPolicy)
    classes: ClassPolicy = field(default_factory=ClassPolicy)
    weights: ScoreWeights = field(default_factory=ScoreWeights)
    overcommit: OvercommitPolicy = field(default_factory=OvercommitPolicy)
    avoid_after: AvoidancePolicy = field(default_factory=AvoidancePolicy)
    backfill: BackfillPolicy = field(default_factory=BackfillPolicy)
    preemption: PreemptionPolicy = field(default_factory=PreemptionPolicy)
    pressure: PressurePolicy = field(default_factory=PressurePolicy)
    lease: LeasePolicy = field(default_factory=LeasePolicy)
    sweep: SweepPolicy = field(default_factory=SweepPolicy)
    reconcile: ReconcilePolicy = field(default_factory=ReconcilePolicy)
    staleness: StalenessPolicy = field(default_factory=StalenessPolicy)
    nameable_pools: Words = ()
    """The pools that a run file may name; `*` is any (ELG-030)."""
    rules: Annotated[tuple[PolicyRule, ...], MaxLen(MAX_RULES)] = BUILT_IN_RULES
    """What jobs must have whatever their authors say; those written replace the built-in ones."""
    suggestions: SuggestionPolicy = field(default_factory=SuggestionPolicy)

    def canonical(self) -> str:
        """Write this policy as the one JSON text that its digest is of."""
        return json.dumps(self, sort_keys=True, separators=(",", ":"), default=_fields_of)

    def digest(self) -> str:
        """Name this very policy, whatever version it has; recorded with every placement."""
        return digest_of(self.canonical())


def _fields_of(part: object) -> dict[str, object]:
    """Open one level for the encoder; a deep copy of everything took longer than writing it."""
    assert is_dataclass(part)
    assert not isinstance(part, type)
    return {each.name: getattr(part, each.name) for each in fields(part)}


def digest_of(text: str) -> str:
    """Name the canonical text of a policy."""
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
