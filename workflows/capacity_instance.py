"""The way of one machine, from the wish for it to the proof that it is gone.

Where it stands is in SQL, and what exists is the provider's to say: this workflow only sees to it
that somebody looks again, and tells an operator how it goes. Terminated, it comes back.
"""

from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities import contracts

STEP_TIMEOUT: Final = timedelta(minutes=3)
HEARTBEAT: Final = timedelta(seconds=40)
RETRY: Final = RetryPolicy(maximum_interval=timedelta(seconds=30), maximum_attempts=5)
SHORTEST_WAIT: Final = timedelta(milliseconds=200)
AFTER_FAILURE: Final = timedelta(seconds=10)
ON_TO_THE_NEWEST: Final = workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE
"""A run stays with the build it began on; where workers have builds, the next one begins anew."""


@workflow.defn(name=contracts.CAPACITY_INSTANCE)
class CapacityInstance:
    """Look after one machine until it is gone."""

    @workflow.init
    def __init__(self, state: contracts.InstanceState) -> None:
        self._state = state
        self._poked = False
        self._shown = ""

    @workflow.signal(name=contracts.POKE)
    def poke(self) -> None:
        """Look at once, for something has changed."""
        self._poked = True

    @workflow.run
    async def run(self, state: contracts.InstanceState) -> str:
        """Take step after step; return how it ended."""
        for _ in range(state.rounds_per_run):
            self._poked = False
            step = await self._step()
            if step is not None and step.ended:
                return step.line
            await self._rest(step)
            if _is_time_to_roll_over():
                break
        workflow.continue_as_new(self._state, initial_versioning_behavior=ON_TO_THE_NEWEST)

    async def _step(self) -> contracts.Advanced | None:
        try:
            step = await workflow.execute_activity(
                contracts.advance_instance,
                self._state.machine,
                task_queue=contracts.provider_queue(workflow.info().task_queue),
                start_to_close_timeout=STEP_TIMEOUT,
                heartbeat_timeout=HEARTBEAT,
                retry_policy=RETRY,
                summary="look, ask, write down",
            )
        except ActivityError as error:
            if workflow.cancellation_reason() is not None:
                raise
            workflow.logger.warning("the machine could not be looked after: %s", error.cause)
            return None
        self._show(step)
        return step

    async def _rest(self, step: contracts.Advanced | None) -> None:
        wait = AFTER_FAILURE if step is None else timedelta(milliseconds=step.wait_ms)
        try:
            await workflow.wait_condition(
                lambda: self._poked,
                timeout=max(wait, SHORTEST_WAIT),
                timeout_summary="until it is worth looking again",
            )
        except TimeoutError:
            return

    def _show(self, step: contracts.Advanced) -> None:
        if step.state != self._shown:
            self._shown = step.state
            state = contracts.STATE.value_set(step.state)
            workflow.upsert_search_attributes([state])  # pyright: ignore[reportUnknownMemberType]
        workflow.set_current_details(
            f"### {self._state.machine.runner_name} · {step.state}\n\n{step.line}\n\n"
            f"* machine `{self._state.machine.instance_id}`"
        )


def _is_time_to_roll_over() -> bool:
    info = workflow.info()
    return info.is_continue_as_new_suggested() or info.is_target_worker_deployment_version_changed()
