"""A real agent's equipment decides whether a job is leased or waits with its reason."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import sqlalchemy as sa

from forgeyard.agent import equipment
from forgeyard.model.capability import Requirements
from forgeyard.model.equipment import (
    DeviceRequirement,
    EquipmentRequirement,
    GpuRequirement,
    GpuVendor,
    IsolationClass,
    NetworkMode,
    RuntimeRequirement,
    SandboxKind,
)
from forgeyard.model.units import GIB, Bytes
from forgeyard.store import tables
from tests.builders import a_job_spec
from tests.integration.agent.control import Control, a_control
from tests.integration.agent.test_agent_end_to_end import an_agent

pytestmark = pytest.mark.integration
CPU = equipment.cpu_features() or ()


@pytest.fixture
async def control(sqlite_engine: sa.Engine, tmp_path: Path) -> AsyncIterator[Control]:
    """Serve the agent API."""
    async with a_control(sqlite_engine, tmp_path) as made, made.listening():
        yield made


def submit(control: Control, **wishes: object) -> str:
    """Submit a job that does nothing but ask for equipment."""
    requires = Requirements(equipment=EquipmentRequirement(**wishes))
    return control.submit(a_job_spec("build", run="true", requires=requires))


def waits_because(control: Control, run_id: str) -> str:
    """Run a cycle that must grant nothing; tell why the job waits."""
    assert control.schedule() == 0
    (job,) = control.rows(tables.jobs, run_id=run_id)
    assert job["state"] == "eligible"
    (parked,) = control.rows(tables.parked_classes, requirement_class=job["requirement_class"])
    return str(parked["diagnosis"])


@pytest.mark.requirement("ELG-007", "ELG-012", "DEV-001")
@pytest.mark.parametrize(
    ("setting", "wishes", "reason"),
    [
        (
            {"devices": {"usb-programmer": 1}},
            {"devices": (DeviceRequirement(kind="usb-programmer"),)},
            "needs 1 device usb-programmer, but plain has none",
        ),
        (
            {"gpus": [{"vendor": "nvidia", "memory": "24Gi", "compute_capability": "8.6"}]},
            {
                "gpu": GpuRequirement(
                    vendor=GpuVendor.NVIDIA,
                    memory=Bytes(16 * GIB),
                    compute_capability=">=8.0",
                )
            },
            "needs 1 GPU (nvidia, 16 GiB, compute capability >=8.0), but plain has",
        ),
    ],
    ids=["device", "gpu"],
)
async def test_what_an_operator_configured_makes_the_difference(
    control: Control, setting: Mapping[str, object], wishes: Mapping[str, object], reason: str
) -> None:
    run_id = submit(control, **wishes)
    async with an_agent(control, "plain"):
        assert reason in waits_because(control, run_id)
        async with an_agent(control, "equipped", **setting):
            assert (await control.follow(run_id))["state"] == "succeeded"
    (attempt,) = control.attempts(run_id)
    (runner,) = control.rows(tables.runners, name="equipped")
    assert attempt["runner_id"] == runner["runner_id"]


@pytest.mark.skipif(not CPU, reason="this kernel does not list CPU features")
@pytest.mark.requirement("ELG-004", "ELG-022")
async def test_a_probed_cpu_feature_makes_the_difference(control: Control) -> None:
    absent = submit(control, cpu_features=("no-such-feature",))
    async with an_agent(control):
        assert "needs CPU feature no-such-feature" in waits_because(control, absent)
        present = submit(control, cpu_features=(CPU[0],))
        assert (await control.follow(present))["state"] == "succeeded"


@pytest.mark.requirement("ELG-011", "ELG-014", "ELG-023", "ELG-024")
async def test_an_agent_of_today_shuts_nobody_in_and_says_so(control: Control) -> None:
    wishes = {
        "sandbox linux_namespace, but runner-1 has sandbox none": {
            "sandbox": SandboxKind.LINUX_NAMESPACE
        },
        "network denied, but runner-1 has network host": {"network": NetworkMode.DENIED},
        "isolation vm, but runner-1 has isolation process": {"isolation": IsolationClass.VM},
    }
    offered = submit(
        control,
        sandbox=SandboxKind.NONE,
        network=NetworkMode.HOST,
        isolation=IsolationClass.PROCESS,
    )
    async with an_agent(control):
        assert (await control.follow(offered))["state"] == "succeeded"
        for reason, wish in wishes.items():
            assert reason in waits_because(control, submit(control, **wish))


@pytest.mark.requirement("ELG-010")
async def test_a_runtime_that_answers_makes_the_difference(
    control: Control, tmp_path: Path
) -> None:
    run_id = submit(control, runtimes=(RuntimeRequirement(name="podman", version=">=4"),))
    async with an_agent(control, "plain"):
        assert "needs runtime podman >=4, but plain has no podman" in waits_because(control, run_id)
    folder = tmp_path / "with-podman"
    folder.mkdir()
    (folder / "podman").write_text("#!/bin/sh\necho podman version 4.3.1\n")
    (folder / "podman").chmod(0o755)
    usual = control.settings("plain").config.path
    async with an_agent(control, "equipped", path=f"{folder}:{usual}"):
        assert (await control.follow(run_id))["state"] == "succeeded"
