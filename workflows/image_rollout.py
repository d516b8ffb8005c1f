"""The way of an image through a fleet: canaries, then the others a few at a time, or back.

Where it stands is in SQL, and which machines go is for the fleet's own decisions: this workflow
sees to it that somebody judges again, and tells an operator how it goes. Terminated, it comes back.
"""

from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from activities import contracts, rollout_contracts

TIMEOUT: Final = timedelta(seconds=10)
RETRY: Final = RetryPolicy(maximum_interval=timedelta(seconds=10), maximum_attempts=5)
AFTER_FAILURE: Final = timedelta(seconds=10)
ON_TO_THE_NEWEST: Final = workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE
"""A run stays with the build it began on; where workers have builds, the next one begins anew."""
ACTIONS: Final = ("pause", "resume", "rollback")


@workflow.defn(name=rollout_contracts.IMAGE_ROLLOUT)
class ImageRollout:
    """Bring an image to a fleet."""

    @workflow.init
    def __init__(self, state: rollout_contracts.RolloutState) -> None:
        self._state = state
        self._poked = False
        self._shown = ""

    @workflow.signal(name=contracts.POKE)
    def poke(self) -> None:
        """Look at once, for something has changed."""
        self._poked = True

    @workflow.update(name=rollout_contracts.COMMAND)
    async def command(self, command: rollout_contracts.RolloutCommand) -> str:
        """Do what a person asks for; where the rollout stands then is the answer."""
        step = await workflow.execute_activity(
            rollout_contracts.command_rollout,
            rollout_contracts.RolloutOrder(rollout=self._state.rollout, command=command),
            start_to_close_timeout=TIMEOUT,
            retry_policy=RETRY,
            summary=f"{command.action}: {command.reason}"[:200],
        )
        self._poked = True
        return f"{step.state}: {step.line}"

    @command.validator
    def _is_command(self, command: rollout_contracts.RolloutCommand) -> None:
        if command.action not in ACTIONS:
            raise ApplicationError(f"action is one of {', '.join(ACTIONS)}", type="request.invalid")
        if not command.reason.strip():
            raise ApplicationError("say why: reason is empty", type="request.invalid")

    @workflow.run
    async def run(self, state: rollout_contracts.RolloutState) -> str:
        """Judge, rest, judge again; return how it ended."""
        for _ in range(state.rounds_per_run):
            self._poked = False
            step = await self._advance()
            if step is not None and step.ended:
                await workflow.wait_condition(workflow.all_handlers_finished)
                return f"{step.state}: {step.line}"
            await self._rest(step)
            if _is_time_to_roll_over():
                break
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new(self._state, initial_versioning_behavior=ON_TO_THE_NEWEST)

    async def _advance(self) -> rollout_contracts.RolloutStep | None:
        try:
            step = await workflow.execute_activity(
                rollout_contracts.advance_rollout,
                self._state.rollout,
                start_to_close_timeout=TIMEOUT,
                retry_policy=RETRY,
                summary="how do the machines of it do?",
            )
        except ActivityError as error:
            if workflow.cancellation_reason() is not None:
                raise
            workflow.logger.warning("the rollout could not be judged: %s", error.cause)
            return None
        self._show(step)
        return step

    async def _rest(self, step: rollout_contracts.RolloutStep | None) -> None:
        wait = AFTER_FAILURE if step is None else timedelta(milliseconds=step.wait_ms)
        try:
            await workflow.wait_condition(
                lambda: self._poked, timeout=wait, timeout_summary="until it is judged again"
            )
        except TimeoutError:
            return

    def _show(self, step: rollout_contracts.RolloutStep) -> None:
        if step.state != self._shown:
            self._shown = step.state
            state = contracts.STATE.value_set(step.state)
            workflow.upsert_search_attributes([state])  # pyright: ignore[reportUnknownMemberType]
        rollout = self._state.rollout
        workflow.set_current_details(
            f"### {rollout.fleet} · {step.state}\n\n{step.line}\n\n"
            f"* image `{rollout.image}`\n"
            f"* machines: {step.machines or 'none'}\n"
            f"* `forgeyard fleet rollout status {rollout.fleet}` tells the same"
        )


def _is_time_to_roll_over() -> bool:
    info = workflow.info()
    return info.is_continue_as_new_suggested() or info.is_target_worker_deployment_version_changed()
