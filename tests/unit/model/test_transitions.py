from collections.abc import Iterator
from enum import StrEnum

import pytest

from forgeyard.errors import IllegalTransition
from forgeyard.model.transitions import (
    ATTEMPT_TRANSITIONS,
    FINAL_ATTEMPT_STATES,
    FINAL_JOB_STATES,
    FINAL_RUN_STATES,
    JOB_TRANSITIONS,
    LEASE_TRANSITIONS,
    LIVE_LEASE_STATES,
    RUN_TRANSITIONS,
    SESSION_TRANSITIONS,
    AttemptState,
    JobState,
    LeaseState,
    RunState,
    SessionState,
    Table,
    check,
)

DESIGNED = {
    "run": """
        queued: running cancelling superseded
        running: succeeded failed cancelling timed_out superseded
        cancelling: cancelled timed_out superseded
    """,
    "job": """
        pending: eligible skipped cancelled
        eligible: leased skipped cancelled timed_out
        leased: preparing eligible lost cancelled timed_out
        preparing: running retry_waiting failed timed_out cancelled lost
        running: uploading_outputs retry_waiting failed timed_out cancelled lost
        uploading_outputs: succeeded retry_waiting failed timed_out cancelled lost
        lost: retry_waiting failed cancelled
        retry_waiting: eligible cancelled
    """,
    "attempt": """
        created: leased
        leased: preparing rejected lost cancelled
        preparing: running failed timed_out cancelled lost
        running: uploading_outputs failed timed_out cancelled lost
        uploading_outputs: succeeded failed timed_out cancelled lost
    """,
    "lease": """
        offered: active rejected expired revoked
        active: released expired revoked
    """,
    "session": """
        open: superseded closed lost
    """,
}
TABLES: dict[str, Table] = {
    "run": RUN_TRANSITIONS,
    "job": JOB_TRANSITIONS,
    "attempt": ATTEMPT_TRANSITIONS,
    "lease": LEASE_TRANSITIONS,
    "session": SESSION_TRANSITIONS,
}
STARTS = {
    "run": RunState.QUEUED,
    "job": JobState.PENDING,
    "attempt": AttemptState.CREATED,
    "lease": LeaseState.OFFERED,
    "session": SessionState.OPEN,
}


def arrows(name: str) -> set[tuple[str, str]]:
    lines = (line.split(":") for line in DESIGNED[name].strip().splitlines())
    return {(before.strip(), after) for before, out in lines for after in out.split()}


def every_pair() -> Iterator[tuple[str, StrEnum, StrEnum]]:
    for name, table in TABLES.items():
        yield from ((name, before, after) for before in table for after in table)


@pytest.mark.parametrize("name", TABLES)
def test_a_table_lists_exactly_the_designed_arrows(name: str) -> None:
    listed = {(str(before), str(after)) for before, out in TABLES[name].items() for after in out}
    assert listed == arrows(name)


def test_every_change_that_is_not_designed_is_a_bug() -> None:
    refused = 0
    for name, before, after in every_pair():
        if (str(before), str(after)) in arrows(name):
            check(TABLES[name], before, after)
            continue
        with pytest.raises(IllegalTransition) as error:
            check(TABLES[name], before, after)
        assert error.value.value == f"{before} → {after}"
        refused += 1
    assert refused > 100


@pytest.mark.parametrize("name", TABLES)
def test_every_state_can_be_reached_and_every_story_can_end(name: str) -> None:
    table = TABLES[name]
    reached, new = {STARTS[name]}, {STARTS[name]}
    while new:
        new = {after for state in new for after in table[state]} - reached
        reached |= new
    assert reached == set(table)
    ends = {state for state, out in table.items() if not out}
    for _ in table:
        ends |= {state for state, out in table.items() if out & ends}
    assert ends == set(table)


def test_final_states_have_no_arrow_out() -> None:
    assert {
        RunState.SUCCEEDED,
        RunState.FAILED,
        RunState.CANCELLED,
        RunState.TIMED_OUT,
        RunState.SUPERSEDED,
    } == FINAL_RUN_STATES
    assert {
        JobState.SUCCEEDED,
        JobState.FAILED,
        JobState.CANCELLED,
        JobState.TIMED_OUT,
        JobState.SKIPPED,
    } == FINAL_JOB_STATES
    assert JobState.LOST not in FINAL_JOB_STATES
    assert AttemptState.LOST in FINAL_ATTEMPT_STATES
    assert {LeaseState.OFFERED, LeaseState.ACTIVE} == LIVE_LEASE_STATES


def test_a_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        RUN_TRANSITIONS[RunState.FAILED] = frozenset({RunState.RUNNING})
