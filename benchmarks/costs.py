"""What workflows cost, counted in their real histories: events, billable actions, bytes."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client

from activities import contracts

BILLED = (
    "WORKFLOW_EXECUTION_STARTED",
    "WORKFLOW_EXECUTION_SIGNALED",
    "ACTIVITY_TASK_SCHEDULED",
    "TIMER_STARTED",
    "UPSERT_WORKFLOW_SEARCH_ATTRIBUTES",
    "START_CHILD_WORKFLOW_EXECUTION_INITIATED",
)
"""A child's start counts twice, with the parent and with itself: rather too much than too little"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What some events cost."""

    events: int
    actions: int
    kilobytes: float
    kinds: Counter[str]

    @classmethod
    def of(cls, events: Iterable[HistoryEvent]) -> "Cost":
        """Count events."""
        listed = list(events)
        kinds = Counter(
            EventType.Name(event.event_type).removeprefix("EVENT_TYPE_") for event in listed
        )
        return cls(
            events=len(listed),
            actions=sum(kinds[kind] for kind in BILLED),
            kilobytes=sum(event.ByteSize() for event in listed) / 1000,
            kinds=kinds,
        )


async def history(
    client: Client, workflow_id: str, run_id: str | None = None
) -> list[HistoryEvent]:
    """Read the events of one run of a workflow, the newest unless one is named."""
    handle = client.get_workflow_handle(workflow_id, run_id=run_id)
    return list((await handle.fetch_history()).events)


async def loop_history(client: Client, partition: str) -> list[HistoryEvent]:
    """Read what the scheduler loop did, through all its runs, the newest run first."""
    workflow_id, run_id, events = contracts.loop_workflow_id(partition), None, list[HistoryEvent]()
    while True:
        run = await history(client, workflow_id, run_id)
        events += run
        run_id = run[0].workflow_execution_started_event_attributes.continued_execution_run_id
        if not run_id:
            return events


def between(events: Iterable[HistoryEvent], begin_ms: int, end_ms: int) -> list[HistoryEvent]:
    """Keep the events of a stretch of time."""
    return [event for event in events if begin_ms <= event.event_time.ToMilliseconds() <= end_ms]


def children(events: Iterable[HistoryEvent]) -> Sequence[str]:
    """Name the workflows that these events started as children."""
    return [
        event.start_child_workflow_execution_initiated_event_attributes.workflow_id
        for event in events
        if event.HasField("start_child_workflow_execution_initiated_event_attributes")
    ]


async def of_scheduling(client: Client, partition: str, begin_ms: int, end_ms: int) -> Cost:
    """Count wakes, the loop's own doings and its cycles of a stretch of time."""
    loop = between(await loop_history(client, partition), begin_ms, end_ms)
    cycles = [event for each in children(loop) for event in await history(client, each)]
    return Cost.of([*loop, *cycles])
