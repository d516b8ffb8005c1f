"""How far a test brings a job before it begins: the store's part, without workflows."""

from activities import contracts
from activities.scheduling import SchedulingActivities
from forgeyard.model.protocol import Offer
from tests.builders import RNG
from tests.integration.temporal.house import Driver, House


def grant(house: House) -> int:
    """Plan and commit one cycle as the worker would; return how many leases it granted."""
    body = SchedulingActivities(house.engine, house.parts.policy, rng=RNG)
    plan = body.plan_cycle(contracts.Partition(partition=house.partition))
    cycle = contracts.Cycle(cycle_id=plan.cycle_id, partition=house.partition)
    return body.commit_cycle(cycle).granted


def leased_silently(house: House, driver: Driver) -> tuple[str, Offer]:
    """Bring one job as far as its offer without any workflow."""
    driver.register()
    run_id = house.submit_silently()
    assert grant(house) == 1
    (offer,) = driver.offers()
    return run_id, offer


def start_of(attempt: dict) -> contracts.AttemptStart:
    """Describe an attempt row to its workflow."""
    return contracts.AttemptStart(
        attempt_id=attempt["attempt_id"],
        job_id=attempt["job_id"],
        number=attempt["number"],
        job_name="build",
        run_name="demo",
        runner_name="runner-1",
    )
