"""The one decision authority of a fleet: looks at demand and machines, and starts what follows.

A decision is made and written down in SQL, by an activity that is void if anybody was first. This
workflow says when, sees to it that every machine has somebody who looks after it, and carries out
what people ask for in the Temporal UI.
"""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.common import (
    RetryPolicy,
    SearchAttributePair,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import ActivityError, ApplicationError, WorkflowAlreadyStartedError
from temporalio.workflow import ParentClosePolicy

with workflow.unsafe.imports_passed_through():
    from activities import contracts, rollout_contracts

TICK_TIMEOUT: Final = timedelta(seconds=30)
OBSERVE_TIMEOUT: Final = timedelta(minutes=3)
QUEUED_TIMEOUT: Final = timedelta(seconds=10)
"""If nobody is free to look at a provider, decisions do not wait for it."""
HEARTBEAT: Final = timedelta(seconds=60)
RETRY: Final = RetryPolicy(maximum_interval=timedelta(seconds=10), maximum_attempts=5)
ONCE: Final = RetryPolicy(maximum_attempts=1)
LONG: Final = 1_200
"""Events of a history, after which the next run goes on: many machines make many of them."""
ON_TO_THE_NEWEST: Final = workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE
"""A run stays with the build it began on; where workers have builds, the next one begins anew."""
ACTIONS: Final = ("activate", "freeze", "scale_up_only", "drain", "scale")


@workflow.defn(name=contracts.FLEET_RECONCILE)
class FleetReconcile:
    """Keep a fleet as people and demand want it."""

    @workflow.init
    def __init__(self, state: contracts.FleetState) -> None:
        self._state = state
        self._poked = False
        self._last = contracts.FleetTick()
        self._failure = ""

    @workflow.signal(name=contracts.POKE)
    def poke(self) -> None:
        """Look at once, for something has changed."""
        self._poked = True

    @workflow.update(name=contracts.COMMAND)
    async def command(self, command: contracts.FleetCommand) -> str:
        """Do what a person asks for; what comes of it is the answer."""
        done = await workflow.execute_activity(
            contracts.command_fleet,
            contracts.FleetOrder(fleet_id=self._state.fleet.fleet_id, command=command),
            start_to_close_timeout=TICK_TIMEOUT,
            retry_policy=RETRY,
            summary=f"{command.action}: {command.reason}"[:200],
        )
        self._poked = True
        return done.line

    @command.validator
    def _is_command(self, command: contracts.FleetCommand) -> None:
        if command.action not in ACTIONS:
            raise ApplicationError(f"action is one of {', '.join(ACTIONS)}", type="request.invalid")
        if not command.reason.strip():
            raise ApplicationError("say why: reason is empty", type="request.invalid")

    @workflow.run
    async def run(self, state: contracts.FleetState) -> str:
        """Decide, start, look, rest; until the fleet is deleted."""
        for _ in range(state.rounds_per_run):
            self._poked = False
            tick = await self._tick()
            if tick.gone:
                return "deleted, and nothing of it is left"
            await asyncio.gather(*(self._look_after(one) for one in tick.untended))
            if tick.rollout_id:
                await self._roll_out(tick)
            if tick.is_observing_due:
                await self._observe()
            await self._rest(tick)
            if _is_time_to_roll_over():
                break
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new(self._state, initial_versioning_behavior=ON_TO_THE_NEWEST)

    async def _observe(self) -> None:
        """Look at what the provider has; whoever is in it for something is told without a rest."""
        try:
            seen = await workflow.execute_activity(
                contracts.observe_fleet,
                self._state.fleet,
                task_queue=contracts.provider_queue(workflow.info().task_queue),
                schedule_to_start_timeout=QUEUED_TIMEOUT,
                start_to_close_timeout=OBSERVE_TIMEOUT,
                heartbeat_timeout=HEARTBEAT,
                retry_policy=ONCE,
                summary="what does the provider have?",
            )
        except ActivityError as error:
            self._survive("the provider could not be looked at", error)
            return
        self._poked = self._poked or seen.news > 0

    async def _tick(self) -> contracts.FleetTick:
        try:
            tick = await workflow.execute_activity(
                contracts.tick_fleet,
                self._state.fleet,
                start_to_close_timeout=TICK_TIMEOUT,
                retry_policy=RETRY,
                summary="what is wanted, what is there, what follows",
            )
        except ActivityError as error:
            self._survive("nothing could be decided", error)
            return contracts.FleetTick(is_observing_due=True)
        self._failure = ""
        self._state = replace(self._state, rounds=self._state.rounds + 1)
        self._show(tick)
        return tick

    async def _look_after(self, machine: contracts.Machine) -> None:
        """See to it that a machine has its workflow, and that this looks now."""
        workflow_id = contracts.instance_workflow_id(machine.instance_id)
        try:
            await workflow.start_child_workflow(
                contracts.CAPACITY_INSTANCE,
                contracts.InstanceState(machine=machine),
                id=workflow_id,
                parent_close_policy=ParentClosePolicy.ABANDON,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                search_attributes=contracts.attributes(
                    contracts.KIND_INSTANCE,
                    SearchAttributePair(contracts.RUNNER, machine.runner_name),
                ),
                static_summary=machine.runner_name,
            )
        except WorkflowAlreadyStartedError:
            handle = workflow.get_external_workflow_handle(workflow_id)
            try:
                await handle.signal(contracts.POKE)
            except ApplicationError as error:
                workflow.logger.info("machine %s has ended: %s", machine.instance_id, error)

    async def _roll_out(self, tick: contracts.FleetTick) -> None:
        """See to it that a rollout has its workflow."""
        fleet = self._state.fleet
        rollout = rollout_contracts.Rollout(
            rollout_id=tick.rollout_id, fleet_id=fleet.fleet_id, fleet=fleet.name, image=tick.image
        )
        try:
            await workflow.start_child_workflow(
                rollout_contracts.IMAGE_ROLLOUT,
                rollout_contracts.RolloutState(rollout=rollout),
                id=rollout_contracts.rollout_workflow_id(fleet.fleet_id, tick.image),
                parent_close_policy=ParentClosePolicy.ABANDON,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                search_attributes=contracts.attributes(rollout_contracts.KIND_ROLLOUT),
                static_summary=f"{fleet.name}: {tick.image}",
            )
        except WorkflowAlreadyStartedError:
            workflow.logger.debug("the rollout of %s is looked after", tick.image)

    async def _rest(self, tick: contracts.FleetTick) -> None:
        try:
            await workflow.wait_condition(
                lambda: self._poked,
                timeout=timedelta(milliseconds=tick.wait_ms),
                timeout_summary="until the next look",
            )
        except TimeoutError:
            return

    def _survive(self, what: str, error: ActivityError) -> None:
        """Tell of a failure and go on, unless it is that an operator cancels the reconciler."""
        if workflow.cancellation_reason() is not None:
            raise error
        self._failure = f"{what}: {error.cause or error}"
        workflow.logger.warning("%s", self._failure)
        self._show(self._last)

    def _show(self, tick: contracts.FleetTick) -> None:
        if (tick.state, tick.health) != (self._last.state, self._last.health):
            state = contracts.STATE.value_set(f"{tick.state}/{tick.health}")
            workflow.upsert_search_attributes([state])  # pyright: ignore[reportUnknownMemberType]
        self._last = tick
        failure = f"\n\n**{self._failure}**" if self._failure else ""
        workflow.set_current_details(
            f"### Fleet {self._state.fleet.name} · {tick.state} · {tick.health}\n\n"
            f"{tick.line}{failure}\n\n"
            f"* wanted {tick.wanted}, there or coming {tick.usable}\n"
            f"* `forgeyard fleet explain {self._state.fleet.name}` tells more"
        )


def _is_time_to_roll_over() -> bool:
    info = workflow.info()
    if info.get_current_history_length() >= LONG:
        return True
    return info.is_continue_as_new_suggested() or info.is_target_worker_deployment_version_changed()
