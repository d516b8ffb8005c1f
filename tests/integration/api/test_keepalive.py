"""Renewals of many agents at once over HTTP: one bad one harms itself, one that waits nobody."""

import asyncio
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from forgeyard.store import tables
from forgeyard.store.engine import write
from forgeyard.telemetry import REGISTRY
from tests.integration.api.house import Held, House, open_house

pytestmark = pytest.mark.integration


async def renew(house: House, held: Held, **changed: object) -> httpx.Response:
    asked = {"lease_id": held.lease_id, "epoch": held.epoch, **changed}
    body = {"session_id": held.session_id, "leases": [asked]}
    return await house.agents.post("/agent/v1/renewals", json=body)


def verdict(answer: httpx.Response) -> str:
    (one,) = answer.json()["leases"]
    return one["verdict"]


def batched() -> tuple[float, float]:
    """Count the batches of renewals so far, and the calls in them; the process has one registry."""
    name, labels = "forgeyard_api_batch_calls", {"what": "renewals"}
    found = (REGISTRY.get_sample_value(f"{name}_{part}", labels) for part in ("count", "sum"))
    batches, calls = (value or 0 for value in found)
    return batches, calls


async def test_one_renewal_that_cannot_be_stored_fails_alone(house: House) -> None:
    first, second = [await house.accepted(runner=f"runner-{n}") for n in range(2)]
    before = batched()
    answers = await asyncio.gather(
        renew(house, first),
        renew(house, second, lease_id="lse_\x00"),
        renew(house, second, epoch=9),
        renew(house, second),
        *(renew(house, first) for _ in range(20)),
    )
    good, bad, stale, other, *rest = answers
    assert [verdict(one) for one in (good, stale, other)] == ["renewed", "stale", "renewed"]
    assert {verdict(one) for one in rest} == {"renewed"}
    # PostgreSQL has no text with a NUL; to SQLite it is just a lease that nobody has.
    assert bad.status_code == 422 or verdict(bad) == "stale"
    batches, calls = (now - then for now, then in zip(batched(), before, strict=True))
    assert len(answers) - 1 <= calls <= len(answers)  # a refused text is in none
    assert 0 < batches < calls


async def test_a_lease_that_somebody_holds_for_long_delays_no_other_renewal(
    postgresql_engine: sa.Engine, tmp_path: Path
) -> None:
    async with open_house(postgresql_engine, tmp_path) as house:
        first, second = [await house.accepted(runner=f"runner-{n}") for n in range(2)]
        with write(postgresql_engine) as connection:
            row = sa.select(tables.leases).where(tables.leases.c.lease_id == first.lease_id)
            connection.execute(row.with_for_update())
            waiting = asyncio.create_task(renew(house, first))
            for _ in range(3):
                assert verdict(await renew(house, second)) == "renewed"
            assert not waiting.done()
            connection.rollback()
        assert verdict(await waiting) == "renewed"
