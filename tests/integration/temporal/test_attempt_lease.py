"""One attempt through real Temporal: what it costs, what it survives, what it says."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
import sqlalchemy as sa
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import WorkflowExecutionStatus, WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

from activities import contracts, starts
from forgeyard.model.job import FailureClass, RetryPolicy, Timeouts
from forgeyard.model.policy import LeasePolicy, SchedulingPolicy
from forgeyard.model.protocol import Offer, Outcome
from forgeyard.model.units import Millis
from tests.builders import a_job_spec
from tests.integration.temporal.house import QUICK, Cost, Driver, House, attempt_id_of, until
from tests.integration.temporal.stages import grant, leased_silently, start_of
from workflows.attempt_lease import AttemptLease
from workflows.scheduling_cycle import SchedulingCycle

pytestmark = pytest.mark.integration
COMPLETED = WorkflowExecutionStatus.COMPLETED


@pytest.mark.requirement("DSP-003", "DSP-004")
async def test_one_lease_end_to_end_stays_within_its_budget(
    any_house: House, record_property: Callable[[str, object], None]
) -> None:
    house, started = any_house, asyncio.Event()

    async def hold(_offer: Offer) -> None:
        await until(lambda: not house.undelivered())
        attempt = attempt_id_of(house.attempts(run_id)[0])

        async def waits() -> bool:
            return Cost.of(await house.history(attempt)).kinds["TIMER_STARTED"] == 1

        await until(waits)
        started.set()

    async with house.worker(), Driver(house=house, hold=hold).running():
        run_id = await house.submit()
        await house.until_run(run_id, "succeeded")
        assert started.is_set()
        attempt_id = attempt_id_of(house.attempts(run_id)[0])
        await house.until_status(attempt_id, COMPLETED)
        attempt = Cost.of(await house.history(attempt_id))
        cycle_id = await _granting_cycle(house)
        cycle = Cost.of(await house.history(cycle_id))
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(attempt.kinds.items()))
    told = f"{attempt.events} events, {attempt.actions} actions ({kinds})"
    record_property("history of one lease", told)
    record_property("history of one cycle", f"{cycle.events} events, {cycle.actions} actions")
    assert attempt.events <= 18
    assert attempt.actions <= 5
    assert cycle.events <= 30


async def _granting_cycle(house: House) -> str:
    """Find the cycle that leased something: the one that went through all three activities."""
    number = 0
    while True:
        number += 1
        cycle_id = contracts.cycle_workflow_id(house.partition, number)
        await house.until_status(cycle_id, COMPLETED)
        if Cost.of(await house.history(cycle_id)).kinds["ACTIVITY_TASK_SCHEDULED"] == 3:
            return cycle_id


async def test_histories_of_attempt_and_cycle_replay(house: House) -> None:
    async with house.worker(), Driver(house=house).running():
        run_id = await house.submit()
        await house.until_run(run_id, "succeeded")
        attempt_id = attempt_id_of(house.attempts(run_id)[0])
        await house.until_status(attempt_id, COMPLETED)
        ids = (attempt_id, await _granting_cycle(house))
        histories = [WorkflowHistory(id, await house.history(id)) for id in ids]
    replayer = Replayer(
        workflows=[AttemptLease, SchedulingCycle], data_converter=pydantic_data_converter
    )
    for history in histories:
        assert (await replayer.replay_workflow(history)).replay_failure is None


async def test_an_attempt_that_failed_for_our_fault_is_tried_again(house: House) -> None:
    """Without the retry decision there is no second attempt: no upkeep lives here to help out."""
    outcomes = iter([Outcome.FAILED, Outcome.SUCCEEDED])
    driver = Driver(house=house, outcome=lambda _offer: next(outcomes))
    job = a_job_spec(retry=RetryPolicy(max_attempts=2, on=(FailureClass.INFRASTRUCTURE,)))
    async with house.bare_worker(), driver.running():
        run_id = await house.submit(job)
        await house.until_run(run_id, "succeeded")
        first, second = house.attempts(run_id)
        result = await house.client.get_workflow_handle(
            attempt_id_of(first), result_type=contracts.Settled
        ).result()
    assert (first["state"], second["state"]) == ("failed", "succeeded")
    assert result.attempt_state == "failed"
    assert "try again" in result.decision


async def test_an_attempt_whose_failure_is_its_own_is_not_tried_again(house: House) -> None:
    driver = Driver(house=house, outcome=lambda _offer: Outcome.FAILED)
    async with house.worker(), driver.running():
        run_id = await house.submit(a_job_spec(retry=RetryPolicy(max_attempts=2, on=())))
        await house.until_run(run_id, "failed")
    assert [attempt["state"] for attempt in house.attempts(run_id)] == ["failed"]


async def test_a_workflow_that_starts_after_its_attempt_ended_settles_at_once(
    house: House,
) -> None:
    driver = Driver(house=house, outcome=lambda _offer: Outcome.FAILED)
    run_id, offer = leased_silently(house, driver)
    driver.accept(offer)
    driver.complete(offer)
    async with house.bare_worker():
        assert await house.relay() == 2
        attempt_id = attempt_id_of(house.attempts(run_id)[0])
        await house.until_status(attempt_id, COMPLETED)
        cost = Cost.of(await house.history(attempt_id))
    assert cost.kinds["TIMER_STARTED"] == 0
    assert house.attempts(run_id)[0]["settled_at"] is not None


async def test_a_plain_start_after_the_end_reads_and_settles_without_any_event(
    house: House,
) -> None:
    driver = Driver(house=house)
    run_id, offer = leased_silently(house, driver)
    driver.accept(offer)
    driver.complete(offer)
    (attempt,) = house.attempts(run_id)
    async with house.bare_worker():
        await starts.start_attempt(house.client, start_of(attempt), None, task_queue=house.queue)
        await house.until_status(attempt_id_of(attempt), COMPLETED)
        cost = Cost.of(await house.history(attempt_id_of(attempt)))
    assert (cost.kinds["TIMER_STARTED"], cost.kinds["WORKFLOW_EXECUTION_SIGNALED"]) == (0, 0)


def an_event(event_id: str, kind: str = contracts.ATTEMPT_FINISHED) -> contracts.AttemptEvent:
    """Make an event."""
    return contracts.AttemptEvent(event_id=event_id, kind=kind, detail="succeeded")


async def test_duplicated_and_reordered_events_change_nothing(house: House) -> None:
    driver = Driver(house=house)
    run_id, offer = leased_silently(house, driver)
    start = start_of(house.attempts(run_id)[0])
    attempt_id = attempt_id_of(house.attempts(run_id)[0])
    queue = house.queue
    async with house.bare_worker():
        early = an_event("evt_early", "lease.accepted")
        await starts.start_attempt(house.client, start, early, task_queue=queue)
        await starts.start_attempt(house.client, start, an_event("evt_false"), task_queue=queue)
        await _until_settle_calls(house, attempt_id, 1)
        for _ in range(3):
            repeated = an_event("evt_false")
            await starts.start_attempt(house.client, start, repeated, task_queue=queue)
        await starts.start_attempt(house.client, start, early, task_queue=queue)
        await _until_timers(house, attempt_id, 1)
        assert await house.status(attempt_id) == WorkflowExecutionStatus.RUNNING
        driver.accept(offer)
        driver.complete(offer)
        await house.relay()
        await house.until_status(attempt_id, COMPLETED)
        await _until_settle_calls(house, attempt_id, 2)
    assert house.run_state(run_id) == "succeeded"


async def _until_settle_calls(house: House, attempt_id: str, count: int) -> None:
    async def called() -> bool:
        names = [
            event.activity_task_scheduled_event_attributes.activity_type.name
            for event in await house.history(attempt_id)
        ]
        return names.count("attempt.settle") == count

    await until(called, or_say=lambda: f"not {count} calls of attempt.settle")


async def _until_timers(house: House, attempt_id: str, count: int) -> None:
    async def started() -> bool:
        return Cost.of(await house.history(attempt_id)).kinds["TIMER_STARTED"] == count

    await until(started, or_say=lambda: f"not {count} timers")


async def test_a_signal_nobody_can_read_is_dropped(house: House) -> None:
    driver = Driver(house=house)
    run_id, offer = leased_silently(house, driver)
    attempt_id = attempt_id_of(house.attempts(run_id)[0])
    async with house.bare_worker():
        await house.relay()
        handle = house.client.get_workflow_handle(attempt_id)
        await handle.signal(contracts.ATTEMPT_EVENT, "typed into the user interface")
        driver.accept(offer)
        driver.complete(offer)
        await house.relay()
        await house.until_status(attempt_id, COMPLETED)


@pytest.mark.requirement("DSP-007", "LSE-010")
async def test_the_backstop_ends_an_offer_that_nobody_answers_when_no_upkeep_lives(
    house: House,
) -> None:
    lease = LeasePolicy(
        offer_ttl=Millis(2_000), settle_within=Millis(100), deadline_slack=Millis(0)
    )
    policy = SchedulingPolicy(lease=lease, sweep=replace(QUICK.sweep, period=Millis(50)))
    house = house.under(policy)
    driver = Driver(house=house)
    driver.register()
    run_id = house.submit_silently(a_job_spec(timeouts=SHORT))
    assert grant(house) == 1
    async with house.bare_worker():
        await house.relay()
        attempt_id = attempt_id_of(house.attempts(run_id)[0])
        await house.until_status(attempt_id, COMPLETED)
        cost = Cost.of(await house.history(attempt_id))
    (attempt,) = house.attempts(run_id)
    assert cost.kinds["TIMER_FIRED"] == 1
    assert attempt["state"] == "lost"
    assert house.job_states(run_id) == {"build": "eligible"}


SHORT = Timeouts(preparation=Millis(50), execution=Millis(50), upload=Millis(50))


async def test_an_operator_reads_what_the_attempt_is_and_where_it_stands(house: House) -> None:
    driver = Driver(house=house)
    run_id, offer = leased_silently(house, driver)
    attempt_id = attempt_id_of(house.attempts(run_id)[0])
    async with house.bare_worker():
        await house.relay()
        await _until_timers(house, attempt_id, 1)
        handle = house.client.get_workflow_handle(attempt_id)
        described = await handle.describe()
        card = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
        assert await described.static_summary() == "build · demo · runner-1"
        assert "**runner-1**" in (await described.static_details() or "")
        assert described.typed_search_attributes[contracts.KIND] == "attempt"
        assert described.typed_search_attributes[contracts.JOB] == offer.job_id
        assert described.typed_search_attributes[contracts.RUNNER] == "runner-1"
        assert card.current_details.startswith("### build · attempt 1 · leased")
        driver.accept(offer)
        driver.complete(offer)
        await house.relay()
        await house.until_status(attempt_id, COMPLETED)
        described = await handle.describe()
        assert described.typed_search_attributes[contracts.STATE] == "succeeded"


async def test_an_attempt_that_does_not_exist_fails_its_workflow(house: House) -> None:
    start = replace(A_START, attempt_id="att_none", job_id=f"job_{house.partition}")
    async with house.bare_worker():
        await starts.start_attempt(house.client, start, None, task_queue=house.queue)
        workflow_id = contracts.attempt_workflow_id(start.job_id, start.number)
        await house.until_status(workflow_id, WorkflowExecutionStatus.FAILED)


A_START = contracts.AttemptStart(
    attempt_id="", job_id="", number=1, job_name="build", run_name="demo", runner_name="runner-1"
)


async def test_a_settlement_that_loses_a_race_is_asked_for_again(house: House) -> None:
    """A trigger plays the rival that moves the job between the settlement's read and its write."""
    driver = Driver(house=house, outcome=lambda _offer: Outcome.FAILED)
    run_id, offer = leased_silently(house, driver)
    attempt_id = attempt_id_of(house.attempts(run_id)[0])
    # Started by the grant, it has a backstop far away, which must not delay the second question.
    assert await house.relay() == 1
    driver.accept(offer)
    driver.complete(offer)
    house.change(
        sa.text(
            "CREATE TRIGGER rival AFTER UPDATE OF settled_at ON attempts BEGIN"
            " UPDATE jobs SET version = version + 1 WHERE job_id = NEW.job_id; END"
        )
    )
    async with house.bare_worker():
        await house.relay()

        async def lost() -> bool:
            cost = Cost.of(await house.history(attempt_id))
            return cost.kinds["ACTIVITY_TASK_FAILED"] == 1

        await until(lost)
        house.change(sa.text("DROP TRIGGER rival"))
        await house.until_status(attempt_id, COMPLETED)
    assert house.attempts(run_id)[0]["settled_at"] is not None


async def test_a_false_end_makes_the_workflow_read_and_wait_for_the_true_one(house: House) -> None:
    """After an end that SQL knows nothing of, the old backstop is not waited for blindly."""
    driver = Driver(house=house)
    run_id, offer = leased_silently(house, driver)
    start = start_of(house.attempts(run_id)[0])
    attempt_id = attempt_id_of(house.attempts(run_id)[0])
    async with house.bare_worker():
        await house.relay()
        await starts.start_attempt(
            house.client, start, an_event("evt_false"), task_queue=house.queue
        )
        await _until_timers(house, attempt_id, 2)
        names = [
            event.activity_task_scheduled_event_attributes.activity_type.name
            for event in await house.history(attempt_id)
            if event.HasField("activity_task_scheduled_event_attributes")
        ]
        driver.accept(offer)
        driver.complete(offer)
        await house.relay()
        await house.until_status(attempt_id, COMPLETED)
    assert names == ["attempt.settle", "attempt.read"]
