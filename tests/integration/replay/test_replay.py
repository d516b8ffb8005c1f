"""Recorded histories replay with today's code, under the sandbox."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

import workflows
from tests.integration.replay import rollout_cases  # noqa: F401  (keeps its cases)
from tests.integration.replay.fleet_cases import CASES
from tests.integration.replay.histories import REFRESH, ROOT, baseline, commands, load, recorded
from worker.wiring import WORKFLOWS, sandbox

SOURCES = Path(workflows.__path__[0])
BROKEN = {
    "AttemptLease": ("attempt_lease", "contracts.read_attempt,", "contracts.settle_attempt,"),
    "SchedulerLoop": ("scheduler_loop", "contracts.SCHEDULING_CYCLE,", "contracts.UPKEEP,"),
    "SchedulingCycle": ("scheduling_cycle", "contracts.plan_cycle,", "contracts.relay_outbox,"),
    "Upkeep": ("upkeep", "contracts.ensure_loop,", "contracts.sweep,"),
    "FleetReconcile": ("fleet_reconcile", "contracts.tick_fleet,", "contracts.command_fleet,"),
    "CapacityInstance": (
        "capacity_instance",
        "contracts.advance_instance,",
        "contracts.observe_fleet,",
    ),
    "ImageRollout": (
        "image_rollout",
        "rollout_contracts.advance_rollout,",
        "rollout_contracts.command_rollout,",
    ),
}
"""For each type its module, and a piece of it that a careless change may turn into another."""


def a_replayer(*types: type) -> Replayer:
    """Replay these workflows as the worker runs them."""
    return Replayer(
        workflows=types or WORKFLOWS,
        workflow_runner=sandbox(),
        data_converter=pydantic_data_converter,
    )


def test_every_workflow_type_has_at_least_three_cases_and_each_is_recorded() -> None:
    known = {f"{kind}/{name}" for kind, cases in CASES.items() for name in cases}
    assert set(recorded()) == known, REFRESH
    types = {kind: len(cases) for kind, cases in CASES.items()}
    assert types.keys() == {each.__temporal_workflow_definition.name for each in WORKFLOWS}
    assert min(types.values()) >= 3


@pytest.mark.parametrize("name", recorded())
async def test_a_recorded_history_replays(name: str) -> None:
    result = await a_replayer().replay_workflow(load(name), raise_on_replay_failure=False)
    assert result.replay_failure is None, f"{name}: {result.replay_failure}\n{REFRESH}"


@pytest.mark.parametrize("name", recorded())
def test_a_case_holds_the_commands_that_were_accepted(name: str) -> None:
    assert commands(load(name)) == baseline().get(name), f"{name} has other commands. {REFRESH}"


@pytest.fixture
def importable(tmp_path: Path) -> Iterator[Path]:
    """Give a folder that modules are imported from."""
    sys.path.insert(0, str(tmp_path))
    yield tmp_path
    sys.path.remove(str(tmp_path))


@pytest.mark.parametrize("kind", sorted(BROKEN))
async def test_a_broken_copy_of_a_workflow_fails_replay(kind: str, importable: Path) -> None:
    module, right, wrong = BROKEN[kind]
    source = (SOURCES / f"{module}.py").read_text()
    assert right in source
    (importable / f"copied_{module}.py").write_text(source)
    (importable / f"broken_{module}.py").write_text(source.replace(right, wrong, 1))
    copied, broken = (
        getattr(importlib.import_module(f"{prefix}_{module}"), kind)
        for prefix in ("copied", "broken")
    )
    histories = [load(name) for name in recorded() if name.startswith(f"{kind}/")]
    failures = dict.fromkeys(("copied", "broken"), 0)
    for prefix, each in (("copied", copied), ("broken", broken)):
        for history in histories:
            replayed = await a_replayer(each).replay_workflow(
                history, raise_on_replay_failure=False
            )
            failures[prefix] += replayed.replay_failure is not None
    assert failures["copied"] == 0
    assert failures["broken"] >= 1


@pytest.mark.parametrize("name", recorded())
def test_a_recorded_history_is_small_and_tells_nothing_of_a_machine(name: str) -> None:
    text = (ROOT / f"{name}.json").read_text()
    assert len(text) < 60_000
    assert not any(trace in text for trace in ("/tmp/", "/home/", "/root/", ".py", "@"))
    assert '"stackTrace": "' not in text.replace('"stackTrace": ""', "")
