"""One plant for each module and database; rounds for each test."""

import re
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest

from forgeyard.errors import StoreUnavailable
from forgeyard.model.policy import SchedulingPolicy
from tests.chaos.plant import Plant, running
from tests.chaos.rounds import Rounds
from tests.conftest import FAULT
from tests.history.checker import demand_consistent, summary

ON_POSTGRESQL = pytest.mark.parametrize("database", ["postgresql"], indirect=True, scope="module")
"""Marks modules whose fault has nothing to do with which database there is."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a failure how to replay it, and what every process said last."""
    report = yield
    given = getattr(item, "funcargs", {})
    plant, rounds = given.get("plant"), given.get("rounds")
    if call.when == "call" and isinstance(rounds, Rounds):
        report.user_properties.append((FAULT, rounds.row() | {"fault": _fault(item)}))
    if report.failed and isinstance(rounds, Rounds):
        report.sections.append(("replay with", rounds.replay()))
    if report.failed and isinstance(plant, Plant):
        report.sections.append(("logs of the plant", plant.tails(40)))
        with suppress(StoreUnavailable):
            report.sections.append(("history", plant.story()))
    return report


def _fault(item: pytest.Item) -> str:
    """Name a fault of the test plan by what the test, or its module, says it is."""
    for said in (getattr(item, "function", None), getattr(item, "module", None)):
        if found := re.search(r"\bF\d+\b", getattr(said, "__doc__", None) or ""):
            return found.group()
    return ""


@pytest.fixture
def rounds(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Rounds:
    """Give a test as many rounds as were asked for."""
    return Rounds(
        seed=request.config.getoption("--chaos-seed"),
        count=request.config.getoption("--chaos-rounds"),
        test=request.node.name,
        record=record_property,
    )


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def database(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    sqlite_template: Path,
    make_postgresql: Callable[[str], AbstractContextManager[str]],
) -> Iterator[str]:
    """Give each module a database of its own, of each kind in turn."""
    if request.param == "sqlite":
        path = tmp_path_factory.mktemp("database") / "forgeyard.db"
        shutil.copyfile(sqlite_template, path)
        yield f"sqlite:///{path}"
    else:
        with make_postgresql("chaos") as url:
            yield url


@pytest.fixture(scope="module")
def policy() -> SchedulingPolicy:
    """Set the pace; a module that needs shorter deadlines says so itself."""
    return SchedulingPolicy()


@pytest.fixture(scope="module")
def settings() -> Mapping[str, str]:
    """Configure the processes; a module that puts a proxy before one says so itself."""
    return {}


@pytest.fixture(scope="module")
def _plant(
    tmp_path_factory: pytest.TempPathFactory,
    database: str,
    policy: SchedulingPolicy,
    settings: Mapping[str, str],
) -> Iterator[Plant]:
    folder = tmp_path_factory.mktemp("plant")
    built = Plant(folder=folder, url=database, policy=policy, settings=settings)
    with running(built) as plant:
        yield plant


@pytest.fixture
def plant(_plant: Plant, record_property: Callable[[str, object], None]) -> Iterator[Plant]:
    """Run the module's plant, whole again and without agents; check all that it ever recorded."""
    _plant.heal()
    _plant.close_sessions()
    yield _plant
    _plant.end_agents()
    record_property("history checked", summary(demand_consistent(_plant.history)))
