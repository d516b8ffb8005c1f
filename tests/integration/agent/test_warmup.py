"""A new machine fetches what its jobs will ask for; they and their runner never depend on it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from forgeyard.model.fleet import FleetSpec, WarmUp
from forgeyard.model.job import CacheSpec, RetryPolicy
from forgeyard.model.protocol import WarmUpOutcome
from forgeyard.model.units import Bytes
from forgeyard.store import codec, tables
from forgeyard.store.changes import Row
from tests.builders import a_fleet_spec, a_job_spec
from tests.integration.agent.control import Control, a_control
from tests.integration.agent.machines import a_machine, machine_of
from tests.integration.agent.scripts import eventually
from tests.integration.agent.test_agent_end_to_end import a_source, an_agent
from tests.integration.agent.test_location import seen
from tests.scraping import growth, scrape_here

pytestmark = pytest.mark.integration
PIP = CacheSpec(name="pip", path=".cache/pip", key=("file",))
FILL = "mkdir -p .cache/pip; echo wheel > .cache/pip/one"
WANT = 'test "$(cat .cache/pip/one)" = wheel'
ROOMY = {"local_cache": "1Mi"}
WARMUPS = "forgeyard_fleet_warmups_total"


@pytest.fixture
async def control(sqlite_engine: sa.Engine, tmp_path: Path) -> AsyncIterator[Control]:
    """Serve the agent API."""
    async with a_control(sqlite_engine, tmp_path) as made, made.listening():
        a_source(tmp_path)
        yield made


def a_fleet(**changed: object) -> FleetSpec:
    return a_fleet_spec(warmup=WarmUp(**{"caches": ("pip",), **changed}))


async def ran(control: Control, run: str) -> Row:
    """Run a job that has a cache, once; return its attempt, with its log."""
    job = a_job_spec(run=run, caches=(PIP,), retry=RetryPolicy(max_attempts=1))
    run_id = control.submit(job, source=control.folder / "source")
    await control.follow(run_id)
    (attempt,) = control.attempts(run_id)
    return {**attempt, "log": control.log(attempt["attempt_id"])}


async def filled(control: Control) -> Row:
    """Let a job on an ordinary runner save a cache; return its entry."""
    async with an_agent(control, "older"):
        assert (await ran(control, FILL))["state"] == "succeeded"
    (entry,) = control.rows(tables.caches)
    return entry


async def outcome(control: Control, name: str) -> WarmUpOutcome:
    """Wait until a machine has said how its warm-up went."""
    await eventually(lambda: machine_of(control, name)["warmed_at"] is not None)
    return codec.decode(WarmUpOutcome, machine_of(control, name)["warmup"])


@pytest.mark.requirement("FOP-031", "FOP-030")
async def test_a_new_machine_has_the_caches_that_its_fleet_names_before_its_first_job_asks(
    control: Control,
) -> None:
    entry = await filled(control)
    name = a_machine(control, a_fleet())
    before = scrape_here()
    async with an_agent(control, name, **ROOMY):
        done = await outcome(control, name)
        await eventually(lambda: seen(control, name).holdings.holds(entry["digest"]))
        assert seen(control, name).holdings.closures == (entry["cache_key"],)
        fetched = control.network.seen["caches"]
        job = await ran(control, WANT)
    assert done == WarmUpOutcome(archives=1, bytes_fetched=entry["size_bytes"])
    assert job["state"] == "succeeded", job["log"]
    assert "cache pip: hit" in job["log"]
    assert control.network.seen["caches"] == fetched + 1, "it asks for the digest, and no more"
    assert growth(before, scrape_here())(WARMUPS, fleet="builders", result="complete") == 1
    assert not (control.folder / name / "warmup").exists()


@pytest.mark.requirement("FOP-032", "FOP-033", "FOP-034")
async def test_a_machine_whose_warm_up_fails_is_admitted_and_works_with_a_cold_cache(
    control: Control,
) -> None:
    entry = await filled(control)
    (blob,) = (path for path in control.blobs_on_disk() if entry["digest"].endswith(path.name))
    blob.unlink()
    name = a_machine(control, a_fleet())
    before = scrape_here()
    async with an_agent(control, name, **ROOMY):
        done = await outcome(control, name)
        (runner,) = control.rows(tables.runners, name=name)
        job = await ran(control, f"test ! -e .cache; {FILL}")
    assert (done.archives, done.missing) == (0, 1)
    assert "no archive of this warm-up" in done.problem
    standing = (runner["state"], runner["health"], runner["admission"])
    assert standing == ("online", "healthy", "verified")
    assert job["state"] == "succeeded", job["log"]
    assert "cache pip: miss" in job["log"]
    assert growth(before, scrape_here())(WARMUPS, fleet="builders", result="incomplete") == 1


@pytest.mark.requirement("FOP-033", "FOP-034")
async def test_jobs_do_not_wait_for_a_warm_up_that_takes_its_time_and_it_ends_in_time(
    control: Control,
) -> None:
    await filled(control)
    name = a_machine(control, a_fleet(within=3_000))
    control.network.hold("warmup")
    async with an_agent(control, name, **ROOMY):
        job = await ran(control, WANT)
        assert job["state"] == "succeeded", job["log"]
        assert machine_of(control, name)["warmed_at"] is None
        done = await outcome(control, name)
        control.network.release()
    assert (done.missing, done.problem) == (1, "not everything came within 3 s")


async def test_what_has_no_room_in_the_local_cache_stays_away(control: Control) -> None:
    await filled(control)
    name = a_machine(control, a_fleet())
    async with an_agent(control, name, local_cache="0"):
        done = await outcome(control, name)
    assert done == WarmUpOutcome(missing=1, problem="the local cache has no room for everything")


async def test_no_more_is_fetched_than_the_fleet_allows(control: Control) -> None:
    entry = await filled(control)
    name = a_machine(control, a_fleet(at_most=Bytes(entry["size_bytes"] - 1)))
    async with an_agent(control, name, **ROOMY):
        assert await outcome(control, name) == WarmUpOutcome()
