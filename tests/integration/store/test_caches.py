"""Many jobs save and find a cache at once: one archive wins, and nobody waits for ever."""

import hashlib
import threading

import pytest
import sqlalchemy as sa

from forgeyard.errors import NotFound
from forgeyard.model.job import CacheSpec
from forgeyard.store import blobs, caches, changes, tables
from forgeyard.store.changes import LEASE
from tests.builders import a_job_spec
from tests.leasing import Desk

pytestmark = pytest.mark.integration

JOB = a_job_spec(caches=(CacheSpec(name="pip", path=".cache", key=("a.lock",)),))
KEY = f"sha256:{'a' * 64}"
RACERS = 6
ROUNDS = 5


def digest_of(number: int) -> str:
    """Name what one racer packed."""
    return f"sha256:{hashlib.sha256(str(number).encode()).hexdigest()}"


def test_of_many_who_save_at_once_one_wins_and_all_are_answered(engine: sa.Engine) -> None:
    desk = Desk(engine)
    lease = desk.change(changes.find, LEASE, desk.active(JOB).lease_id)
    start = threading.Barrier(RACERS)
    found: list[str] = []
    failed: list[Exception] = []

    def race(number: int) -> None:
        try:
            for _ in range(ROUNDS):
                desk.change(blobs.record, digest_of(number), number)
                start.wait(20)
                desk.change(caches.record, lease, "pip", KEY, digest_of(number), number)
                entry = desk.change(caches.find, lease, "pip", KEY)
                found.append(entry.digest if entry else "")
        except Exception as error:
            failed.append(error)
            start.abort()

    racers = [threading.Thread(target=race, args=(number,)) for number in range(RACERS)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(60)
    assert failed == []
    assert len(found) == RACERS * ROUNDS
    (entry,) = desk.rows(tables.caches)
    assert set(found) == {entry["digest"]}


def test_what_is_not_stored_is_not_recorded(engine: sa.Engine) -> None:
    desk = Desk(engine)
    lease = desk.change(changes.find, LEASE, desk.active(JOB).lease_id)
    with pytest.raises(NotFound):
        desk.change(caches.record, lease, "pip", KEY, digest_of(1), 1)
    assert desk.rows(tables.caches) == []


def test_another_name_under_the_same_key_is_not_found(engine: sa.Engine) -> None:
    desk = Desk(engine)
    npm = CacheSpec(name="npm", path="x", key=("y",))
    both = a_job_spec(caches=(*JOB.caches, npm))
    lease = desk.change(changes.find, LEASE, desk.active(both).lease_id)
    desk.change(blobs.record, digest_of(1), 1)
    desk.change(caches.record, lease, "pip", KEY, digest_of(1), 1)
    assert desk.change(caches.find, lease, "npm", KEY) is None
    assert desk.change(caches.find, lease, "pip", KEY) is not None
