"""One long story, played on SQLite and on PostgreSQL, is answered alike word by word.

What is asked of the store is drawn from a seed; every job and every runner goes by its name, for
ids differ. Local mode has another database and another transport, and no other rules.
"""

import random
from itertools import groupby
from pathlib import Path

import pytest
import sqlalchemy as sa

from forgeyard.model.protocol import Outcome, Phase
from forgeyard.store import tables
from tests.builders import a_job_spec, some_resources
from tests.history.checker import demand_consistent
from tests.history.entries import Entry, read
from tests.history.recorder import recording
from tests.integration.store.test_commit import a_plan
from tests.leasing import Desk, Lease

pytestmark = pytest.mark.integration
SEEDS = (1, 2)
STEPS = 50
BY_SWEEP = ("expire", "time_out", "settle")
RUNNERS = ("runner-0", "runner-1", "runner-2")
ROOM = some_resources(cpu=1_000, slots=2, memory=2**40, disk=2**40)


class Story:
    """Draws what happens next; what it draws from is listed by name."""

    def __init__(self, desk: Desk, rng: random.Random) -> None:
        self.desk, self.rng = desk, rng
        self.jobs = 0

    def play(self) -> None:
        for name in RUNNERS:
            self.desk.register(name, total=ROOM)
        acts = (
            (self.submit, 3),
            (self.grant, 6),
            (self.answer, 12),
            (self.restart, 1),
            (self.wait, 2),
        )
        weights = [weight for _, weight in acts]
        for _ in range(STEPS):
            (act,) = self.rng.choices([act for act, _ in acts], weights)
            act()

    def submit(self) -> None:
        self.jobs += 1
        self.desk.submit(a_job_spec(f"job-{self.jobs:03}"))

    def grant(self) -> None:
        """Plan some jobs that wait, twice, and commit both: the second is out of date."""
        waiting = [row["job_id"] for row in self._jobs() if row["state"] == "eligible"]
        if not waiting:
            return
        runners = [row["runner_id"] for row in self._runners()]
        cycles = []
        for _ in range(2):
            chosen = self.rng.sample(waiting, min(2, len(waiting)))
            turned = self.rng.sample(runners, len(runners))
            cycles.append(self.desk.plan(a_plan(*((job, turned) for job in chosen))))
        for cycle in (*cycles, cycles[0]):
            self.desk.commit(cycle)

    def answer(self) -> None:
        """Let an agent call about any lease, of now or of long ago."""
        leases = self._leases()
        if not leases:
            return
        lease = self.rng.choice(leases[-6:])
        calls = (
            lambda: self.desk.accept(lease),
            lambda: self.desk.accept(lease),
            lambda: self.desk.renew(lease),
            lambda: self.desk.reject(lease),
            lambda: self.desk.progress(lease, Phase.RUNNING),
            lambda: self.desk.complete(lease),
            lambda: self.desk.complete(lease, Outcome.FAILED),
            lambda: self.desk.renew(lease, epoch=lease.epoch + 1),
            lambda: self.desk.settle(lease),
        )
        self.rng.choice(calls)()

    def restart(self) -> None:
        self.desk.register(self.rng.choice(RUNNERS), total=ROOM)

    def wait(self) -> None:
        """Let all agents be heard of after a while that lets some leases lapse."""
        self.desk.later(self.rng.choice((20_000, 40_000, 200_000)))
        for row in self._runners():
            self.desk.heartbeat(row["session_id"])
        self.desk.sweep()

    def _jobs(self) -> list[dict]:
        return sorted(self.desk.rows(tables.jobs), key=lambda row: row["name"])

    def _runners(self) -> list[dict]:
        return sorted(self.desk.rows(tables.runners), key=lambda row: row["name"])

    def _leases(self) -> list[Lease]:
        name_of = {row["job_id"]: row["name"] for row in self.desk.rows(tables.jobs)}
        return sorted(self.desk.leases(), key=lambda one: (name_of[one.job_id], one.epoch))


def names(desk: Desk) -> dict[str, str]:
    """Name every id of a desk by what it belongs to."""
    named = {row["job_id"]: row["name"] for row in desk.rows(tables.jobs)}
    named |= {row["run_id"]: f"run of {named[row['job_id']]}" for row in desk.rows(tables.jobs)}
    named |= {row["runner_id"]: row["name"] for row in desk.rows(tables.runners)}
    for row in desk.rows(tables.leases):
        which = f"{named[row['job_id']]}/{row['epoch']}"
        named |= {row["lease_id"]: f"lease {which}", row["attempt_id"]: f"attempt {which}"}
    return named


def told(entries: list[Entry], named: dict[str, str]) -> list[str]:
    """Retell a history without ids of sessions, and with names for all others."""
    cycles: dict[int, int] = {}
    lines: list[str] = []
    for one, group in groupby(entries, key=lambda entry: entry.op in BY_SWEEP):
        some = [_line(entry, named, cycles) for entry in group]
        # What lapsed in one millisecond is swept in the order of its ids.
        lines += sorted(some) if one else some
    return lines


def _line(entry: Entry, named: dict[str, str], cycles: dict[int, int]) -> str:
    args = {key: value for key, value in entry.args.items() if key != "session"}
    if "cycle" in args:
        args["cycle"] = cycles.setdefault(args["cycle"], len(cycles) + 1)
    granted = sorted((one.job, one.runner, one.epoch, one.amounts) for one in entry.granted)
    ended = sorted(f"{named[one.lease]} {one.to}" for one in entry.ended)
    line = f"{entry.op} {args} → {entry.result} {granted} {ended} {entry.happened}"
    for key, name in named.items():
        line = line.replace(key, name)
    return line


@pytest.mark.requirement("INV-014")
@pytest.mark.parametrize("seed", SEEDS)
def test_both_databases_answer_alike(
    seed: int, sqlite_engine: sa.Engine, postgresql_engine: sa.Engine, tmp_path: Path
) -> None:
    stories: list[list[str]] = []
    for engine in (sqlite_engine, postgresql_engine):
        folder, desk = tmp_path / engine.dialect.name, Desk(engine)
        with recording(folder):
            Story(desk, random.Random(seed)).play()
        demand_consistent(folder)
        stories.append(told(read(folder), names(desk)))
    first, second = stories
    assert len(first) > STEPS / 2
    assert first == second
