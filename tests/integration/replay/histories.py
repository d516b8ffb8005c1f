"""The recorded histories: where they lie, how they are read, and which commands they hold."""

import json
from pathlib import Path

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory

ROOT = Path(__file__).parents[2] / "histories"
BASELINE = ROOT / "commands.json"
RECORD = "python -m tests.integration.replay.record"
REFRESH = (
    "If the workflow was meant to change, and no run of it is open anywhere, record anew and"
    f" accept: `{RECORD} --accept`, and review the diff of tests/histories/commands.json."
    " Where runs may be open, keep the old path behind `workflow.patched` instead."
)
_DECIDED = (
    "ACTIVITY_TASK_SCHEDULED",
    "ACTIVITY_TASK_CANCEL_REQUESTED",
    "TIMER_STARTED",
    "TIMER_CANCELED",
    "START_CHILD_WORKFLOW_EXECUTION_INITIATED",
    "REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED",
    "SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED",
    "MARKER_RECORDED",
    "UPSERT_WORKFLOW_SEARCH_ATTRIBUTES",
    "WORKFLOW_PROPERTIES_MODIFIED",
    "WORKFLOW_EXECUTION_COMPLETED",
    "WORKFLOW_EXECUTION_FAILED",
    "WORKFLOW_EXECUTION_CANCELED",
    "WORKFLOW_EXECUTION_CONTINUED_AS_NEW",
)


def recorded() -> list[str]:
    """Name the recorded cases, as Type/case."""
    return sorted(f"{path.parent.name}/{path.stem}" for path in ROOT.glob("*/*.json"))


def load(name: str) -> WorkflowHistory:
    """Read a recorded history."""
    return WorkflowHistory.from_json(name, (ROOT / f"{name}.json").read_text())


def baseline() -> dict[str, list[str]]:
    """Read the commands that each case is accepted to hold."""
    return dict(json.loads(BASELINE.read_text())) if BASELINE.exists() else {}


def commands(history: WorkflowHistory) -> list[str]:
    """Name what the workflow decided, in order."""
    return [told for event in history.events if (told := _command(event))]


def _command(event: HistoryEvent) -> str:
    kind = EventType.Name(event.event_type).removeprefix("EVENT_TYPE_")
    if kind not in _DECIDED:
        return ""
    activity = event.activity_task_scheduled_event_attributes.activity_type.name
    child = event.start_child_workflow_execution_initiated_event_attributes.workflow_type.name
    return " ".join(part for part in (kind, activity, child) if part)
