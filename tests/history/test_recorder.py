"""What the recorder writes down: each call once, and how its transaction ended."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from forgeyard.api import keepalive
from forgeyard.errors import StoreUnavailable
from forgeyard.model.ids import LeaseId
from forgeyard.model.protocol import CompletionVerdict, Renew, Renewal
from forgeyard.store import leases
from forgeyard.store.engine import write
from forgeyard.store.leases import accept
from forgeyard.store.renewals import renew_together
from tests.history.checker import complaints
from tests.history.entries import Ended, read
from tests.history.recorder import OPERATIONS, OURS, recording
from tests.leasing import Desk, Lease

pytestmark = pytest.mark.integration


@pytest.fixture
def desk(engine: sa.Engine) -> Desk:
    return Desk(engine)


def test_a_life_of_a_lease_is_told_call_by_call(desk: Desk, tmp_path: Path) -> None:
    with recording(tmp_path):
        lease = desk.active()
        desk.renew(lease)
        desk.complete(lease)
        desk.settle(lease)
    entries = read(tmp_path)
    told = ["submit", "commit_cycle", "accept", "renew", "complete", "settle"]
    assert [entry.op for entry in entries] == told
    assert all(entry.happened for entry in entries)
    assert all(entry.invoked < entry.applied < (entry.returned or 0) for entry in entries)
    _, cycle, _, _, complete, _ = entries
    (granted,) = cycle.granted
    assert (granted.lease, granted.epoch, granted.job) == (lease.lease_id, 1, lease.job_id)
    assert complete.ended == (Ended(lease=lease.lease_id, to="released"),)


def test_a_batch_of_renewals_is_told_lease_by_lease(desk: Desk, tmp_path: Path) -> None:
    with recording(tmp_path):
        lease = desk.active()
        message, other = (
            Renew(session_id=lease.holder.session_id, leases=(Renewal(lease_id=name, epoch=1),))
            for name in (LeaseId(lease.lease_id), LeaseId("nobody's"))
        )
        desk.change(renew_together, (message, other), policy=desk.policy.lease)
    (batch,) = [entry for entry in read(tmp_path) if entry.op == "renew_together"]
    assert batch.args["leases"] == [[lease.lease_id, 1], ["nobody's", 1]]
    assert batch.result == ["renewed", "unanswered"]
    assert complaints(read(tmp_path)) == {}


def test_a_new_session_is_told_by_the_leases_that_it_ends(desk: Desk, tmp_path: Path) -> None:
    with recording(tmp_path):
        lease = desk.offered()
        desk.register("runner-1")  # a new session fences the old one's offers
    ended = [(entry.op, entry.ended) for entry in read(tmp_path) if entry.ended]
    assert ended == [("revoke", (Ended(lease=lease.lease_id, to="revoked"),))]


def test_a_call_that_was_rolled_back_is_not_judged(desk: Desk, tmp_path: Path) -> None:
    def accept_and_fail(connection: sa.Connection, lease: Lease) -> None:
        accept(connection, lease.lease_id, lease.holder, policy=desk.policy.lease)
        raise InterruptedError

    with recording(tmp_path):
        lease = desk.offered()
        with pytest.raises(InterruptedError):
            desk.change(accept_and_fail, lease)
        desk.reject(lease)
    assert [entry.happened for entry in read(tmp_path) if entry.op == "accept"] == [False]
    assert complaints(read(tmp_path)) == {}


def test_a_commit_without_an_answer_is_unknown(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialect = desk.engine.dialect
    real = dialect.do_commit

    def commit_and_lose_the_answer(connection: object) -> None:
        real(connection)
        raise sa.exc.OperationalError("COMMIT", {}, ConnectionResetError())

    with recording(tmp_path):
        lease = desk.active()
        monkeypatch.setattr(dialect, "do_commit", commit_and_lose_the_answer)
        with pytest.raises(StoreUnavailable):
            desk.complete(lease)
        monkeypatch.undo()
        assert desk.complete(lease) is CompletionVerdict.DUPLICATE_ACCEPTED
    completions = [entry for entry in read(tmp_path) if entry.op == "complete"]
    assert [entry.happened for entry in completions] == [None, True]
    assert complaints(read(tmp_path)) == {}


DIES = """
import os, signal, sys
from pathlib import Path
from forgeyard.config import StoreConfig
from forgeyard.store.engine import open_engine
from tests.history.recorder import OPERATIONS, OURS, recording
from tests.leasing import Desk
desk = Desk(open_engine(sys.argv[1], StoreConfig()))
with recording(Path(sys.argv[2])):
    (lease,) = desk.leases()
    desk.engine.dialect.do_commit = lambda _: os.kill(os.getpid(), signal.SIGKILL)
    desk.accept(lease)
"""


def test_a_process_that_dies_within_its_commit_leaves_an_unknown_call(
    database_url: str, desk: Desk, tmp_path: Path
) -> None:
    with recording(tmp_path):
        lease = desk.offered()
    root = Path(__file__).parents[2]
    died = subprocess.run(
        (sys.executable, "-c", DIES, database_url, str(tmp_path)),
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        timeout=120,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL
    with recording(tmp_path):
        assert desk.states(lease)[0] == "offered"
        desk.reject(lease)
    unknown = [entry for entry in read(tmp_path) if entry.happened is None]
    assert [(entry.op, entry.result) for entry in unknown] == [("accept", "accepted")]
    assert complaints(read(tmp_path)) == {}


def test_no_module_of_ours_keeps_what_is_not_recorded(tmp_path: Path) -> None:
    """Also those that took a function by its name, such as the API's batches of renewals."""
    real = {id(getattr(one.home, one.name)): one.name for one in OPERATIONS}
    taken = {keepalive.renew_together, accept}
    assert {id(one) for one in taken} <= set(real)
    with recording(tmp_path):
        kept = [
            (name, key)
            for name, module in list(sys.modules.items())
            if name.split(".")[0] in OURS
            for key, value in vars(module).items()
            if id(value) in real
        ]
    assert kept == []


def test_afterwards_everything_is_as_it_was(tmp_path: Path) -> None:
    before = accept, leases.accept, write
    with recording(tmp_path):
        assert accept is leases.accept is not before[0]
    assert (accept, leases.accept, write) == before
