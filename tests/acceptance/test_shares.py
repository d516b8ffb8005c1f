"""Shares, pauses and keys with everything real: server, database, Temporal, and an agent."""

import time
from collections.abc import Iterator

import pytest

from tests.acceptance.conftest import Forgeyard

pytestmark = pytest.mark.integration

WHY = ("--reason", "a test")
ONE = """
name: one
jobs:
  only:
    steps: [{run: "sleep 0.2"}]
"""
FLOOD = "name: flood\njobs:\n" + "".join(
    f'  job-{number}: {{steps: [{{run: "sleep 0.2"}}]}}\n' for number in range(8)
)
KEYED = """
name: keyed
jobs:
  deploy:
    exclusive: staging
    steps: [{run: "sleep 1"}]
"""


@pytest.fixture(scope="module")
def shared(system: Forgeyard) -> Iterator[Forgeyard]:
    """Declare two tenants with a queue each."""
    for tenant in ("flooding", "calm"):
        system.type("scope", "create", f"{tenant}/org/prj/main", "-p", *WHY).ok()
    yield system
    system.type("scope", "set", "everything", "--max-jobs", "none", *WHY).ok()


def submit(system: Forgeyard, name: str, text: str, *words: str) -> str:
    """Submit a run of a project of its own; return its id."""
    project = system.project(name, text)
    return str(system.submit(project, "--json", *words).ok().json()["run_id"])


def jobs_of(system: Forgeyard, run_id: str) -> list[dict]:
    """Read the jobs of a run."""
    return list(system.type("run", "show", run_id, "--json").ok().json()["jobs"])


def finish(system: Forgeyard, run_id: str) -> list[dict]:
    """Follow a run to its good end; return its jobs."""
    system.type("run", "watch", run_id, "--timeout", "90s").ok()
    return jobs_of(system, run_id)


@pytest.mark.requirement("FAR-001", "ACC-017", "QUO-002")
def test_the_flood_of_one_tenant_delays_the_job_of_another_by_no_more_than_a_turn(
    shared: Forgeyard,
) -> None:
    shared.type("scope", "set", "everything", "--max-jobs", "1", *WHY).ok()
    # Nobody starts before both are there, and the flood was there first.
    shared.type("scope", "pause", "everything", *WHY).ok()
    flood = submit(shared, "flood", FLOOD, "--queue", "flooding/org/prj/main")
    calm = submit(shared, "calm", ONE, "--queue", "calm/org/prj/main")
    shared.type("scope", "resume", "everything", *WHY).ok()
    (job,) = finish(shared, calm)
    flooding = finish(shared, flood)
    shared.type("scope", "set", "everything", "--max-jobs", "none", *WHY).ok()
    given = job["attempts"][0]["created_at"]
    starts = sorted(one["attempts"][0]["created_at"] for one in flooding)
    ahead = [at for at in starts if at < given]
    # The one that came first, and one more that had the better tag.
    assert len(ahead) <= 2, (ahead, given)
    assert starts[-1] > given, "the flood was over before it could delay anybody"
    ends = [one["attempts"][0]["finished_at"] for one in flooding]
    pairs = zip(sorted(starts)[1:], sorted(ends), strict=False)
    assert all(end <= start for start, end in pairs), "more than one job at once"


def test_a_paused_queue_waits_with_its_note_and_goes_on_after_it_is_resumed(
    shared: Forgeyard,
) -> None:
    queue = "calm/org/prj/main"
    shared.type("scope", "pause", queue, "--reason", "until the audit is over").ok()
    run_id = submit(shared, "paused", ONE, "--queue", queue)
    deadline = time.monotonic() + 30
    while "is paused: until the audit is over" not in (waiting(shared, run_id) or ""):
        assert time.monotonic() < deadline, waiting(shared, run_id)
        time.sleep(0.2)
    told = shared.type("scheduler", "explain-job", f"{run_id}/only").ok().out
    assert "queue main is paused: until the audit is over" in told
    shared.type("scope", "resume", queue, *WHY).ok()
    (job,) = finish(shared, run_id)
    assert job["state"] == "succeeded"


def waiting(system: Forgeyard, run_id: str) -> str | None:
    """Read why the one job of a run waits."""
    (job,) = jobs_of(system, run_id)
    return job["waiting"]


def test_a_job_that_holds_a_key_keeps_the_job_of_another_run_waiting(shared: Forgeyard) -> None:
    run_ids = [submit(shared, f"keyed-{number}", KEYED) for number in range(2)]
    (one,), (other,) = (finish(shared, run_id) for run_id in run_ids)
    first, second = sorted(
        (one["attempts"][0], other["attempts"][0]), key=lambda attempt: attempt["created_at"]
    )
    assert first["finished_at"] <= second["created_at"]
