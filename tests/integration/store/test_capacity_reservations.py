"""Capacity that is reserved for a while: machines for whoever's jobs come, in their usual order."""

from collections import Counter

import pytest
import sqlalchemy as sa

from forgeyard.model.job import JobSpec
from forgeyard.scheduler.standing import Sharing
from forgeyard.store import fleet_reading, fleet_wishes, fleets, pools, tables
from forgeyard.store.engine import database_now, read
from forgeyard.store.fleet_wishes import Window
from forgeyard.store.pools import PoolRules
from tests.builders import PARTITION, RNG, a_fleet_spec, a_job_spec
from tests.integration.store.grounds import ANN, healthy
from tests.leasing import POLICY, Desk
from tests.sharing import declare, submit_to

pytestmark = pytest.mark.integration


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    """Begin with two tenants, a fleet, and a pool of the first tenant's own."""
    desk = Desk(engine)
    for tenant in ("acme", "other"):
        declare(desk, tenant)
    (own,) = desk.rows(tables.scopes, name="acme")
    rules = PoolRules(owner=own["scope_id"], sharing=Sharing.RESERVED)
    desk.change(pools.create, "acme-only", rules, ANN, rng=RNG)
    return desk


def reserved(desk: Desk, pool: str) -> None:
    """Reserve a machine of a fleet from now on, and let it come up."""
    spec = a_fleet_spec(pool=pool)
    desk.change(fleets.apply, spec, ANN, expected_version=None, rng=RNG)
    now = desk.change(database_now)
    window = Window(quantity=1, starts_at=now, ends_at=now + 3_600_000)
    desk.change(fleet_wishes.reserve, "builders", window, ANN, rng=RNG)
    healthy(desk)
    with read(desk.engine) as connection:
        (view,) = fleet_reading.read(connection, PARTITION, POLICY).fleets
    assert [one.quantity for one in view.reservations] == [1]
    assert [one.leases for one in view.instances] == [0]


def served(desk: Desk) -> Counter[str]:
    """Let both tenants want more than the machine has; tell who got how much of it."""
    jobs: list[JobSpec] = [a_job_spec(f"job-{place}") for place in range(4)]
    runs = {submit_to(desk, f"{name}/org/prj/main", *jobs): name for name in ("acme", "other")}
    while desk.cycle().granted:
        pass
    return Counter(runs[lease.run_id] for lease in desk.leases(state="offered"))


@pytest.mark.requirement("RSV-003", "RSV-005")
def test_reserved_machines_are_shared_fairly_by_everybody(desk: Desk) -> None:
    reserved(desk, "")
    assert served(desk) == {"acme": 2, "other": 2}


@pytest.mark.requirement("RSV-005", "RSV-006")
def test_reserved_machines_of_a_pool_of_its_own_serve_its_owner_alone(desk: Desk) -> None:
    reserved(desk, "acme-only")
    assert served(desk) == {"acme": 4}
