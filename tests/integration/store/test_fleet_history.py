"""What fleets needed is noted by minutes, read back for a forecast, and forgotten in time."""

from pathlib import Path

import pytest
import sqlalchemy as sa

from forgeyard.config import RetentionConfig
from forgeyard.fleet.forecast import Window
from forgeyard.model.fleet import DAY_MS, CapacityReservation
from forgeyard.store import codec, fleet_history, fleet_tables, retention
from forgeyard.store.blobs import FileBlobStore
from forgeyard.store.engine import database_now, read, write
from tests.pasts import BUCKET, HOUR

pytestmark = pytest.mark.integration


class Yard:
    """A store with two fleets."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        with write(engine) as connection:
            self.now = database_now(connection)
            for name in ("linux", "mac"):
                row = {"fleet_id": name, "name": name, "spec": "{}", "class_id": "c"}
                more = {"provider": "local", "state": "active", "created_at": self.now}
                connection.execute(sa.insert(fleet_tables.fleets).values(row | more))

    def note(self, needed: int, at: int, fleet: str = "linux") -> None:
        with write(self.engine) as connection:
            fleet_history.note(connection, fleet, needed=needed, now=at)

    def series(self, since: int = 0, fleet: str = "linux") -> tuple[tuple[int, int], ...]:
        with read(self.engine) as connection:
            return fleet_history.series(connection, fleet, since)

    def reserve(self, one: CapacityReservation, *, cancelled_at: int | None = None) -> None:
        row = {
            "reservation_id": one.reservation_id,
            "fleet_id": "linux",
            "reservation": codec.encode(one),
            "starts_at": one.starts_at,
            "ends_at": one.ends_at,
            "cancelled_at": cancelled_at,
            "reason": "release",
        }
        with write(self.engine) as connection:
            connection.execute(sa.insert(fleet_tables.fleet_reservations).values(row))

    def windows(self) -> set[Window]:
        with read(self.engine) as connection:
            return {*fleet_history.past(connection, "linux", now=self.now).windows}


@pytest.fixture
def yard(engine: sa.Engine) -> Yard:
    return Yard(engine)


def test_five_minutes_keep_the_most_that_was_needed_in_them(yard: Yard) -> None:
    start = 100 * BUCKET
    for needed, at in ((3, start), (7, start + 1), (5, start + BUCKET - 1), (2, start + BUCKET)):
        yard.note(needed, at)
    assert yard.series() == ((start, 7), (start + BUCKET, 2))


def test_each_fleet_has_its_own_series_from_an_instant_on(yard: Yard) -> None:
    for place in (2, 1, 3):
        yard.note(place, place * BUCKET)
    yard.note(9, 2 * BUCKET, "mac")
    assert yard.series(2 * BUCKET) == ((2 * BUCKET, 2), (3 * BUCKET, 3))
    assert yard.series(fleet="mac") == ((2 * BUCKET, 9),)


def test_what_is_older_than_a_forecast_looks_back_is_forgotten(yard: Yard, tmp_path: Path) -> None:
    oldest = yard.now - fleet_history.KEPT_MS
    kept = oldest + 2 * BUCKET
    for at in (oldest - 9 * BUCKET, oldest - 2 * BUCKET, kept):
        yard.note(1, at)
    yard.note(1, oldest - 9 * BUCKET, "mac")
    forgotten = retention.forget(yard.engine, FileBlobStore(tmp_path), RetentionConfig())
    assert forgotten.traces == 3
    assert yard.series() == ((kept - kept % BUCKET, 1),)


def test_windows_are_those_of_the_past_and_those_to_come_as_long_as_they_held(yard: Yard) -> None:
    def between(name: str, start: int, end: int) -> CapacityReservation:
        return CapacityReservation(
            reservation_id=name, quantity=4, starts_at=yard.now + start, ends_at=yard.now + end
        )

    yard.reserve(between("past", -DAY_MS, -HOUR))
    yard.reserve(between("cut short", -3 * HOUR, HOUR), cancelled_at=yard.now - 2 * HOUR)
    yard.reserve(between("to come", HOUR, 2 * HOUR))
    yard.reserve(between("long ago", -50 * DAY_MS, -40 * DAY_MS))
    assert yard.windows() == {
        Window(starts_at=yard.now + start, ends_at=yard.now + end, quantity=4)
        for start, end in ((-DAY_MS, -HOUR), (-3 * HOUR, -2 * HOUR), (HOUR, 2 * HOUR))
    }


@pytest.mark.requirement("PHA-023", "PRI-068")
def test_an_outlook_is_made_of_what_was_noted(yard: Yard) -> None:
    assert "too short" in fleet_history.outlook(yard.engine, "linux").advice.reason
    first = yard.now - yard.now % BUCKET - 3 * DAY_MS
    rows = [
        {"fleet_id": "linux", "at": at, "needed": 4}
        for at in range(first, yard.now + BUCKET, BUCKET)
    ]
    with write(yard.engine) as connection:
        connection.execute(sa.insert(fleet_tables.fleet_history), rows)
    soon = CapacityReservation(
        reservation_id="r", quantity=6, starts_at=yard.now, ends_at=yard.now + HOUR
    )
    yard.reserve(soon)
    told = fleet_history.outlook(yard.engine, "linux")
    assert (told.advice.count, told.reserved) == (4, 6)
    assert told.until > yard.now
    assert fleet_history.outlook(yard.engine, "mac").advice.count is None
