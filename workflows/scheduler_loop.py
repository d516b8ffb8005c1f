"""The loop of one partition: one cycle at a time, as soon as something changed, never idly.

A wake starts a cycle at once. Without one the loop looks from time to time whether a job waits,
sooner while jobs wait that nothing could take, ever more rarely the longer that lasts.

Its attributes and its card survive continuing as new; its static summary does not, for the server
forgets it then, so the workflow's id has to tell what it is.
"""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import (
    ActivityError,
    ChildWorkflowError,
    WorkflowAlreadyStartedError,
)

with workflow.unsafe.imports_passed_through():
    from activities import contracts

FALLBACK_MS: Final = 60_000
FIRST_BACK_OFF_MS: Final = 1_000
LONGEST_BACK_OFF_MS: Final = 30_000
CONFLICTS_AT_ONCE: Final = 3
"""So often the loop goes on at once after a cycle that lost every placement to others."""
FIRST_PAUSE_MS: Final = 100
LONGEST_PAUSE_MS: Final = 1_000
GOES_ON: Final = "goes on after conflicts"
EVENTS: Final = 900
CYCLE_TIMEOUT: Final = timedelta(minutes=5)
PEEK_TIMEOUT: Final = timedelta(seconds=5)
ON_TO_THE_NEWEST: Final = workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE
"""A run stays with the build it began on; where workers have builds, the next one begins anew."""


@workflow.defn(name=contracts.SCHEDULER_LOOP)
class SchedulerLoop:
    """Run scheduling cycles of one partition for ever."""

    @workflow.init
    def __init__(self, state: contracts.LoopState) -> None:
        self._state = state
        self._rounds = 0
        self._unread: list[RawValue] = []

    @workflow.signal(name=contracts.WAKE)
    def wake(self, wake: RawValue) -> None:
        """Take note that something changed.

        Read later, and then the last one only: while no worker lived, thousands may have come.
        """
        self._unread.append(wake)

    @workflow.run
    async def run(self, state: contracts.LoopState) -> None:
        """Wait, run a cycle, and continue as new before the history grows long."""
        self._show()
        while not self._is_full():
            self._rounds += 1
            woken = await self._is_woken()
            if woken or self._state.fruitless or await self._is_pending():
                await self._cycle()
            else:
                self._state = replace(self._state, wait_ms=FALLBACK_MS)
            self._show()
            _end_if_cancelled()
        await workflow.wait_condition(workflow.all_handlers_finished)
        self._is_told()
        workflow.continue_as_new(self._state, initial_versioning_behavior=ON_TO_THE_NEWEST)

    def _is_full(self) -> bool:
        info = workflow.info()
        return (
            self._rounds >= self._state.rounds_per_run
            or info.get_current_history_length() >= EVENTS
            or info.is_continue_as_new_suggested()
            or info.is_target_worker_deployment_version_changed()
        )

    def _is_told(self) -> bool:
        """Tell whether there is a wake to act on; one that was acted on already is none."""
        while self._unread:
            wake = _read(self._unread.pop())
            if wake is not None and wake.generation != self._state.handled:
                self._state = replace(self._state, newest=wake)
                self._unread.clear()
        return self._state.newest is not None

    async def _is_woken(self) -> bool:
        """Wait for a wake, no longer than the state says, and take it."""
        if not self._is_told() and self._state.wait_ms:
            try:
                await workflow.wait_condition(
                    self._is_told,
                    timeout=timedelta(milliseconds=self._state.wait_ms),
                    timeout_summary=self._waits_for(),
                )
            except TimeoutError:
                return False
        newest = self._state.newest
        if newest is None:
            return False
        self._state = replace(self._state, newest=None, handled=newest.generation)
        self._heard(newest.mark)
        return True

    def _heard(self, mark: str) -> None:
        """Keep the newest mark of the store, so that an older store is recognised by it."""
        self._state = replace(self._state, mark=mark or self._state.mark)

    def _partition(self) -> contracts.Partition:
        return contracts.Partition(partition=self._state.partition, mark=self._state.mark)

    async def _is_pending(self) -> bool:
        """Peek whether a job waits at all; if the store does not answer, assume that one does."""
        try:
            return await workflow.execute_activity(
                contracts.is_pending,
                self._partition(),
                start_to_close_timeout=PEEK_TIMEOUT,
                retry_policy=RetryPolicy(maximum_attempts=2),
                summary="does any job wait?",
            )
        except ActivityError as error:
            _raise_if_cancelled(error)
            return True

    async def _cycle(self) -> None:
        """Run one cycle; a failed one is told, and tried again after a back-off."""
        try:
            summary = await self._child()
        except ChildWorkflowError as error:
            _raise_if_cancelled(error)
            cause = error.cause or error
            workflow.logger.warning("cycle %d failed: %s", self._state.cycle, cause)
            self._state = self._after_nothing(failure=str(cause))
            return
        self._heard(summary.mark)
        self._state = self._after(summary)

    async def _child(self) -> contracts.CycleSummary:
        """Start the next cycle; a number that an orphan still uses is skipped."""
        while True:
            self._state = replace(self._state, cycle=self._state.cycle + 1)
            try:
                summary: contracts.CycleSummary = await workflow.execute_child_workflow(
                    contracts.SCHEDULING_CYCLE,
                    self._partition(),
                    id=contracts.cycle_workflow_id(self._state.partition, self._state.cycle),
                    result_type=contracts.CycleSummary,
                    execution_timeout=CYCLE_TIMEOUT,
                    search_attributes=contracts.attributes(contracts.KIND_CYCLE),
                    static_summary=f"scheduling cycle of {self._state.partition}",
                )
            except WorkflowAlreadyStartedError:
                continue
            return summary

    def _after(self, summary: contracts.CycleSummary) -> contracts.LoopState:
        """Decide what follows a cycle that was carried out."""
        if summary.granted or summary.more or not summary.hopeful:
            after = self._after_success(summary)
        elif summary.planned and self._goes_on():
            after = self._after_conflicts(summary)
        else:
            after = replace(self._after_nothing(failure=""), last=summary)
        if summary.wake_in_ms:
            after = replace(after, wait_ms=min(after.wait_ms, summary.wake_in_ms))
        return after

    def _goes_on(self) -> bool:
        """Tell whether this loop goes on after conflicts; one that began before that does not."""
        return workflow.patched(GOES_ON)

    def _after_success(self, summary: contracts.CycleSummary) -> contracts.LoopState:
        """Go on at once if there may be more to place, soon if jobs are left, else rest."""
        wait_ms = FALLBACK_MS
        left = summary.granted < summary.hopeful
        if left:
            wait_ms = FIRST_BACK_OFF_MS
        if summary.full or summary.more or summary.granted < summary.planned:
            wait_ms = 0
        return replace(
            self._state,
            last=summary,
            failure="",
            wait_ms=wait_ms,
            fruitless=1 if left else 0,
            lost=0,
        )

    def _after_conflicts(self, summary: contracts.CycleSummary) -> contracts.LoopState:
        """Go on at once, for whoever won has left another picture; if that goes on, slow down.

        Each lost race is a job of somebody else's that was placed, so cycles can lose for ever only
        if plan and commit disagree: then a look a second is enough.
        """
        lost = self._state.lost + 1
        wait_ms = 0
        if lost > CONFLICTS_AT_ONCE:
            doublings = min(lost - CONFLICTS_AT_ONCE - 1, 10)
            wait_ms = min(FIRST_PAUSE_MS * 2**doublings, LONGEST_PAUSE_MS)
        return replace(
            self._state, last=summary, failure="", wait_ms=wait_ms, fruitless=1, lost=lost
        )

    def _after_nothing(self, *, failure: str) -> contracts.LoopState:
        """Wait twice as long as last time; a wake ends the wait at once."""
        fruitless = self._state.fruitless
        wait_ms = min(FIRST_BACK_OFF_MS * 2 ** min(fruitless, 10), LONGEST_BACK_OFF_MS)
        return replace(
            self._state, wait_ms=wait_ms, fruitless=fruitless + 1, lost=0, failure=failure
        )

    def _waits_for(self) -> str:
        if self._state.fruitless:
            return "jobs wait that no runner could take; look again"
        return "nothing waits; look again in case a wake was lost"

    def _show(self) -> None:
        state, last = self._state, self._state.last
        found = (
            f"Last cycle {last.cycle_id}: **{last.granted} of {last.eligible}** waiting jobs "
            f"leased, {last.planned} planned.\n\n"
            if last
            else "No cycle yet: nothing waits.\n\n"
        )
        failed = f"**The last cycle failed:** {state.failure}\n\n" if state.failure else ""
        held = f"**Nothing is placed:** {last.held}\n\n" if last and last.held else ""
        workflow.set_current_details(
            f"### Scheduler of `{state.partition}`\n\n{held}{found}{failed}"
            f"{state.cycle} cycles so far, wake {state.handled}. "
            f"Looks again in {state.wait_ms / 1000:g} s, or as soon as something changes."
        )


def _read(wake: RawValue) -> contracts.Wake | None:
    """Read a wake; one that nobody can read is dropped, for a later one or a look follows."""
    try:
        read: contracts.Wake = workflow.payload_converter().from_payload(
            wake.payload, contracts.Wake
        )
    except (RuntimeError, ValueError, TypeError, LookupError) as error:
        workflow.logger.warning("a wake that cannot be read was dropped: %s", error)
        return None
    return read


def _end_if_cancelled() -> None:
    """Obey a cancellation that a wait swallowed, because what it waited for came all the same."""
    if workflow.cancellation_reason() is not None:
        raise asyncio.CancelledError


def _raise_if_cancelled(error: ActivityError | ChildWorkflowError) -> None:
    """Let an operator's cancellation of the loop through; one of the cycle is a failure."""
    if workflow.cancellation_reason() is not None:
        raise error
