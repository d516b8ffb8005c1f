"""The real agent with caches and test reports, against the real agent API and store."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from forgeyard.model import protocol
from forgeyard.model.job import CacheSpec, FailureClass, JobSpec, OutputSpec, RetryPolicy, Step
from forgeyard.model.units import Millis
from forgeyard.store import codec, tables
from forgeyard.store.changes import Row
from tests.builders import a_job_spec
from tests.integration.agent.control import Control, a_control
from tests.integration.agent.scripts import eventually, number_in
from tests.integration.agent.test_agent_end_to_end import a_source, an_agent

pytestmark = pytest.mark.integration

PIP = CacheSpec(name="pip", path=".cache/pip", key=("file",))
FILL = "mkdir -p .cache/pip; echo wheel > .cache/pip/one; echo wheel > .cache/pip/two"
WANT = 'test "$(cat .cache/pip/one)" = wheel'
REPORT = """mkdir reports; cat > reports/a.xml <<'EOF'
<testsuite><testcase classname="unit" name="fine" time="0.25"/>
<testcase classname="unit" name="broken"><failure message="expected 1, got hunter22"/></testcase>
<testcase classname="unit" name="later"><skipped/></testcase></testsuite>
EOF
"""
TOO_DEEP = (
    f"for _ in 1 2 3 4 5 6 7 8 9 a b c d e f g h i j k l; do mkdir {'d' * 240}; cd -P d*; done"
)
"""Directories whose path is longer than the system takes."""


@pytest.fixture
async def control(sqlite_engine: sa.Engine, tmp_path: Path) -> AsyncIterator[Control]:
    """Serve the agent API."""
    async with a_control(sqlite_engine, tmp_path) as made, made.listening():
        yield made


def a_job(run: str, **changed: object) -> JobSpec:
    """Describe a job with one cache, which is tried once."""
    usual = {"run": run, "retry": RetryPolicy(max_attempts=1), "caches": (PIP,)}
    return a_job_spec(**{**usual, **changed})


async def ran(control: Control, tmp_path: Path, job: JobSpec, *, source: bool = True) -> Row:
    """Run a job to its end; return its last attempt, with its log."""
    here = tmp_path / "source"
    if source and not here.exists():
        a_source(tmp_path)
    run_id = control.submit(job, source=here if source else None)
    await control.follow(run_id)
    attempt = control.attempts(run_id)[-1]
    return {**attempt, "log": control.log(attempt["attempt_id"])}


def keys(control: Control) -> set[str]:
    """Read the keys of all caches."""
    return {row["cache_key"] for row in control.rows(tables.caches)}


async def test_a_miss_is_saved_and_the_next_attempt_finds_it(
    control: Control, tmp_path: Path
) -> None:
    async with an_agent(control):
        first = await ran(control, tmp_path, a_job(FILL))
        assert first["state"] == "succeeded"
        assert "cache pip: miss\n" in first["log"]
        assert "cache pip: saved, 2 files in 0.0 MB\n" in first["log"]
        second = await ran(control, tmp_path, a_job(WANT))
        assert second["state"] == "succeeded", second["log"]
        assert "cache pip: hit, 2 files from 0.0 MB\n" in second["log"]
        assert "saved" not in second["log"]
    (entry,) = control.rows(tables.caches)
    assert first["bytes_uploaded"] == entry["size_bytes"]
    assert second["bytes_fetched"] == first["bytes_fetched"] + entry["size_bytes"]


async def test_other_key_files_are_another_cache(control: Control, tmp_path: Path) -> None:
    async with an_agent(control):
        await ran(control, tmp_path, a_job(FILL))
        (tmp_path / "source" / "file").write_text("changed")
        changed = await ran(control, tmp_path, a_job(FILL))
    assert "cache pip: miss\n" in changed["log"]
    assert len(keys(control)) == 2


async def test_the_key_is_that_of_the_inputs_whatever_the_steps_do(
    control: Control, tmp_path: Path
) -> None:
    async with an_agent(control):
        await ran(control, tmp_path, a_job(f"echo changed > file; {FILL}"))
        again = await ran(control, tmp_path, a_job(WANT))
    assert again["state"] == "succeeded", again["log"]


async def test_a_runner_of_another_trust_class_never_sees_it(
    control: Control, tmp_path: Path
) -> None:
    async with an_agent(control, trust="untrusted_general"):
        await ran(control, tmp_path, a_job(FILL))
        assert len(keys(control)) == 1
    async with an_agent(control, "runner-2", trust="trusted_internal"):
        other = await ran(control, tmp_path, a_job(f"test ! -e .cache; {FILL}"))
    assert other["state"] == "succeeded", other["log"]
    assert "cache pip: miss\n" in other["log"]
    assert {row["trust"] for row in control.rows(tables.caches)} == {
        "untrusted_general",
        "trusted_internal",
    }


async def test_a_failed_job_saves_nothing(control: Control, tmp_path: Path) -> None:
    missing = (OutputSpec(name="out", path="dist"),)
    async with an_agent(control):
        await ran(control, tmp_path, a_job(f"{FILL}; exit 3"))
        await ran(control, tmp_path, a_job(FILL, outputs=missing))
        nothing = await ran(control, tmp_path, a_job("true"))
    assert nothing["state"] == "succeeded"
    assert "cache pip: not saved, .cache/pip matches no file\n" in nothing["log"]
    assert keys(control) == set()


async def test_a_key_that_matches_nothing_fails_before_any_step(
    control: Control, tmp_path: Path
) -> None:
    lost = replace(PIP, key=("file", "absent.lock"))
    async with an_agent(control):
        attempt = await ran(control, tmp_path, a_job("echo never", caches=(lost,)))
    assert (attempt["state"], attempt["started_at"]) == ("failed", None)
    assert attempt["failure_class"] == FailureClass.USER_COMMAND
    assert "the key 'absent.lock' matches no file" in attempt["message"]


async def test_a_damaged_cache_is_a_miss_and_a_note(control: Control, tmp_path: Path) -> None:
    async with an_agent(control):
        await ran(control, tmp_path, a_job(FILL))
        (entry,) = control.rows(tables.caches)
        (blob,) = (p for p in control.blobs_on_disk() if entry["digest"].endswith(p.name))
        blob.chmod(0o600)
        blob.write_bytes(b"x" * entry["size_bytes"])
        attempt = await ran(control, tmp_path, a_job(f"test ! -e .cache; {FILL}"))
        assert attempt["state"] == "succeeded", attempt["log"]
        assert "cache pip: miss" in attempt["log"]
        assert "cache pip: saved, " in attempt["log"]
        assert "hit, 2 files" in (await ran(control, tmp_path, a_job(WANT)))["log"]


async def test_an_archive_of_other_files_touches_nothing_but_the_path_of_the_cache(
    control: Control, tmp_path: Path
) -> None:
    async with an_agent(control):
        await ran(control, tmp_path, a_job(FILL))
        (entry,) = control.rows(tables.caches)
        (tmp_path / "source" / "planted").write_text("x")
        run_id = control.submit(a_job("true", caches=()), source=tmp_path / "source")
        await control.follow(run_id)
        planted = control.run(run_id)["source_digest"]
        (tmp_path / "source" / "planted").unlink()
        control.change(tables.caches, {"digest": entry["digest"]}, digest=planted)
        attempt = await ran(control, tmp_path, a_job("test ! -e planted; test ! -e .cache"))
    assert attempt["state"] == "succeeded", attempt["log"]
    assert "cache pip: hit, 0 files" in attempt["log"]


async def test_what_another_job_saved_meanwhile_is_not_sent_again(
    control: Control, tmp_path: Path
) -> None:
    ready, go = tmp_path / "ready", tmp_path / "go"
    wait = f"{FILL}; echo $$ > {ready}; while [ ! -e {go} ]; do sleep 0.02; done"
    async with an_agent(control):
        slow = control.submit(a_job(wait), source=a_source(tmp_path))
        await control.until_running(slow)
        await number_in(ready)
        await ran(control, tmp_path, a_job(FILL))
        go.touch()
        await control.follow(slow)
    (attempt,) = control.attempts(slow)
    assert "cache pip: saved by another job meanwhile\n" in control.log(attempt["attempt_id"])
    assert attempt["bytes_uploaded"] == 0


async def test_a_server_that_fails_at_caches_fails_no_job(control: Control, tmp_path: Path) -> None:
    async with an_agent(control):
        control.network.break_down("caches")
        attempt = await ran(control, tmp_path, a_job(FILL))
    assert attempt["state"] == "succeeded", attempt["log"]
    assert "cache pip: miss, 502" in attempt["log"]
    assert "cache pip: not saved, 502" in attempt["log"]
    assert control.network.seen["caches"] == 4, "twice to find it, twice before saving it"


async def test_a_cache_that_takes_too_long_is_given_up_and_the_job_goes_on(
    control: Control, tmp_path: Path
) -> None:
    job = a_job(FILL)
    job = replace(
        job, timeouts=replace(job.timeouts, preparation=Millis(1_500), upload=Millis(1_000))
    )
    async with an_agent(control):
        control.network.hold("caches")
        attempt = await ran(control, tmp_path, job)
        control.network.release()
    assert attempt["state"] == "succeeded", attempt["message"]
    assert "cache pip: miss, timed out\n" in attempt["log"]
    assert "cache pip: not saved, timed out\n" in attempt["log"]


async def test_an_agent_that_is_stopped_while_it_saves_a_cache_still_reports_the_success(
    control: Control, tmp_path: Path
) -> None:
    ready, go = tmp_path / "ready", tmp_path / "go"
    wait = f"{FILL}; echo $$ > {ready}; while [ ! -e {go} ]; do sleep 0.02; done"
    run_id = control.submit(a_job(wait), source=a_source(tmp_path))
    async with an_agent(control):
        await control.until_running(run_id)
        await number_in(ready)
        asked = control.network.seen["caches"]
        control.network.hold("caches")
        go.touch()
        await eventually(lambda: control.network.seen["caches"] > asked)
    control.network.release()
    (attempt,) = control.attempts(run_id)
    assert attempt["state"] == "succeeded", attempt["message"]
    assert "cache pip: not saved, shutdown\n" in control.log(attempt["attempt_id"])


async def test_a_job_that_is_cancelled_while_it_waits_for_a_cache_is_cancelled(
    control: Control, tmp_path: Path
) -> None:
    run_id = control.submit(a_job(f"touch {tmp_path}/ran"), source=a_source(tmp_path))
    async with an_agent(control):
        control.network.hold("caches")
        control.schedule()
        await eventually(lambda: control.network.seen["caches"] == 1)
        control.cancel(run_id)
        assert (await control.follow(run_id))["state"] == "cancelled"
        control.network.release()
    assert not (tmp_path / "ran").exists()


def counted_in(attempt: Row) -> protocol.TestCounts:
    """Read what was counted."""
    return codec.decode(protocol.TestCounts, attempt["tests"])


async def test_a_failed_step_is_blamed_on_the_tests_that_its_report_names(
    control: Control, tmp_path: Path
) -> None:
    secrets = tmp_path / "secrets"
    secrets.write_text("TOKEN=hunter22\n")
    secrets.chmod(0o600)
    job = a_job(
        f"{REPORT}exit 1",
        caches=(),
        secrets=("TOKEN",),
        test_reports=("reports/*.xml", "more.xml"),
        retry=RetryPolicy(max_attempts=3),
    )
    async with an_agent(control, secrets_file=str(secrets)):
        attempt = await ran(control, tmp_path, job)
    assert (attempt["state"], attempt["number"]) == ("failed", 1), "no reason to try again"
    assert attempt["failure_class"] == FailureClass.TEST_FAILURE
    assert attempt["exit_code"] == 1
    counted = counted_in(attempt)
    assert (counted.tests, counted.failures, counted.skipped, counted.time) == (3, 1, 1, 250)
    (failing,) = counted.failing
    assert (failing.name, failing.message) == ("unit.broken", "expected 1, got ***")
    assert "test reports: more.xml matches no file\n" in attempt["log"]


async def test_reports_never_change_how_a_job_ends(control: Control, tmp_path: Path) -> None:
    reports = {"caches": (), "test_reports": ("reports/*",)}
    async with an_agent(control):
        well = await ran(control, tmp_path, a_job(REPORT, **reports))
        assert (well["state"], counted_in(well).failed) == ("succeeded", 1)
        bad = await ran(control, tmp_path, a_job("mkdir reports; echo x > reports/a", **reports))
        assert (bad["state"], counted_in(bad).unreadable) == ("succeeded", 1)
        assert "test reports: reports/a: not a test report" in bad["log"]
        none = await ran(control, tmp_path, a_job("exit 4", **reports))
        assert (none["failure_class"], none["tests"]) == (FailureClass.USER_COMMAND, None)
        gone = await ran(control, tmp_path, a_job('rm -rf "$FORGEYARD_WORKSPACE"', **reports))
        assert (gone["state"], gone["tests"]) == ("succeeded", None)
        reports["test_reports"] = ("**/*.xml",)
        deep = await ran(control, tmp_path, a_job(TOO_DEEP, **reports))
        assert (deep["state"], deep["tests"]) == ("succeeded", None), deep["log"]
        assert "test reports: cannot be read: " in deep["log"]


async def test_each_step_says_when_it_began(control: Control, tmp_path: Path) -> None:
    steps = (Step(name="first", run="sleep 0.3"), Step(name="second", run="exit 1"))
    async with an_agent(control):
        attempt = await ran(control, tmp_path, a_job("", steps=steps, caches=()), source=False)
    first, second = codec.decode(tuple[protocol.StepResult, ...], attempt["steps"])
    # Each figure is rounded for itself.
    assert 0 <= first.began < first.began + first.wall <= second.began + 1
    assert first.wall >= 300
    assert second.began <= attempt["wall_ms"]
