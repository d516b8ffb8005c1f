"""A real agent fetches nothing twice, says what it has, and is never let down by it."""

import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from forgeyard.model.holdings import Holdings
from forgeyard.model.job import CacheSpec, JobSpec, OutputSpec, RetryPolicy
from forgeyard.store import overview, tables
from forgeyard.store.changes import Row
from forgeyard.store.engine import read
from tests.builders import a_job_spec
from tests.integration.agent.control import Control, a_control
from tests.integration.agent.scripts import eventually
from tests.integration.agent.test_agent_end_to_end import a_source, an_agent
from tests.integration.agent.test_location import seen
from tests.scraping import growth, scrape_here

pytestmark = pytest.mark.integration
USUAL = 'test "$(cat file)" = x'
PIP = CacheSpec(name="pip", path=".cache/pip", key=("file",))


@pytest.fixture
async def control(sqlite_engine: sa.Engine, tmp_path: Path) -> AsyncIterator[Control]:
    """Serve the agent API."""
    async with a_control(sqlite_engine, tmp_path) as made, made.listening():
        a_source(tmp_path)
        yield made


def a_job(run: str = USUAL, name: str = "build", **changed: object) -> JobSpec:
    """Describe a job that is tried once."""
    return a_job_spec(name, **{"run": run, "retry": RetryPolicy(max_attempts=1), **changed})


async def ran(control: Control, *jobs: JobSpec) -> list[Row]:
    """Run jobs on the source to their good end; return their attempts."""
    run_id = control.submit(*(jobs or (a_job(),)), source=control.folder / "source")
    assert (await control.follow(run_id))["state"] == "succeeded"
    return control.attempts(run_id)


def archives(control: Control, name: str = "runner-1") -> list[Path]:
    """List what lies on the shelf of an agent."""
    return sorted((control.folder / name / "archives").iterdir())


async def known(control: Control, count: int) -> Holdings:
    """Wait until the agent has said that it has so many archives."""
    await eventually(lambda: len(seen(control).holdings.objects) == count)
    return seen(control).holdings


INPUTS, CACHES = "forgeyard_locality_inputs_total", "forgeyard_locality_caches_total"


@pytest.mark.requirement("SCO-009", "ACC-015", "MET-017")
async def test_an_input_that_is_there_already_is_not_fetched_again(control: Control) -> None:
    before = scrape_here()
    async with an_agent(control, local_cache="1Mi"):
        (first,) = await ran(control)
        (second,) = await ran(control)
        (source,) = control.rows(tables.blobs)
        held = await known(control, 1)
    assert first["bytes_fetched"] == source["size_bytes"]
    assert second["bytes_fetched"] == 0
    assert held.objects == {source["digest"]: source["size_bytes"]}
    assert held.holds(source["digest"])
    counted = growth(before, scrape_here())
    assert counted(INPUTS, where="fetched") == 1
    assert counted(INPUTS, where="at_hand") == 1


async def test_without_a_local_cache_nothing_is_kept(control: Control) -> None:
    async with an_agent(control, local_cache="0"):
        (first,) = await ran(control)
        (second,) = await ran(control)
        assert archives(control) == []
    assert first["bytes_fetched"] == second["bytes_fetched"] > 0


def garble(path: Path) -> None:
    """Put something else in its place, as long as what was there."""
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.requirement("ACC-015", "ACC-016", "SCO-008", "TST-005")
@pytest.mark.parametrize("harm", [Path.unlink, garble], ids=["deleted", "garbled"])
async def test_what_came_to_harm_after_it_was_reported_is_only_fetched_once_more(
    control: Control, harm: Callable[[Path], None]
) -> None:
    async with an_agent(control, local_cache="1Mi"):
        (first,) = await ran(control)
        await known(control, 1)
        (path,) = archives(control)
        harm(path)
        (second,) = await ran(control)
        assert second["bytes_fetched"] == first["bytes_fetched"] > 0
        (third,) = await ran(control)
        assert third["bytes_fetched"] == 0, "what was fetched anew is kept"


@pytest.mark.requirement("SCO-009")
async def test_what_a_job_made_here_is_here_for_the_job_that_needs_it(control: Control) -> None:
    build = a_job("cp file made", outputs=(OutputSpec(name="made", path="made"),))
    check = a_job('test "$(cat made)" = x', "check", needs=("build",))
    async with an_agent(control, local_cache="1Mi"):
        first, second = await ran(control, build, check)
        await known(control, 2)
    assert first["bytes_uploaded"] > 0
    assert second["bytes_fetched"] == 0


@pytest.mark.requirement("SCO-009", "MET-018")
async def test_a_dependency_cache_that_is_here_is_not_fetched_and_its_key_is_known(
    control: Control,
) -> None:
    before = scrape_here()
    async with an_agent(control, local_cache="1Mi"):
        await ran(control, a_job("mkdir -p .cache/pip; echo wheel > .cache/pip/one", caches=(PIP,)))
        (second,) = await ran(control, a_job('test "$(cat .cache/pip/one)" = wheel', caches=(PIP,)))
        (entry,) = control.rows(tables.caches)
        held = await known(control, 2)
    assert "hit, 1 files" in control.log(second["attempt_id"])
    assert second["bytes_fetched"] == 0
    assert held.closures == (entry["cache_key"],)
    assert entry["digest"] in held.objects
    counted = growth(before, scrape_here())
    assert counted(CACHES, where="at_hand") == 1
    assert counted(CACHES, where="fetched") == 0


async def test_the_next_agent_says_at_once_what_the_last_one_kept(control: Control) -> None:
    async with an_agent(control, local_cache="1Mi"):
        await ran(control)
    async with an_agent(control, local_cache="1Mi"):
        assert len(seen(control).holdings.objects) == 1
        (second,) = await ran(control)
    assert second["bytes_fetched"] == 0


@pytest.mark.requirement("RES-006", "RES-007")
async def test_the_room_of_the_local_cache_is_kept_back_whether_it_is_full_or_not(
    control: Control,
) -> None:
    async with an_agent(control, local_cache="1Mi", headroom_disk="3Mi"):
        (runner,) = control.rows(tables.runners)
    assert runner["headroom_disk_bytes"] == 4 * 2**20


@pytest.mark.requirement("RES-024", "RES-026")
async def test_archives_make_room_before_a_host_calls_its_disk_short(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with an_agent(control, local_cache="1Mi"):
        await ran(control)
        await known(control, 1)
        whole = shutil.disk_usage(control.folder)

        def usage(_path: Path) -> object:
            """Show a disk that the archives have filled."""
            free = 0 if archives(control) else whole.total // 2
            return whole._replace(used=whole.total - free, free=free)

        monkeypatch.setattr("shutil.disk_usage", usage)
        await eventually(lambda: archives(control) == [])
        await eventually(lambda: seen(control).holdings.objects == {})
        assert seen(control).state == "online"
        (again,) = await ran(control)
    assert again["bytes_fetched"] > 0


async def test_what_is_at_hand_is_shown_to_operators(control: Control) -> None:
    async with an_agent(control, local_cache="1Mi"):
        await ran(control)
        await known(control, 1)
        with read(control.engine) as connection:
            (runner,) = overview.runners(connection)
    assert (runner.holdings.objects, runner.holdings.has_more) == (1, False)
    assert runner.holdings.bytes > 0
