"""Names and shapes that workflows, activities and the relay agree on.

Workflows import this module and nothing else from `activities`, so replaying a
workflow never loads SQLAlchemy or a cloud SDK. Only ids and counts travel.
"""

from dataclasses import dataclass
from typing import Final

from temporalio import activity
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

TASK_QUEUE: Final = "forgeyard"

ATTEMPT_LEASE: Final = "AttemptLease"
SCHEDULER_LOOP: Final = "SchedulerLoop"
SCHEDULING_CYCLE: Final = "SchedulingCycle"
UPKEEP: Final = "Upkeep"
FLEET_RECONCILE: Final = "FleetReconcile"
CAPACITY_INSTANCE: Final = "CapacityInstance"

WAKE: Final = "wake"
ATTEMPT_EVENT: Final = "event"
POKE: Final = "poke"
COMMAND: Final = "command"

LEASE_GRANTED: Final = "lease.granted"
ATTEMPT_FINISHED: Final = "attempt.finished"

KIND: Final = SearchAttributeKey.for_keyword("FyKind")
STATE: Final = SearchAttributeKey.for_keyword("FyState")
JOB: Final = SearchAttributeKey.for_keyword("FyJob")
RUNNER: Final = SearchAttributeKey.for_keyword("FyRunner")
SEARCH_ATTRIBUTES: Final = (KIND, STATE, JOB, RUNNER)

KIND_ATTEMPT: Final = "attempt"
KIND_CYCLE: Final = "cycle"
KIND_LOOP: Final = "loop"
KIND_UPKEEP: Final = "upkeep"
KIND_FLEET: Final = "fleet"
KIND_INSTANCE: Final = "instance"


def attributes(kind: str, *more: SearchAttributePair[str]) -> TypedSearchAttributes:
    """Make a workflow findable by its kind and whatever else it is about."""
    return TypedSearchAttributes((SearchAttributePair(KIND, kind), *more))


def attempt_workflow_id(job_id: str, number: int, era: int = 0) -> str:
    """Name the workflow of one attempt.

    A restored store counts attempts that a lost future has counted already: its era tells them
    apart.
    """
    return f"attempt/{job_id}/{number}/{era}" if era else f"attempt/{job_id}/{number}"


def loop_workflow_id(partition: str) -> str:
    """Name the scheduler loop of a partition."""
    return f"scheduler/{partition}"


def cycle_workflow_id(partition: str, number: int) -> str:
    """Name one cycle of a loop; the number repeats after a reset, so never use it as a key."""
    return f"scheduler/{partition}/cycle/{number}"


def upkeep_workflow_id(partition: str) -> str:
    """Name the upkeep of a partition."""
    return f"upkeep/{partition}"


def provider_queue(queue: str) -> str:
    """Name the queue of what calls providers, beside the queue of everything else."""
    return f"{queue}-provider"


def fleet_workflow_id(fleet_id: str) -> str:
    """Name the reconciler of a fleet."""
    return f"fleet/{fleet_id}"


def instance_workflow_id(instance_id: str) -> str:
    """Name the workflow of one machine."""
    return f"instance/{instance_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A scheduling domain."""

    partition: str
    mark: str = ""
    """The newest mark of the store that the asker knows; see `forgeyard.store.lineage`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wake:
    """Something changed that could let a job be placed; the newest generation counts."""

    generation: int
    reason: str = ""
    mark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CyclePlan:
    """What a plan found and decided; the decisions themselves stay in SQL under `cycle_id`."""

    cycle_id: int
    eligible: int
    runners: int
    planned: int
    full: bool = False
    """The batch was full, so another cycle may place more."""
    parked: int = 0
    """How many of the eligible jobs belong to classes that no runner can ever serve."""
    more: bool = False
    """Classes were parked and jobs not looked at yet, so another cycle may place more."""
    wake_in_ms: int = 0
    """In so long a reason ends that passes by itself; 0 is never."""
    mark: str = ""
    held: str = ""
    """Why nothing was planned at all: the store may be an older one that was put back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """A planned cycle."""

    cycle_id: int
    partition: str
    mark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleCommit:
    """How many decisions became leases, and how many jobs are still waiting."""

    granted: int
    refused: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleSummary:
    """What a cycle achieved, for the loop and for the reader of the UI."""

    cycle_id: int
    eligible: int
    planned: int
    granted: int
    full: bool = False
    parked: int = 0
    more: bool = False
    wake_in_ms: int = 0
    mark: str = ""
    held: str = ""

    @property
    def hopeful(self) -> int:
        """Count the eligible jobs that waiting may help."""
        return self.eligible - self.parked


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopState:
    """What a scheduler loop carries from one run of its workflow to the next."""

    partition: str
    cycle: int = 0
    """The number of the last cycle that was started."""
    handled: int = 0
    """The generation of the wake that was acted on last."""
    newest: Wake | None = None
    """A wake that came in and was not acted on yet."""
    wait_ms: int = 0
    """How long to wait for a wake before looking again; a fresh loop looks at once."""
    fruitless: int = 0
    """Cycles in a row that granted nothing although jobs were waiting, or that failed."""
    lost: int = 0
    """Cycles in a row that planned placements, none of which the commit found room for."""
    last: CycleSummary | None = None
    failure: str = ""
    mark: str = ""
    """Of the store, as it was last heard: a store that does not know it is an older one."""
    rounds_per_run: int = 100
    """Looks after which it continues as new, if its history is not long before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepState:
    """What upkeep carries from one run of its workflow to the next."""

    partition: str
    period_ms: int = 2_000
    rounds: int = 0
    """Rounds since it was first started."""
    forgot_ms: int = 0
    """When retention was applied last, by the workflow's clock; 0 is never."""
    mark: str = ""
    rounds_per_run: int = 100
    reconciled_ms: int = 0
    """When a reconciliation was last begun, by the workflow's clock; 0 is never."""
    reconcile_every_ms: int = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Relayed:
    """How many events a relay delivered."""

    delivered: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStart:
    """Whom an AttemptLease is about; everything that changes is read from SQL.

    Told how long the attempt can last, in milliseconds, it reads no sooner; at 0 it reads at once.
    """

    attempt_id: str
    job_id: str
    number: int
    job_name: str
    run_name: str
    runner_name: str
    backstop_ms: int = 0
    era: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEvent:
    """A fact about an attempt; duplicates are recognised by `event_id`."""

    event_id: str
    kind: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt."""

    attempt_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView:
    """An attempt as SQL has it now; in `backstop_ms` its last deadline will have passed."""

    state: str
    ended: bool
    settled: bool
    backstop_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What settling decided: the states of attempt and job afterwards, in one readable line."""

    attempt_state: str
    job_state: str
    decision: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSummary:
    """What one sweep did, by kind of deadline."""

    expired: int
    due: int
    settled: int
    relayed: int
    repaired: int
    alert: str = ""
    period_ms: int = 0
    """The pause until the next sweep that the policy in force wants; 0 leaves it as it is."""
    mark: str = ""
    more: bool = False
    """Leases are left that have lapsed: the next sweep begins at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileSummary:
    """How many contradictions were repaired, how many only reported, how many neither."""

    repaired: int
    reported: int
    failed: int
    first: str = ""
    """One that was not repaired, or one that was, as people read it."""
    period_ms: int = 0
    """The pause until the next one that the policy in force wants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """What retention deleted."""

    logs: int
    artifacts: int
    blobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """A fleet, and the partition whose jobs it serves."""

    fleet_id: str
    partition: str
    name: str = ""
    """For those who read the list of workflows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCommand:
    """What a person asks of a fleet, from wherever; the actor is what he says he is."""

    action: str
    """`activate`, `freeze`, `scale_up_only`, `drain` or `scale`."""
    reason: str
    actor: str = "temporal"
    count: int = 0
    """How many machines there shall be, where the fleet is scaled."""
    for_ms: int = 0
    """For how long; 0 is as long as overrides last if nobody says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOrder:
    """A command for one fleet; carried out once, however often it comes."""

    fleet_id: str
    command: FleetCommand


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """What came of a command, in one line."""

    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetState:
    """What a reconciler carries from one run of its workflow to the next."""

    fleet: Fleet
    rounds: int = 0
    rounds_per_run: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine to look after, and the name of its runner for those who read lists."""

    instance_id: str
    runner_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTick:
    """What one look at a fleet came to."""

    gone: bool = False
    """It was deleted, and nothing of it is left."""
    wanted: int = 0
    usable: int = 0
    launched: int = 0
    drained: int = 0
    state: str = ""
    health: str = ""
    line: str = ""
    """The decision, as people read it."""
    untended: tuple[Machine, ...] = ()
    """Machines that need a look and have nobody who is about to."""
    rollout_id: str = ""
    """Of one that nobody looks after."""
    image: str = ""
    """That is rolled out there."""
    is_observing_due: bool = False
    """Whether it is time to look at all that its provider has."""
    wait_ms: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What a look at a provider showed, or why nobody looked."""

    machines: int = 0
    orphans: int = 0
    interrupted: int = 0
    news: int = 0
    """Machines that somebody has to look after at once."""
    skipped: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceState:
    """What the workflow of a machine carries from one run to the next."""

    machine: Machine
    rounds_per_run: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Advanced:
    """Where a machine stands, and how long nothing is to be done about it."""

    state: str
    ended: bool
    wait_ms: int
    line: str = ""


@activity.defn(name="fleet.tick")
def tick_fleet(request: Fleet) -> FleetTick:
    """Decide about a fleet, and make the decision real in SQL."""
    raise NotImplementedError(request)


@activity.defn(name="fleet.observe")
def observe_fleet(request: Fleet) -> Observed:
    """Look at what the provider of a fleet has, and hear what it announces."""
    raise NotImplementedError(request)


@activity.defn(name="fleet.command")
def command_fleet(request: FleetOrder) -> Ordered:
    """Carry out what a person asks of a fleet."""
    raise NotImplementedError(request)


@activity.defn(name="instance.advance")
def advance_instance(request: Machine) -> Advanced:
    """Take a machine one step on its way, looking before anything is asked for again."""
    raise NotImplementedError(request)


@activity.defn(name="cycle.pending")
def is_pending(request: Partition) -> bool:
    """Tell whether any job could be placed, without planning."""
    raise NotImplementedError(request)


@activity.defn(name="cycle.plan")
def plan_cycle(request: Partition) -> CyclePlan:
    """Decide placements from a snapshot and store them."""
    raise NotImplementedError(request)


@activity.defn(name="cycle.commit")
def commit_cycle(request: Cycle) -> CycleCommit:
    """Turn the stored decisions into leases."""
    raise NotImplementedError(request)


@activity.defn(name="outbox.relay")
async def relay_outbox(request: Partition) -> Relayed:
    """Send undelivered events to their workflows."""
    raise NotImplementedError(request)


@activity.defn(name="attempt.read")
def read_attempt(request: Attempt) -> AttemptView:
    """Read an attempt, applying any of its deadlines that has passed."""
    raise NotImplementedError(request)


@activity.defn(name="attempt.settle")
async def settle_attempt(request: Attempt) -> Settled:
    """Confirm how an attempt ended and decide on another try."""
    raise NotImplementedError(request)


@activity.defn(name="upkeep.sweep")
async def sweep(request: Partition) -> SweepSummary:
    """Enforce every deadline that has passed, repair what crashes left behind, send stragglers."""
    raise NotImplementedError(request)


@activity.defn(name="upkeep.reconcile")
async def reconcile(request: Partition) -> ReconcileSummary:
    """Compare what must agree, repair what can be repaired, report the rest."""
    raise NotImplementedError(request)


@activity.defn(name="upkeep.ensure_loop")
async def ensure_loop(request: Partition) -> bool:
    """Start the scheduler loop unless it lives; tell whether it had to."""
    raise NotImplementedError(request)


@activity.defn(name="upkeep.forget")
def forget(request: Partition) -> Forgotten:
    """Delete logs, artifacts and blobs that retention does not keep any longer."""
    raise NotImplementedError(request)
