"""The story of one attempt, from its lease to what was decided about another try.

SQL decides everything: this workflow waits to be told that the attempt ended, asks the store to
settle it, and shows an operator where it stands. It holds no deadline of its own: its timer is a
backstop that makes the store look again, some time after the sweep should have.
"""

from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, ApplicationErrorCategory

with workflow.unsafe.imports_passed_through():
    from activities import contracts
    from forgeyard.model.transitions import FINAL_ATTEMPT_STATES

SQL_TIMEOUT: Final = timedelta(seconds=5)
SQL_RETRY: Final = RetryPolicy(maximum_interval=timedelta(seconds=10))
SHORTEST_WAIT: Final = timedelta(seconds=1)


@workflow.defn(name=contracts.ATTEMPT_LEASE)
class AttemptLease:
    """Follow one attempt until it is settled."""

    @workflow.init
    def __init__(self, start: contracts.AttemptStart) -> None:
        self._start = start
        self._seen: dict[str, contracts.AttemptEvent] = {}
        self._told = False
        self._backstop_ms = start.backstop_ms
        self._show("leased", "The runner goes on without this workflow, which hears of the end.")

    @workflow.signal(name=contracts.ATTEMPT_EVENT)
    def event(self, event: contracts.AttemptEvent) -> None:
        """Take note of a fact, once; the order facts come in does not matter."""
        if event.event_id in self._seen:
            return
        self._seen[event.event_id] = event
        self._told = self._told or event.kind == contracts.ATTEMPT_FINISHED

    @workflow.run
    async def run(self, start: contracts.AttemptStart) -> contracts.Settled:
        """Wait for the end, settle; ask the store whenever in doubt."""
        while True:
            try:
                settled = await self._once()
            except ActivityError as error:
                if not _is_conflict(error):
                    raise
                await workflow.sleep(SHORTEST_WAIT, summary="somebody else was first; read again")
                continue
            if settled is not None:
                return self._finish(settled)

    async def _once(self) -> contracts.Settled | None:
        if not await self._is_told() and not await self._has_ended():
            return None
        self._told, self._backstop_ms = False, 0
        self._show("ended", "The attempt ended and is being settled.")
        settled = await workflow.execute_activity(
            contracts.settle_attempt,
            contracts.Attempt(attempt_id=self._start.attempt_id),
            start_to_close_timeout=SQL_TIMEOUT,
            retry_policy=SQL_RETRY,
            summary="settle the attempt, decide on another try",
        )
        return settled if settled.attempt_state in FINAL_ATTEMPT_STATES else None

    async def _is_told(self) -> bool:
        """Wait until told that the attempt ended, no longer than the backstop, if there is one."""
        if not self._told and self._backstop_ms:
            try:
                await workflow.wait_condition(
                    lambda: self._told,
                    timeout=max(timedelta(milliseconds=self._backstop_ms), SHORTEST_WAIT),
                    timeout_summary="backstop: every deadline of the attempt has passed",
                )
            except TimeoutError:
                return False
        return self._told

    async def _has_ended(self) -> bool:
        """Ask the store, and how long to wait if the attempt goes on."""
        view = await workflow.execute_activity(
            contracts.read_attempt,
            contracts.Attempt(attempt_id=self._start.attempt_id),
            start_to_close_timeout=SQL_TIMEOUT,
            retry_policy=SQL_RETRY,
            summary="where does the attempt stand?",
        )
        if view.ended:
            return True
        self._show(view.state, "Waiting for the runner; the sweep enforces the deadlines.")
        self._backstop_ms = max(view.backstop_ms, 1)
        return False

    def _finish(self, settled: contracts.Settled) -> contracts.Settled:
        state = contracts.STATE.value_set(settled.attempt_state)
        workflow.upsert_search_attributes([state])  # pyright: ignore[reportUnknownMemberType]
        self._show(settled.attempt_state, f"Settled: {settled.decision}. Job: {settled.job_state}.")
        return settled

    def _show(self, state: str, line: str) -> None:
        start = self._start
        heard = "".join(
            f"\n* heard of `{event.kind}` {event.detail}" for event in self._seen.values()
        )
        workflow.set_current_details(
            f"### {start.job_name} · attempt {start.number} · {state}\n\n{line}\n\n"
            f"* run {start.run_name}\n"
            f"* runner {start.runner_name}\n"
            f"* job `{start.job_id}`\n"
            f"* attempt `{start.attempt_id}`{heard}"
        )


def _is_conflict(error: ActivityError) -> bool:
    cause = error.cause
    return isinstance(cause, ApplicationError) and cause.category is ApplicationErrorCategory.BENIGN
