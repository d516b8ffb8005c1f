"""Deletes the fence from the product, and sees the model and the race tests turn red.

A test of the tests: what stays green here would not notice that the fence is gone.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from forgeyard.store import fence
from tests.history.checker import complaints
from tests.history.entries import read
from tests.history.recorder import recording
from tests.integration.store.test_commit_races import (
    test_a_completion_against_the_sweep_has_one_winner as the_race,
)
from tests.leasing import HOUR, Desk
from tests.models.granting import product
from tests.models.test_granting import search

pytestmark = pytest.mark.integration
# Not a test of this module as well.
the_race_with_the_sweep: Callable[[Desk], None] = the_race
del the_race


@pytest.fixture
def _no_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fence, "staleness", lambda *_: None)


@pytest.mark.usefixtures("_no_fence")
def test_the_model_finds_a_trace() -> None:
    outcome, wrong = search(product(), said="the product without its fence")
    assert wrong
    assert outcome.trace is not None
    assert len(outcome.trace) <= 10


@pytest.mark.usefixtures("_no_fence")
def test_the_race_of_a_completion_with_the_sweep_is_lost(engine: sa.Engine) -> None:
    # Either a result counts that came too late, or a last defence breaks.
    with pytest.raises((AssertionError, ValueError)):
        the_race_with_the_sweep(Desk(engine))


@pytest.mark.usefixtures("_no_fence")
def test_the_history_of_a_late_result_is_complained_of(engine: sa.Engine, tmp_path: Path) -> None:
    desk = Desk(engine)
    with recording(tmp_path):
        lease = desk.active()
        desk.later(HOUR)
        desk.heartbeat(lease.session_id)
        assert desk.sweep().expired == 1
        with pytest.raises(ValueError, match="not in tuple"):
            desk.complete(lease)
    assert set(complaints(read(tmp_path))) == {"only_what_was_foreseen_is_refused"}
