"""What must happen whether or not anybody remembers: deadlines, repairs, stragglers, retention.

Nothing ends it but an operator, and then every worker starts it again.
"""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities import contracts

LOOP_CHECK_EVERY: Final = 10
FORGET_EVERY: Final = timedelta(hours=1)
SWEEP_TIMEOUT: Final = timedelta(seconds=10)
RECONCILES: Final = "reconciles"
"""Upkeep that began under an earlier release does not, until it continues as new."""
RECONCILE_TIMEOUT: Final = timedelta(minutes=2)
FORGET_TIMEOUT: Final = timedelta(minutes=5)
ON_TO_THE_NEWEST: Final = workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE
"""A run stays with the build it began on; where workers have builds, the next one begins anew."""
RETRY: Final = RetryPolicy(maximum_attempts=2)


@workflow.defn(name=contracts.UPKEEP)
class Upkeep:
    """Sweep a partition every few seconds for ever."""

    @workflow.init
    def __init__(self, state: contracts.UpkeepState) -> None:
        self._state = state
        self._forgetting: workflow.ActivityHandle[contracts.Forgotten] | None = None
        self._reconciling: workflow.ActivityHandle[contracts.ReconcileSummary] | None = None
        self._reconciled = ""
        self._failure = ""

    @workflow.run
    async def run(self, state: contracts.UpkeepState) -> None:
        """Sweep, look after the loop and retention now and then, rest; for ever."""
        rounds = 0
        while not self._is_full(rounds):
            if self._state.rounds % LOOP_CHECK_EVERY == 0:
                await self._ensure_loop()
            at_once = await self._sweep()
            await self._forget()
            if workflow.patched(RECONCILES):
                await self._reconcile()
            rounds += 1
            self._state = replace(self._state, rounds=self._state.rounds + 1)
            if not at_once:
                await workflow.sleep(
                    timedelta(milliseconds=self._state.period_ms), summary="until the next sweep"
                )
            if workflow.cancellation_reason() is not None:  # swallowed by a wait that ended well
                raise asyncio.CancelledError
        workflow.continue_as_new(self._state, initial_versioning_behavior=ON_TO_THE_NEWEST)

    def _is_full(self, rounds: int) -> bool:
        """Tell whether to roll over, which retention or a reconciliation under way delays."""
        if workflow.info().is_continue_as_new_suggested():
            return True
        full = rounds >= self._state.rounds_per_run
        full = full or workflow.info().is_target_worker_deployment_version_changed()
        return full and self._forgetting is None and self._reconciling is None

    def _request(self) -> contracts.Partition:
        """Name the partition, and the newest mark of its store: an older one shows by that."""
        return contracts.Partition(partition=self._state.partition, mark=self._state.mark)

    async def _ensure_loop(self) -> None:
        try:
            started = await workflow.execute_activity(
                contracts.ensure_loop,
                self._request(),
                start_to_close_timeout=SWEEP_TIMEOUT,
                retry_policy=RETRY,
                summary="does the scheduler loop live?",
            )
        except ActivityError as error:
            self._survive("the scheduler loop could not be checked", error)
            return
        if started:
            workflow.logger.warning("the scheduler loop was gone; it runs again")

    async def _sweep(self) -> bool:
        """Sweep once; tell whether so much had lapsed that the next sweep should not wait."""
        try:
            swept = await workflow.execute_activity(
                contracts.sweep,
                self._request(),
                start_to_close_timeout=SWEEP_TIMEOUT,
                retry_policy=RETRY,
                summary="enforce deadlines, repair, send stragglers",
            )
        except ActivityError as error:
            self._survive("the sweep failed", error)
            return False
        self._failure = ""
        if swept.period_ms:
            self._state = replace(self._state, period_ms=swept.period_ms)
        self._state = replace(self._state, mark=swept.mark or self._state.mark)
        self._show(swept)
        return swept.more

    async def _forget(self) -> None:
        """Start retention once an hour and collect it when done; sweeps go on meanwhile."""
        now_ms = workflow.time_ns() // 1_000_000
        if self._forgetting is not None:
            if self._forgetting.done():
                handle, self._forgetting = self._forgetting, None
                await self._collect(handle)
        elif now_ms - self._state.forgot_ms >= FORGET_EVERY // timedelta(milliseconds=1):
            self._state = replace(self._state, forgot_ms=now_ms)
            self._forgetting = workflow.start_activity(
                contracts.forget,
                self._request(),
                start_to_close_timeout=FORGET_TIMEOUT,
                retry_policy=RetryPolicy(maximum_attempts=1),
                summary="delete what retention does not keep",
            )

    async def _reconcile(self) -> None:
        """Begin a reconciliation when it is time and collect it when done; sweeps go on."""
        now_ms = workflow.time_ns() // 1_000_000
        if self._reconciling is not None:
            if self._reconciling.done():
                handle, self._reconciling = self._reconciling, None
                await self._take_in(handle)
        elif now_ms - self._state.reconciled_ms >= self._state.reconcile_every_ms:
            self._state = replace(self._state, reconciled_ms=now_ms)
            self._reconciling = workflow.start_activity(
                contracts.reconcile,
                self._request(),
                start_to_close_timeout=RECONCILE_TIMEOUT,
                retry_policy=RetryPolicy(maximum_attempts=1),
                summary="compare what must agree, and repair it",
            )

    async def _take_in(self, handle: workflow.ActivityHandle[contracts.ReconcileSummary]) -> None:
        try:
            done = await handle
        except ActivityError as error:
            self._survive("the reconciliation failed", error)
            return
        if done.period_ms:
            self._state = replace(self._state, reconcile_every_ms=done.period_ms)
        self._reconciled = (
            f"\n\nLast reconciliation: {done.repaired} repaired, {done.reported} reported,"
            f" {done.failed} failed. {done.first}"
        )

    async def _collect(self, handle: workflow.ActivityHandle[contracts.Forgotten]) -> None:
        try:
            forgotten = await handle
        except ActivityError as error:
            self._survive("retention failed", error)
            return
        workflow.logger.info(
            "retention deleted the logs of %d attempts, %d artifacts, %d blobs",
            forgotten.logs,
            forgotten.artifacts,
            forgotten.blobs,
        )

    def _survive(self, what: str, error: ActivityError) -> None:
        """Tell of a failure and go on, unless it is that an operator cancels upkeep."""
        if workflow.cancellation_reason() is not None:
            raise error
        self._failure = f"{what}: {error.cause or error}"
        workflow.logger.warning("%s", self._failure)
        workflow.set_current_details(f"### Upkeep of `{self._state.partition}`\n\n{self._failure}")

    def _show(self, swept: contracts.SweepSummary) -> None:
        alert = f"**{swept.alert}**\n\n" if swept.alert else ""
        workflow.set_current_details(
            f"### Upkeep of `{self._state.partition}`\n\n{alert}"
            f"Sweep {self._state.rounds}: {swept.expired} leases expired, {swept.due} deadlines "
            f"enforced, {swept.settled} attempts settled, {swept.relayed} events sent late, "
            f"{swept.repaired} repairs.{self._reconciled}"
        )
