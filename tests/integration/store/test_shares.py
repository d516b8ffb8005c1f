"""Scopes as operators declare them, and what the scheduler makes of them from the next cycle on."""

import pytest
import sqlalchemy as sa

from forgeyard.errors import Conflict, InvalidRequest, NotFound
from forgeyard.store import overview, shares, tables, views
from forgeyard.store.engine import read
from forgeyard.store.shares import Shares
from tests.builders import RNG, a_job_spec
from tests.leasing import Desk
from tests.sharing import DEFAULT, WISH, cancel, declare, limit, rerun, submit_to, used

pytestmark = pytest.mark.integration


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def paths(desk: Desk) -> list[str]:
    with read(desk.engine) as connection:
        return [scope.path for scope in shares.list_scopes(connection)]


def audited(desk: Desk) -> list[tuple[str, str, str]]:
    rows = desk.rows(tables.audit)
    return [(row["action"], row["target"], row["detail"]) for row in rows]


@pytest.mark.requirement("FAR-002", "FAR-004")
def test_a_queue_is_declared_with_all_that_is_around_it(desk: Desk) -> None:
    assert declare(desk, "acme", weight=3, max_jobs=2) == "acme/org/prj/main"
    assert paths(desk) == [
        "everything",
        "acme",
        "acme/org",
        "acme/org/prj",
        "acme/org/prj/main",
        *("default", "default/default", "default/default/default", DEFAULT),
        "pool:default",
    ]
    with read(desk.engine) as connection:
        shown = shares.show(connection, "acme/org/prj/main")
    assert (shown.kind, shown.version, shown.shares) == ("queue", 1, Shares(weight=3, max_jobs=2))
    assert [action for action, *_ in audited(desk)] == ["scope.create"] * 4
    assert audited(desk)[-1][2] == "weight 3, max_jobs 2: a test"


def test_a_scope_is_declared_once_and_only_inside_one_that_exists(desk: Desk) -> None:
    declare(desk, "acme")
    with pytest.raises(Conflict, match="exists already"):
        desk.change(shares.create, "acme", Shares(), intent=WISH, rng=RNG)
    with pytest.raises(NotFound, match="no scope 'acne'") as missing:
        desk.change(shares.create, "acne/org", Shares(), intent=WISH, rng=RNG)
    assert missing.value.allowed is not None
    assert "acme" in missing.value.allowed
    for path in ("everything", "pool:mac", "a/b/c/d/e"):
        with pytest.raises(InvalidRequest, match="cannot be declared"):
            desk.change(shares.create, path, Shares(), intent=WISH, rng=RNG)


def test_shares_are_set_only_by_who_has_seen_them_as_they_are(desk: Desk) -> None:
    limit(desk, "default", weight=9)
    with pytest.raises(Conflict, match="at version 2, not 1"):
        desk.change(shares.change, "default", Shares(), expected_version=1, intent=WISH)
    with read(desk.engine) as connection:
        assert shares.show(connection, "default").shares.weight == 9


@pytest.mark.parametrize("change", ["limit", "resume", "declare"])
def test_every_change_wakes_whoever_waits(desk: Desk, change: str) -> None:
    desk.submit()
    (before,) = desk.rows(tables.wakes)
    if change == "limit":
        limit(desk, "pool:default", max_jobs=3)
    elif change == "resume":
        desk.change(shares.resume, DEFAULT, intent=WISH)
    else:
        desk.change(shares.create, "acme", Shares(), intent=WISH, rng=RNG)
    (after,) = desk.rows(tables.wakes)
    assert after["generation"] > before["generation"]


@pytest.mark.parametrize("path", [DEFAULT, "default", "everything", "pool:default"])
def test_what_is_paused_at_any_level_waits_with_its_note_and_goes_on_afterwards(
    desk: Desk, path: str
) -> None:
    desk.register()
    run_id = desk.submit()
    desk.change(shares.pause, path, note="until nine", intent=WISH)
    assert desk.cycle().granted == 0
    with read(desk.engine) as connection:
        (job,) = views.run(connection, run_id).jobs
    assert job.waiting is not None
    assert job.waiting.endswith("is paused: until nine.")
    desk.change(shares.resume, path, intent=WISH)
    assert desk.cycle().granted == 1
    assert [action for action, *_ in audited(desk)] == ["scope.pause", "scope.resume"]


@pytest.mark.requirement("CLI-003", "API-002")
def test_queues_are_shown_by_their_path_with_the_pause_that_concerns_them(desk: Desk) -> None:
    declare(desk, "acme")
    submit_to(desk, "acme/org/prj/main", a_job_spec("a"), a_job_spec("b"))
    desk.change(shares.pause, "acme", note="audit", intent=WISH)
    with read(desk.engine) as connection:
        acme, default = overview.queues(connection)
    assert (acme.path, acme.paused, acme.note) == ("acme/org/prj/main", True, "audit")
    assert acme.eligible == {"normal": 2}
    assert (default.path, default.paused) == (DEFAULT, False)


@pytest.mark.requirement("FAR-002", "FAR-009")
def test_a_run_and_its_jobs_belong_to_the_queue_that_it_names(desk: Desk) -> None:
    desk.register()
    path = declare(desk, "acme")
    run_id = submit_to(desk, path)
    (job,) = desk.rows(tables.jobs, run_id=run_id)
    with read(desk.engine) as connection:
        assert views.run(connection, run_id).queue == path
        assert shares.queue_of(connection, path)[3] == job["queue_id"]
        assert desk.row(tables.runs, run_id)["tenant_id"] == job["tenant_id"]
    assert desk.cycle().granted == 1
    assert (used(desk, path).jobs, used(desk, DEFAULT).jobs) == (1, 0)
    assert used(desk, "acme") == used(desk, "everything") == used(desk, "pool:default")


def test_a_queue_that_does_not_exist_is_named_with_its_neighbours(desk: Desk) -> None:
    declare(desk, "acme")
    for path in ("acme/org/prj/mian", "acme/org"):
        with pytest.raises(NotFound, match="no queue") as missing:
            submit_to(desk, path)
        assert missing.value.field == "queue"
        assert "acme/org/prj/main" in str(missing.value.allowed)
    assert desk.rows(tables.runs) == []


def test_a_rerun_waits_in_the_queue_of_the_first(desk: Desk) -> None:
    path = declare(desk, "acme")
    run_id = submit_to(desk, path)
    cancel(desk, run_id)
    with read(desk.engine) as connection:
        before = views.run(connection, run_id)
    assert before.state == "cancelled"
    again = rerun(desk, run_id)
    with read(desk.engine) as connection:
        assert views.run(connection, again).queue == path
