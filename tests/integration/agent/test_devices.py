"""A real agent gives its jobs the devices that they were granted, and never one to two at once."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from forgeyard.model.capability import Requirements
from forgeyard.model.equipment import DeviceRequirement, EquipmentRequirement, GpuRequirement
from forgeyard.model.job import JobSpec
from forgeyard.store import tables
from tests.builders import a_job_spec
from tests.integration.agent.control import Control, a_control
from tests.integration.agent.scripts import eventually
from tests.integration.agent.test_agent_end_to_end import an_agent

pytestmark = pytest.mark.integration
GPUS = [{"id": "GPU-aa", "vendor": "nvidia"}, {"id": "GPU-bb", "vendor": "nvidia"}]
PRINT = "echo [$FORGEYARD_DEVICES] [${CUDA_VISIBLE_DEVICES-unset}] [${HIP_VISIBLE_DEVICES-unset}]"


@pytest.fixture
async def control(sqlite_engine: sa.Engine, tmp_path: Path) -> AsyncIterator[Control]:
    """Serve the agent API."""
    async with a_control(sqlite_engine, tmp_path) as made, made.listening():
        yield made


def wanting(name: str, run: str, **wishes: object) -> JobSpec:
    requires = Requirements(equipment=EquipmentRequirement(**wishes))
    return a_job_spec(name, run=run, requires=requires)


def said(control: Control, run_id: str) -> dict[str, str]:
    """Read the line that each job of a run wrote."""
    lines: dict[str, str] = {}
    names = {job["job_id"]: job["name"] for job in control.rows(tables.jobs, run_id=run_id)}
    for attempt in control.attempts(run_id):
        written = control.log(attempt["attempt_id"])
        printed = next(line for line in written.splitlines() if "[" in line)
        lines[names[attempt["job_id"]]] = printed[printed.index("[") :]
    return lines


@pytest.mark.requirement("DEV-003", "DEV-007", "ACC-024", "DEV-001", "ELG-012")
async def test_two_jobs_side_by_side_never_see_the_same_gpu(
    control: Control, tmp_path: Path
) -> None:
    """Each waits until the other runs, too; with one device for both neither would end."""
    meet = f"touch {tmp_path}/$FORGEYARD_JOB_NAME; "
    meet += f"until [ -e {tmp_path}/one ] && [ -e {tmp_path}/two ]; do sleep 0.05; done; "
    one_gpu = {"gpus": (GpuRequirement(),)}
    async with an_agent(control, gpus=GPUS):
        run_id = control.submit(
            *(wanting(name, meet + PRINT, **one_gpu) for name in ("one", "two"))
        )
        assert (await control.follow(run_id))["state"] == "succeeded"
    lines = said(control, run_id)
    assert sorted(lines.values()) == ["[GPU-aa] [GPU-aa] []", "[GPU-bb] [GPU-bb] []"]
    assert control.rows(tables.device_holds) == []


@pytest.mark.requirement("DEV-001")
async def test_three_jobs_for_two_gpus_take_turns(control: Control) -> None:
    async with an_agent(control, gpus=GPUS):
        jobs = [wanting(name, "sleep 0.3", gpus=(GpuRequirement(),)) for name in "abc"]
        run_id = control.submit(*jobs)
        most: list[int] = []

        def arrived() -> bool:
            control.schedule()
            control.sweep()
            holds = control.rows(tables.device_holds)
            assert len({row["device_id"] for row in holds}) == len(holds)
            most.append(len(holds))
            return control.run(run_id)["state"] == "succeeded"

        await eventually(arrived, every=0.05)
    assert max(most) == 2


@pytest.mark.requirement("DEV-001", "DEV-004")
@pytest.mark.parametrize(
    ("wishes", "line"),
    [
        ({}, "[] [] []"),
        ({"devices": (DeviceRequirement(kind="board"),)}, "[board/0] [] []"),
        ({"devices": (DeviceRequirement(kind="phone", api_level=">=34"),)}, "[serial-2] [] []"),
        ({"gpus": (GpuRequirement(id="GPU-bb"),)}, "[GPU-bb] [GPU-bb] []"),
    ],
    ids=["nothing", "counted", "described", "named"],
)
async def test_a_job_is_told_its_own_devices_and_no_others(
    control: Control, wishes: Mapping[str, object], line: str
) -> None:
    phones = [
        {"kind": "phone", "id": "serial-1", "api_level": "33"},
        {"kind": "phone", "id": "serial-2", "api_level": "34"},
    ]
    async with an_agent(control, gpus=GPUS, devices={"board": 1}, named_devices=phones):
        # What a job says about these variables itself does not count.
        spec = replace(wanting("job", PRINT, **wishes), env={"CUDA_VISIBLE_DEVICES": "GPU-aa"})
        run_id = control.submit(spec)
        assert (await control.follow(run_id))["state"] == "succeeded"
    assert said(control, run_id) == {"job": line}
