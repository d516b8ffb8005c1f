"""What belongs to a tenant is found by that tenant alone, on both databases."""

import pytest
import sqlalchemy as sa

from forgeyard.errors import NotFound
from forgeyard.model.run import Concurrency
from forgeyard.store import blobs, naming, runs, shares, tables, views
from forgeyard.store.engine import read, write
from forgeyard.store.runs import Submitted
from tests.builders import LEASE_POLICY, RNG, a_run_spec, a_submission
from tests.callers import a_queue

pytestmark = pytest.mark.integration
DIGEST = f"sha256:{'a' * 64}"
QUEUES = {name: f"{name}/core/web/main" for name in ("acme", "umbra")}


@pytest.fixture
def ids(engine: sa.Engine) -> dict[str, str]:
    """Declare two tenants; tell their ids."""
    for queue in QUEUES.values():
        a_queue(engine, queue)
    with read(engine) as connection:
        return {name: shares.by_path(connection)[name]["scope_id"] for name in QUEUES}


def submit(engine: sa.Engine, tenant: str, tenant_id: str, **changed: object) -> Submitted:
    submission = a_submission(queue=QUEUES[tenant], tenant_id=tenant_id, **changed)
    with write(engine) as connection:
        return runs.submit(connection, submission, policy=LEASE_POLICY, rng=RNG)


def test_a_run_is_named_listed_and_paged_by_its_tenant_alone(
    engine: sa.Engine, ids: dict[str, str]
) -> None:
    run_id = submit(engine, "acme", ids["acme"]).run_id
    with read(engine) as connection:
        for tenant_id in (None, ids["acme"]):
            assert naming.run_id_of(connection, run_id[:20], tenant_id=tenant_id) == run_id
            page = views.list_runs(connection, limit=5, tenant_id=tenant_id)
            assert [one.run_id for one in page.runs] == [run_id]
        assert views.list_runs(connection, limit=5, tenant_id=ids["umbra"]).runs == ()
        for typed in (run_id, run_id[:20]):
            with pytest.raises(NotFound):
                naming.run_id_of(connection, typed, tenant_id=ids["umbra"])
        job_id = connection.execute(sa.select(tables.jobs.c.job_id)).scalar_one()
        naming.demand_job(connection, job_id, tenant_id=ids["acme"])
        with pytest.raises(NotFound):
            naming.demand_job(connection, job_id, tenant_id=ids["umbra"])


def test_a_tenant_submits_into_its_own_queues_only(engine: sa.Engine, ids: dict[str, str]) -> None:
    with pytest.raises(NotFound) as caught:
        submit(engine, "acme", ids["umbra"])
    assert caught.value.allowed == QUEUES["umbra"]


def test_a_source_is_for_the_tenants_that_have_sent_it(
    engine: sa.Engine, ids: dict[str, str]
) -> None:
    with write(engine) as connection:
        blobs.record(connection, DIGEST, 1)
        blobs.own(connection, DIGEST, ids["acme"])
        blobs.own(connection, DIGEST, ids["acme"])
    submit(engine, "acme", ids["acme"], source_digest=DIGEST)
    with pytest.raises(NotFound, match="not uploaded"):
        submit(engine, "umbra", ids["umbra"], source_digest=DIGEST)
    with write(engine) as connection:
        connection.execute(sa.delete(tables.blobs))
        assert not blobs.is_owned(connection, DIGEST, ids["acme"])


def test_keys_and_groups_of_one_name_in_two_tenants_are_two(
    engine: sa.Engine, ids: dict[str, str]
) -> None:
    group = Concurrency(group="deploy", cancel_in_progress=True)
    spec = a_run_spec()
    spec = type(spec)(name="deploy", jobs=spec.jobs, timeout=spec.timeout, concurrency=group)
    found = {
        name: [submit(engine, name, ids[name], spec=spec, idempotency_key="same") for _ in range(2)]
        for name in QUEUES
    }
    assert [one.created for each in found.values() for one in each] == [True, False, True, False]
    with read(engine) as connection:
        states = connection.execute(sa.select(tables.runs.c.state, tables.runs.c.ready_at)).all()
    assert len(states) == 2
    assert all(state == "queued" and ready is not None for state, ready in states)
    again = submit(engine, "acme", ids["acme"], spec=spec)
    with read(engine) as connection:
        superseded = sa.select(tables.runs.c.run_id).where(tables.runs.c.ending == "superseded")
        assert connection.execute(superseded).scalars().all() == [found["acme"][0].run_id]
    assert again.created
