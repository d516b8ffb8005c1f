"""F8: the disk of the database is full, and has room again."""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import httpx
import pytest

from tests.chaos.outage import own_postgresql
from tests.chaos.plant import Plant, a_job, until, waits_for
from tests.chaos.rounds import Rounds
from tests.conftest import administer, postgresql_database

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk"),
]
SIZE = 24 * 2**20
PAGE = 4_096


@pytest.fixture(scope="module")
def disk() -> Iterator[Path]:
    """Mount a disk of a few megabytes, which PostgreSQL's own user reaches as well."""
    folder = Path(tempfile.mkdtemp(prefix="forgeyard-chaos-disk-"))
    folder.chmod(0o755)
    subprocess.run(
        ("mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=0777", "tmpfs", str(folder)),
        check=True,
        timeout=10,
    )
    try:
        yield folder
    finally:
        subprocess.run(("umount", "-l", str(folder)), check=True, timeout=10)
        folder.rmdir()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, disk: Path, sqlite_template: Path) -> Iterator[str]:
    """Put the database there: a file, or what PostgreSQL keeps of it beside its log."""
    if request.param == "sqlite":
        shutil.copyfile(sqlite_template, disk / "forgeyard.db")
        yield f"sqlite:///{disk / 'forgeyard.db'}"
        return
    with own_postgresql() as (server, url):
        space = disk / "space"
        space.mkdir()
        if server.system_user is not None:
            user = pwd.getpwnam(server.system_user)
            os.chown(space, user.pw_uid, user.pw_gid)
        administer(url, f"CREATE TABLESPACE small LOCATION '{space}'")
        administer(url, "ALTER ROLE postgres SET temp_tablespaces = 'pg_default'")
        with postgresql_database(url, "full", tablespace="small") as own_url:
            yield own_url


def fill(disk: Path) -> Path:
    """Take all the room that is left, to the last page."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * PAGE)
        except OSError:
            return filler


@pytest.mark.requirement("RCN-020")
def test_a_full_disk_is_an_answer_and_leaves_nothing_half_written(
    plant: Plant, rounds: Rounds, disk: Path
) -> None:
    """F8: nothing is placed and nobody is lost; runs are taken again once there is room."""
    plant.until_online(plant.start_agent())
    for rng in rounds.of("runs were turned away for want of room"):
        demand_an_answer(plant, rounds, rng, disk)


def demand_an_answer(plant: Plant, rounds: Rounds, rng: Random, disk: Path) -> None:
    gate = plant.file(f"gate-{rng.random()}")
    run_id = plant.submit(runs=a_job(waits_for(gate)))
    plant.until_running(run_id, "runs")
    filler = fill(disk)
    taken: list[str] = []
    refused: list[httpx.Response] = []

    def is_refused() -> bool:
        answer = plant.offer(**{f"job_{n}": a_job("true # " + "x" * 2_000) for n in range(20)})
        if answer.is_success:
            taken.append(answer.json()["run_id"])
        else:
            refused.append(answer)
        return bool(refused)

    try:
        until(is_refused, or_say=plant.tails)
        time.sleep(rng.uniform(0.5, 1.5))
        plant.demand_safe()
    finally:
        filler.unlink()
    (answer,) = refused
    assert answer.status_code == 503, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "store.unavailable"
    assert int(answer.headers["retry-after"]) > 0
    rounds.hit()
    freed_at = time.monotonic()
    taken.append(plant.submit(after=a_job("true")))
    gate.touch()
    for each in (run_id, *taken):
        plant.until_state(each, "succeeded", within_s=90)
    rounds.took("room again to all jobs done", time.monotonic() - freed_at, goal_s=90)
    assert [row["state"] for row in plant.attempts(run_id)] == ["succeeded"]
    plant.demand_rest()
