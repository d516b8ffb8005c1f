"""Asking what may become of fleets and of jobs, against a real API and real decisions."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from activities import contracts
from activities.fleets import FleetActivities, Rhythm
from forgeyard.model.fleet import DAY_MS
from forgeyard.model.permission import Permission
from forgeyard.model.policy import SchedulingPolicy
from forgeyard.store import fleet_tables
from forgeyard.store.engine import database_now, read, write
from forgeyard.store.table_parts import metadata
from tests.builders import PARTITION, RNG
from tests.callers import a_queue, a_token
from tests.integration.cli.house import House, Said
from tests.pasts import BUCKET, HOUR

pytestmark = pytest.mark.integration
WHY = ("--reason", "the release is near")
FLEET = """
name: builders
capacity: {resources: {cpu: 4, memory: 8Gi, disk: 20Gi, slots: 4}, trust: trusted_internal}
offerings: [{name: only, cost: 0.25}]
scaling: {max: 2}
deadlines: {provision: 1m, bootstrap: 1m, enrol: 1m}
"""
SMALL = "requires: {platform: linux}, resources: {cpu: 1, memory: 1Gi, disk: 1Gi}"
BY_ITSELF = {"audit_chain", "liveness", "store_marks"}
STEPS = "steps: [{run: make}]"
JOBS = "\n".join(f"  job-{place:02}: {{{SMALL}, {STEPS}}}" for place in range(12))
RUN = f"name: ci\njobs:\n{JOBS}\n"
MAC = f"name: ci\njobs:\n  mac: {{requires: {{platform: macos}}, {STEPS}}}\n"


def did(house: House, *arguments: str, code: int = 0) -> Said:
    said = house.run(*arguments)
    assert said.code == code, said.err + said.out
    return said


def applied(house: House, text: str = FLEET) -> str:
    """Apply a file; return the id of its fleet."""
    Path("fleet.yaml").write_text(text)
    did(house, "fleet", "apply", "-f", "fleet.yaml", *WHY)
    return str(did(house, "fleet", "status", "builders", "--json").json()["fleet"]["fleet_id"])


def decide(house: House, fleet_id: str) -> contracts.FleetTick:
    """Let a worker decide about a fleet, as its reconciler has it do."""
    tending = FleetActivities(house.desk.engine, SchedulingPolicy(), {}, Rhythm(), rng=RNG)
    return tending.tick_fleet(contracts.Fleet(fleet_id=fleet_id, partition=PARTITION))


def everything(engine: sa.Engine) -> dict[str, list[tuple[object, ...]]]:
    """Read every row that there is but those that an API process writes by itself."""
    with read(engine) as connection:
        return {
            table.name: sorted(map(tuple, connection.execute(sa.select(table))), key=repr)
            for table in metadata.sorted_tables
            if table.name not in BY_ITSELF
        }


def need(engine: sa.Engine, fleet_id: str, count: int, *, days: int) -> None:
    """Let a fleet have needed as many machines all the time, and twice as many every afternoon."""
    with write(engine) as connection:
        now = database_now(connection)
        rows = [
            {"fleet_id": fleet_id, "at": at, "needed": count * (1 + (at // HOUR % 24 >= 12))}
            for at in range(now - now % BUCKET - days * DAY_MS, now, BUCKET)
        ]
        connection.execute(sa.insert(fleet_tables.fleet_history), rows)


@pytest.mark.requirement("DEM-001", "DEM-003", "DEM-016", "API-012")
def test_what_waits_is_told_by_class_with_what_it_asks_for_and_who_serves_it(house: House) -> None:
    fleet_id = applied(house)
    run_id = house.submit(RUN)
    house.submit(MAC)
    assert decide(house, fleet_id).launched == 2
    seen = did(house, "fleet", "demand", "--json").json()
    small, mac = sorted(seen["classes"], key=lambda it: -it["count"])
    assert (small["count"], mac["count"]) == (12, 1)
    assert small["requested"] == {
        "cpu": 12_000,
        "memory": 12 * 2**30,
        "disk": 12 * 2**30,
        "slots": 12,
    }
    assert small["example"] in {
        one["job_id"] for one in did(house, "run", "show", run_id, "--json").json()["jobs"]
    }
    assert "platform linux" in small["wants"]
    assert seen["shares"] == {"builders": {small["requirement_class"]: 12}}
    said = did(house, "fleet", "demand").out
    assert "12 cores" in said
    assert "builders (12)" in said
    assert "1 jobs that no fleet serves\n  each wants platform macos" in said
    assert "\n  builders: needs platform macos" in said
    warned = did(house, "fleet", "doctor", "--json").json()["checks"][-1]
    assert warned["sentence"].startswith("1 waiting jobs are served by no fleet (builders: needs ")


@pytest.mark.requirement("DEM-016", "DEM-024")
def test_an_explanation_of_a_job_says_of_every_fleet_why_it_makes_nothing(house: House) -> None:
    applied(house)
    Path("fleet.yaml").write_text(FLEET.replace("builders", "larger").replace("8Gi", "64Gi"))
    did(house, "fleet", "apply", "-f", "fleet.yaml", *WHY)
    big = SMALL.replace("memory: 1Gi", "memory: 32Gi")
    run_id = house.submit(f"name: ci\njobs:\n  big: {{{big}, {STEPS}}}\n")
    house.desk.register("linux-1")
    assert house.desk.cycle().granted == 0
    explain = ("scheduler", "explain-job", f"{run_id}/big")
    said = did(house, *explain).out
    assert "\nfleets\n  builders: needs 32 GiB of memory, has 8 GiB\n" in said
    assert "\n  larger: could make a machine for it\n" in said
    did(house, "fleet", "drain", "larger", *WHY)
    said = did(house, *explain).out
    assert "\nno fleet can make a machine for it\n  builders: needs 32 GiB" in said
    assert "\n  larger: it is draining\n" in said
    found = did(house, *explain, "--json").json()
    assert found["state"] == "eligible"
    assert set(found["fleets"]) == {"builders", "larger"}


def test_a_tenant_is_not_told_of_the_fleets_of_others(house: House) -> None:
    engine = house.desk.engine
    for queue in ("acme/core/web/main", "umbra/core/web/main"):
        a_queue(engine, queue)
    applied(house)
    Path("fleet.yaml").write_text(
        FLEET.replace("builders", "theirs") + "scope: {tenant_id: umbra}\n"
    )
    did(house, "fleet", "apply", "-f", "fleet.yaml", *WHY)
    run_id = house.submit(MAC, "--queue", "acme/core/web/main")
    (job,) = did(house, "run", "show", run_id, "--json").json()["jobs"]
    path = f"{house.api_url}/v1/jobs/{job['job_id']}/scheduling"
    token = a_token(engine, Permission.RUN_READ, tenant="acme")
    with closing(httpx.Client(headers={"Authorization": f"Bearer {token}"})) as client:
        found = client.get(path).json()
    assert set(found["fleets"]) == {"builders"}
    assert "umbra" not in found["text"]


@pytest.fixture
def waiting(house: House) -> Iterator[House]:
    """Let twelve jobs wait, of which two machines run eight."""
    applied(house)
    house.submit(RUN)
    before = everything(house.desk.engine)
    yield house
    after = everything(house.desk.engine)
    changed = {name for name, rows in after.items() if rows != before[name]}
    assert not changed, "a simulation writes nothing"


def played(house: House, *arguments: str, code: int = 0) -> Said:
    return did(house, "fleet", "explain", "builders", "--simulate", *arguments, code=code)


def test_a_fleet_is_played_forward_as_it_is(waiting: House) -> None:
    found = played(waiting, "--json").json()
    assert found["every_ms"] == 5_000
    first, *_, last = found["ticks"]
    assert (first["after"], last["after"]) == (0, 20 * 60_000)
    assert len(first["decision"]["launch"]) == 2
    assert not any(one["decision"]["launch"] for one in found["ticks"][1:])
    assert (first["waiting"], last["waiting"]) == (12, 4)
    came = [(one["after"], one["came"]) for one in found["ticks"] if one["came"]]
    assert came == [(180_000, 2)]
    said = played(waiting).out
    assert "assumed: machines come up after 3m 0s, the longest that the document allows" in said
    assert "now: 12 jobs wait; wants 2, has 0 there or coming, makes 2 for queued demand" in said
    assert "the maximum is 2" in said


def test_other_bounds_more_jobs_and_another_document_are_tried_without_trace(
    waiting: House,
) -> None:
    more = played(waiting, "--with", "max=20", "--json").json()["ticks"]
    assert len(more[0]["decision"]["launch"]) == 3
    assert not any(one["kind"] == "maximum" for one in more[0]["decision"]["clamps"])
    crowd = played(waiting, "--with", "max=20", "--jobs", "40", "--json").json()["ticks"]
    assert len(crowd[0]["decision"]["launch"]) == 13
    assert crowd[0]["waiting"] == 52
    day = played(waiting, "--for", "24h", "--json").json()
    assert (day["every_ms"], day["ticks"][-1]["after"]) == (120_000, 86_400_000)
    Path("other.yaml").write_text(FLEET.replace("max: 2", "max: 9, up: {per_minute: 1, burst: 1}"))
    slow = played(waiting, "-f", "other.yaml", "--for", "5m", "--json").json()["ticks"]
    made = [one["after"] for one in slow if one["decision"]["launch"]]
    assert made == [0, 60_000, 120_000]
    assert {one["kind"] for one in slow[0]["decision"]["clamps"]} == {"rate"}
    least = played(waiting, "--with", "min=2", "--with", "max=1", code=2)
    assert "at least 2 machines and at most 1" in least.err
    assert "--with" in played(waiting, "--with", "warm=3", code=2).err
    assert "more than 0" in played(waiting, "--for", "25h", code=2).err
    did(waiting, "fleet", "explain", "builders", "--jobs", "4", code=2)


def test_jobs_are_tried_that_are_like_a_job_of_the_past(house: House) -> None:
    applied(house)
    none = did(house, "fleet", "explain", "builders", "--simulate", "--jobs", "8", code=2)
    assert "no job waits for room" in none.err
    run_id = house.submit(f"name: ci\njobs:\n  one: {{{SMALL}, {STEPS}}}\n")
    house.lease()
    like = ("--jobs", "8", "--like", f"{run_id}/one", "--json")
    first, *_ = played(house, *like).json()["ticks"]
    # Three more have room on the runner that is there.
    assert (first["waiting"], len(first["decision"]["launch"])) == (5, 2)


@pytest.mark.requirement("FCT-001", "FCT-002", "FCT-005", "FCT-007", "FCT-009")
def test_a_forecast_is_shown_with_its_error_and_heeded_only_where_it_is_wished(
    house: House,
) -> None:
    fleet_id = applied(house, FLEET.replace("max: 2", "max: 50"))
    told = did(house, "fleet", "forecast", "builders").out
    assert told.startswith("builders: nothing is advised: the history is too short: 0.0 days")
    need(house.desk.engine, fleet_id, 3, days=6)
    told = did(house, "fleet", "forecast", "builders").out
    assert "seasonal-naive/daily, version 1" in told
    assert "was off by 0.00 machines on average, the last value by 0." in told
    assert "not heeded: scaling.forecast is off: the fleet goes by its demand" in told
    assert "last-value" in told
    found = did(house, "fleet", "forecast", "builders", "--json").json()
    advice = found["outlook"]["advice"]
    assert advice["count"] in (3, 6)
    assert advice["error"]["mae"] < advice["error"]["baseline"]
    # Correct without: what waits is served, and nothing else is made.
    house.submit(RUN)
    assert decide(house, fleet_id).wanted == 3
    applied(house, FLEET.replace("max: 2", "max: 50, forecast: true, min: 1"))
    heeded = did(house, "fleet", "forecast", "builders", "--json").json()
    assert heeded["is_heeded"] is True
    assert heeded["outlook"]["advice"]["count"] == advice["count"]
    assert decide(house, fleet_id).wanted == max(3, advice["count"])
