"""The real agent against the real agent API over a socket; only the scheduler is done by hand."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from forgeyard.agent.loop import Agent, run_agent
from forgeyard.config import child_environment
from forgeyard.errors import Conflict, Forbidden, Unauthenticated
from forgeyard.model.job import FailureClass, JobSpec, OutputSpec, RetryPolicy, Step, Timeouts
from forgeyard.model.units import Millis
from forgeyard.store import policies, tables
from forgeyard.store.engine import write
from tests.builders import a_job_spec, a_registration, job_states
from tests.integration.agent.control import TOKEN, Control, a_control, a_policy
from tests.integration.agent.scripts import eventually, is_alive, number_in, text_of

pytestmark = pytest.mark.integration
ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture
async def control(sqlite_engine: sa.Engine, tmp_path: Path) -> AsyncIterator[Control]:
    """Serve the agent API."""
    async with a_control(sqlite_engine, tmp_path) as made, made.listening():
        yield made


@asynccontextmanager
async def an_agent(
    control: Control, name: str = "runner-1", **changed: object
) -> AsyncIterator[Agent]:
    """Run an agent in this event loop; end it at once afterwards."""
    agent = Agent(control.settings(name, **changed), kill_after=0.5)
    running = asyncio.create_task(agent.run())
    try:
        await control.registered(name)
        yield agent
    finally:
        agent.halt()
        assert await asyncio.wait_for(running, 20) == 0


def a_job(run: str, name: str = "build", **changed: object) -> JobSpec:
    """Describe a job that is tried only once."""
    return a_job_spec(name, **{"run": run, "retry": ONCE, **changed})


def a_source(folder: Path) -> Path:
    """Write a directory with one file."""
    source = folder / "source"
    source.mkdir()
    (source / "file").write_text("x")
    return source


def states(control: Control, run_id: str) -> dict[str, str]:
    """Read the states of a run's jobs."""
    with control.engine.connect() as connection:
        return job_states(connection, run_id)


@pytest.mark.requirement("RUN-008")
async def test_a_job_runs_and_its_output_reaches_the_job_that_needs_it(
    control: Control, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    (source / "src").mkdir(parents=True)
    (source / "src" / "main.txt").write_text("hello")
    build = a_job(
        "mkdir -p dist; tr a-z A-Z < src/main.txt > dist/out.txt; echo built",
        outputs=(OutputSpec(name="out", path="dist/*.txt"),),
    )
    check = a_job('test "$(cat dist/out.txt)" = HELLO; cat src/main.txt', "check", needs=("build",))
    run_id = control.submit(build, check, source=source)
    async with an_agent(control):
        assert (await control.follow(run_id))["state"] == "succeeded"
        first, second = control.attempts(run_id)
        assert "built\n" in control.log(first["attempt_id"])
        assert control.log(second["attempt_id"]).endswith("hello")
        assert first["wall_ms"] > 0
        assert first["bytes_fetched"] > 0
        assert first["bytes_uploaded"] > 0
        (lease, _) = control.rows(tables.leases)
        assert lease["state"] == "released"
        await eventually(lambda: not list((tmp_path / "runner-1" / "jobs").iterdir()))


@pytest.mark.requirement("DSP-002", "DSP-005")
async def test_an_offer_that_comes_again_and_again_starts_one_process(
    control: Control, tmp_path: Path
) -> None:
    run_id = control.submit(a_job(f"echo x >> {tmp_path}/ran"))
    async with an_agent(control):
        control.network.hold("accept")
        control.schedule()
        await eventually(lambda: control.network.seen["accept"] == 1)
        polls = control.network.seen["poll"]
        await eventually(lambda: control.network.seen["poll"] >= polls + 4)
        control.network.release()
        assert (await control.follow(run_id))["state"] == "succeeded"
    assert control.network.seen["accept"] == 1
    assert text_of(tmp_path / "ran") == "x\n"


async def test_answers_that_get_lost_are_asked_for_again_and_nothing_happens_twice(
    control: Control, tmp_path: Path
) -> None:
    script = f"echo x >> {tmp_path}/ran; echo once; cp file kept"
    outputs = (OutputSpec(name="kept", path="kept"),)
    run_id = control.submit(a_job(script, outputs=outputs), source=a_source(tmp_path))
    kinds = {"accept", "progress", "logs", "outputs", "complete", "inputs"}
    async with an_agent(control):
        control.network.lose_one_answer_each(*kinds)
        assert (await control.follow(run_id))["state"] == "succeeded"
    assert set(control.network.lost) == kinds
    (attempt,) = control.attempts(run_id)
    assert control.log(attempt["attempt_id"]).count("once\n") == 1
    assert text_of(tmp_path / "ran") == "x\n"
    assert len(control.rows(tables.artifacts)) == 1


async def test_a_registration_whose_answer_is_lost_opens_one_session(control: Control) -> None:
    control.network.lose_one_answer_each("sessions")
    run_id = control.submit(a_job("true"))
    async with an_agent(control):
        assert (await control.follow(run_id))["state"] == "succeeded"
    assert control.network.lost == ["sessions"]
    assert len(control.rows(tables.sessions)) == 1


async def test_a_failing_step_fails_the_job_with_its_code_and_its_last_line(
    control: Control,
) -> None:
    steps = (
        Step(name="fine", run="echo fine"),
        Step(name="breaks", run="echo before; printf 'the last words'; exit 3"),
        Step(name="never", run="echo never"),
    )
    run_id = control.submit(a_job("", steps=steps))
    async with an_agent(control):
        assert (await control.follow(run_id))["state"] == "failed"
    (attempt,) = control.attempts(run_id)
    assert attempt["state"] == "failed"
    assert attempt["failure_class"] == FailureClass.USER_COMMAND
    assert attempt["exit_code"] == 3
    assert "breaks" in attempt["message"]
    log = control.log(attempt["attempt_id"])
    assert "the last words" in log
    assert "never" not in log
    assert '"exit_code":3' in attempt["steps"]


async def test_a_secret_is_given_where_it_is_granted_and_nowhere_shown(
    control: Control, tmp_path: Path
) -> None:
    path = tmp_path / "secrets"
    path.write_text("TOKEN=hunter22\nOTHER=swordfish\n")
    path.chmod(0o600)
    script = 'test "$TOKEN" = hunter22; test -z "${OTHER:-}"; echo "<$TOKEN>"; exit 5'
    run_id = control.submit(a_job(script, secrets=("TOKEN",)))
    async with an_agent(control, secrets_file=str(path)):
        await control.follow(run_id)
    (attempt,) = control.attempts(run_id)
    assert attempt["exit_code"] == 5
    assert "<***>" in control.log(attempt["attempt_id"])
    assert "hunter22" not in str(control.rows(tables.log_chunks)) + str(attempt)


async def test_an_offer_is_refused_where_a_secret_is_not_granted(control: Control) -> None:
    run_id = control.submit(a_job("true", secrets=("TOKEN",)))
    async with an_agent(control):
        assert control.schedule() == 1
        await eventually(lambda: control.attempts(run_id)[0]["state"] == "rejected")
        assert states(control, run_id) == {"build": "eligible"}
        (refused,) = control.rows(tables.refusals)
        assert "TOKEN" in refused["reason"]


async def test_a_cancelled_job_is_ended_and_says_so(control: Control, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = f"trap 'echo goodbye; exit 1' TERM; echo $$ > {ready}; while :; do sleep 0.05; done"
    run_id = control.submit(a_job(script))
    async with an_agent(control):
        await control.until_running(run_id)
        leader = await number_in(ready)
        control.cancel(run_id)
        assert (await control.follow(run_id))["state"] == "cancelled"
        assert not is_alive(leader)
    (attempt,) = control.attempts(run_id)
    assert attempt["state"] == "cancelled"
    assert "goodbye\n" in control.log(attempt["attempt_id"])


async def test_a_job_that_takes_too_long_times_out(control: Control, tmp_path: Path) -> None:
    child = tmp_path / "child"
    timeouts = Timeouts(execution=Millis(400))
    run_id = control.submit(
        a_job(f"sleep 60 & echo $! > {child}; echo started; wait", timeouts=timeouts)
    )
    async with an_agent(control):
        await control.follow(run_id)
        assert not is_alive(await number_in(child))
    (attempt,) = control.attempts(run_id)
    assert attempt["state"] == "timed_out"
    assert attempt["failure_class"] == FailureClass.TIMEOUT
    assert "started\n" in control.log(attempt["attempt_id"])


async def test_a_missing_required_output_is_the_jobs_fault(control: Control) -> None:
    outputs = (
        OutputSpec(name="maybe", path="x/*", required=False),
        OutputSpec(name="out", path="dist/*"),
    )
    run_id = control.submit(a_job("true", outputs=outputs))
    async with an_agent(control):
        assert (await control.follow(run_id))["state"] == "failed"
    (attempt,) = control.attempts(run_id)
    assert attempt["failure_class"] == FailureClass.USER_COMMAND
    assert "dist/*" in attempt["message"]


async def test_a_pipe_in_the_place_of_an_output_hangs_nobody(control: Control) -> None:
    script = "mkdir dist; echo x > dist/x; /usr/bin/mkfifo ../transfer/output-out"
    job = a_job(script, outputs=(OutputSpec(name="out", path="dist/*"),))
    run_id = control.submit(job)
    async with an_agent(control):
        assert (await control.follow(run_id))["state"] == "succeeded", control.attempts(run_id)[0][
            "message"
        ]


async def test_an_input_that_does_not_match_its_digest_is_not_unpacked(
    control: Control, tmp_path: Path
) -> None:
    run_id = control.submit(a_job("touch ran"), source=a_source(tmp_path))
    (blob,) = control.blobs_on_disk()
    blob.chmod(0o600)
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 0xFF
    blob.write_bytes(data)
    async with an_agent(control):
        assert (await control.follow(run_id))["state"] == "failed"
    (attempt,) = control.attempts(run_id)
    assert attempt["failure_class"] == FailureClass.INPUT_FETCH


async def test_several_jobs_run_side_by_side_up_to_the_slots(
    control: Control, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    meet = f"echo x >> {here}; while [ $(wc -l < {here}) -lt 3 ]; do sleep 0.02; done"
    run_id = control.submit(*(a_job(meet, f"job-{n}") for n in range(3)))
    async with an_agent(control, jobs=3):
        assert (await control.follow(run_id))["state"] == "succeeded"


async def test_a_lease_that_the_server_took_away_is_killed_and_not_reported(
    control: Control, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    run_id = control.submit(a_job(f"echo $$ > {ready}; sleep 60"))
    async with an_agent(control):
        await control.until_running(run_id)
        leader = await number_in(ready)
        (lease,) = control.rows(tables.leases)
        control.change(tables.leases, {"lease_id": lease["lease_id"]}, expires_at=1)
        control.sweep()
        await eventually(lambda: not is_alive(leader))
        await eventually(lambda: not list((tmp_path / "runner-1" / "jobs").iterdir()))
    (attempt,) = control.attempts(run_id)
    assert attempt["state"] == "lost"
    assert not [row for row in control.rows(tables.audit) if "late_result" in row["action"]]


async def test_a_fenced_session_kills_everything_and_registers_anew(
    control: Control, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    script = f"echo $$ >> {ready}; test $FORGEYARD_ATTEMPT = 2 || sleep 60"
    run_id = control.submit(a_job(script, retry=RetryPolicy(max_attempts=2)))
    async with an_agent(control):
        await control.until_running(run_id)
        leader = await number_in(ready)
        # Somebody registers under the same name: this agent's session is superseded.
        first = control.rows(tables.sessions)[0]["session_id"]
        async with control.client() as other:
            await other.register(a_registration())
        await eventually(lambda: not is_alive(leader))
        await eventually(lambda: len(control.rows(tables.sessions)) >= 3)
        assert control.rows(tables.sessions, session_id=first)[0]["state"] == "superseded"
        assert (await control.follow(run_id))["state"] == "succeeded"
    assert [row["state"] for row in control.attempts(run_id)] == ["lost", "succeeded"]


async def test_work_goes_on_through_an_outage_shorter_than_the_lease(
    sqlite_engine: sa.Engine, tmp_path: Path
) -> None:
    ready, go = tmp_path / "ready", tmp_path / "go"
    script = f"echo $$ > {ready}; while [ ! -e {go} ]; do sleep 0.02; done; echo survived"
    async with a_control(sqlite_engine, tmp_path) as control:
        async with control.listening():
            run_id = control.submit(a_job(script))
            agent = Agent(control.settings())
            running = asyncio.create_task(agent.run())
            await control.registered()
            await control.until_running(run_id)
            await number_in(ready)
        go.touch()  # it ends while nobody listens
        leader = int(text_of(ready))
        await eventually(lambda: not is_alive(leader))
        async with control.listening():
            assert (await control.follow(run_id))["state"] == "succeeded"
            (attempt,) = control.attempts(run_id)
            assert control.log(attempt["attempt_id"]).endswith("survived\n")
            agent.drain()
            await asyncio.wait_for(running, 20)


async def test_an_agent_that_cannot_renew_kills_its_jobs_when_the_lease_lapses(
    sqlite_engine: sa.Engine, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    policy = a_policy(execution_ttl=1_000, connectivity_grace=300)
    async with a_control(sqlite_engine, tmp_path, policy=policy) as control:
        async with control.listening():
            run_id = control.submit(a_job(f"trap '' TERM; echo $$ > {ready}; sleep 60; sleep 60"))
            agent = Agent(control.settings())
            running = asyncio.create_task(agent.run())
            await control.registered()
            await control.until_running(run_id)
            leader = await number_in(ready)
        await eventually(lambda: not is_alive(leader), within=5)
        agent.halt()
        await asyncio.wait_for(running, 20)


@pytest.mark.requirement("RUN-002")
async def test_a_drained_agent_finishes_what_runs_and_takes_nothing_more(
    control: Control, tmp_path: Path
) -> None:
    ready, go = tmp_path / "ready", tmp_path / "go"
    stop = asyncio.Event()
    running = asyncio.create_task(run_agent(control.settings(), stop))
    await control.registered()
    script = f"echo $$ > {ready}; while [ ! -e {go} ]; do sleep 0.02; done"
    run_id = control.submit(a_job(script))
    await control.until_running(run_id)
    await number_in(ready)
    stop.set()
    await eventually(lambda: control.rows(tables.runners)[0]["state"] == "draining")
    later = control.submit(a_job("true"))
    assert control.schedule() == 0
    go.touch()
    assert await asyncio.wait_for(running, 20) == 0
    assert control.run(run_id)["state"] == "succeeded"
    assert states(control, later) == {"build": "eligible"}
    assert control.rows(tables.runners)[0]["state"] == "offline"
    assert control.rows(tables.sessions)[0]["state"] == "closed"


async def test_an_agent_that_leaves_says_so_until_it_is_heard(control: Control) -> None:
    stop = asyncio.Event()
    running = asyncio.create_task(run_agent(control.settings(), stop))
    await control.registered()
    control.network.break_down("sessions")
    stop.set()
    await eventually(lambda: control.network.seen["DELETE"] > 0)
    control.network.break_down("")
    assert await asyncio.wait_for(running, 20) == 0
    assert control.rows(tables.sessions)[0]["state"] == "closed"


async def test_an_agent_told_to_end_at_once_hands_its_job_back(
    control: Control, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    run_id = control.submit(a_job(f"echo $$ > {ready}; echo begun; sleep 60"))
    async with an_agent(control):
        await control.until_running(run_id)
        leader = await number_in(ready)
    (attempt,) = control.attempts(run_id)
    assert not is_alive(leader)
    assert attempt["state"] == "failed"
    assert attempt["failure_class"] == FailureClass.INFRASTRUCTURE
    assert "begun\n" in control.log(attempt["attempt_id"])


SERVE = """
import json, sys
from forgeyard.agent.loop import AgentSettings, serve
from forgeyard.config import LimitsConfig
from forgeyard.machine_settings import AgentConfig
url, token, config = sys.argv[1:]
sys.exit(serve(AgentSettings(
    urls=(url,), token=token, config=AgentConfig.model_validate_json(config), limits=LimitsConfig()
)))
"""


def started(control: Control, **changed: object) -> "subprocess.Popen[bytes]":
    """Start an agent as a process of its own."""
    config = control.settings(**changed).config.model_dump_json()
    with (control.folder / "agent.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-c", SERVE, control.url, TOKEN, config],
            stdout=subprocess.DEVNULL,
            stderr=log,
            env=child_environment(),
        )


@asynccontextmanager
async def a_process(
    control: Control, **changed: object
) -> "AsyncIterator[subprocess.Popen[bytes]]":
    """Run an agent as a process of its own; kill it if it is still there afterwards."""
    process = started(control, **changed)
    try:
        yield process
    finally:
        process.kill()
        await ended(process)


async def ended(process: "subprocess.Popen[bytes]") -> int:
    """Wait for a process to end."""
    await eventually(lambda: process.poll() is not None)
    return process.wait()


async def test_a_killed_agents_leftovers_are_gone_when_its_successor_registers(
    control: Control, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    script = (
        f"echo $$ >> {ready}; test $FORGEYARD_ATTEMPT = 1 || exit 0; trap '' PIPE TERM\n"
        "while :; do sleep 0.05; done"
    )
    run_id = control.submit(a_job(script, retry=RetryPolicy(max_attempts=2)))
    async with a_process(control) as first:
        await control.registered()
        await control.until_running(run_id)
        leader = await number_in(ready)
        first.kill()
        await ended(first)
    assert is_alive(leader)
    async with a_process(control) as second:
        await eventually(lambda: len(control.rows(tables.sessions)) == 2)
        assert not is_alive(leader)
        assert (await control.follow(run_id))["state"] == "succeeded"
        assert [row["state"] for row in control.attempts(run_id)] == ["lost", "succeeded"]
        second.send_signal(signal.SIGTERM)
        assert await ended(second) == 0


async def test_a_frozen_agent_starts_nothing_after_its_lease_lapsed(
    sqlite_engine: sa.Engine, tmp_path: Path
) -> None:
    """Accepted, frozen while it waits for its input, thawed when the attempt is lost."""
    policy = a_policy(execution_ttl=2_500, connectivity_grace=0)
    async with (
        a_control(sqlite_engine, tmp_path, policy=policy) as control,
        control.listening(),
        a_process(control) as process,
    ):
        control.network.hold("inputs")
        script = f"touch {tmp_path}/ran-$FORGEYARD_ATTEMPT"
        again = RetryPolicy(max_attempts=4)
        run_id = control.submit(a_job(script, retry=again), source=a_source(tmp_path))
        await control.registered()
        control.schedule()
        await eventually(lambda: control.network.seen["inputs"] == 1)
        process.send_signal(signal.SIGSTOP)
        control.network.release()

        def is_lost() -> bool:
            control.sweep()
            return control.attempts(run_id)[0]["state"] == "lost"

        await eventually(is_lost, every=0.05)
        process.send_signal(signal.SIGCONT)
        assert (await control.follow(run_id))["state"] == "succeeded"
        process.send_signal(signal.SIGTERM)
        assert await ended(process) == 0
    assert not (tmp_path / "ran-1").exists()
    assert any(name.startswith("ran-") for name in os.listdir(tmp_path))


async def test_an_agent_whose_clock_jumps_between_accepting_and_starting_starts_nothing(
    control: Control, tmp_path: Path
) -> None:
    """The host slept: every reading of the clock after the acceptance is an hour later."""
    script = f"touch {tmp_path}/ran-$FORGEYARD_ATTEMPT"
    run_id = control.submit(a_job(script, retry=RetryPolicy(max_attempts=2)))
    slept = False

    def monotonic() -> float:
        nonlocal slept
        slept = slept or any(row["accepted_at"] for row in control.attempts(run_id))
        return time.monotonic() + (3_600.0 if slept else 0.0)

    agent = Agent(control.settings(), monotonic=monotonic)
    running = asyncio.create_task(agent.run())
    await control.registered()
    assert control.schedule() == 1
    await eventually(lambda: control.attempts(run_id)[0]["state"] == "preparing")
    (lease,) = control.rows(tables.leases)
    jobs = tmp_path / "runner-1" / "jobs"
    await eventually(lambda: slept and not list(jobs.iterdir()))
    assert control.attempts(run_id)[0]["started_at"] is None
    control.change(tables.leases, {"lease_id": lease["lease_id"]}, expires_at=1)
    assert (await control.follow(run_id))["state"] == "succeeded"
    agent.drain()
    assert await asyncio.wait_for(running, 20) == 0
    assert not (tmp_path / "ran-1").exists()
    assert (tmp_path / "ran-2").exists()


async def test_a_wrong_token_ends_the_agent_at_once(control: Control) -> None:
    settings = control.settings()
    wrong = type(settings)(
        urls=settings.urls, token="wrong", config=settings.config, limits=settings.limits
    )
    with pytest.raises(Unauthenticated):
        await run_agent(wrong)


async def test_a_secrets_file_that_others_can_read_ends_the_agent_before_it_registers(
    control: Control, tmp_path: Path
) -> None:
    path = tmp_path / "secrets"
    path.write_text("TOKEN=hunter22\n")
    path.chmod(0o644)
    with pytest.raises(Forbidden):
        await run_agent(control.settings(secrets_file=str(path)))
    assert control.rows(tables.runners) == []


async def test_two_agents_do_not_share_a_work_directory(control: Control) -> None:
    async with an_agent(control):
        with pytest.raises(Conflict):
            await run_agent(
                control.settings(name="runner-2", work_dir=control.settings().config.work_dir)
            )


async def test_an_agent_waits_for_a_server_that_is_not_up_yet(
    sqlite_engine: sa.Engine, tmp_path: Path
) -> None:
    async with a_control(sqlite_engine, tmp_path) as control:
        async with control.listening():
            pass
        agent = Agent(control.settings())
        running = asyncio.create_task(agent.run())
        await eventually(lambda: (tmp_path / "runner-1" / "journal.db").exists())
        async with control.listening():
            await control.registered()
            agent.drain()
            assert await asyncio.wait_for(running, 20) == 0


async def test_an_agent_renews_sooner_once_leases_last_shorter_than_when_it_registered(
    sqlite_engine: sa.Engine, tmp_path: Path
) -> None:
    policy = a_policy(renew_every=2_000, connectivity_grace=0)
    shorter = replace(
        policy,
        lease=replace(policy.lease, execution_ttl=Millis(1_000), renew_every=Millis(200)),
    )
    async with a_control(sqlite_engine, tmp_path, policy=policy) as control, control.listening():
        run_id = control.submit(a_job("sleep 5"))
        async with an_agent(control):
            await control.until_running(run_id)
            with write(control.engine) as connection:
                policies.set_policy(
                    connection,
                    shorter,
                    expected_version=0,
                    actor="ann",
                    channel="test",
                    reason="a test",
                    built_in=policy,
                )
            assert (await control.follow(run_id))["state"] == "succeeded"
            assert len(control.attempts(run_id)) == 1
