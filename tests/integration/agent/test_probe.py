"""What an agent finds out about the host that runs these tests, and about tools that misbehave."""

import asyncio
import os
import platform
import time
from pathlib import Path

import pytest

from forgeyard.agent import asking, equipment, host, probe, toolchains
from forgeyard.errors import InvalidQuantity
from forgeyard.machine_settings import AgentConfig, GpuConfig, ToolchainConfig
from forgeyard.model.capability import REPORT_VERSION, Platform, TrustClass
from forgeyard.model.equipment import (
    Device,
    GpuVendor,
    IsolationClass,
    NetworkMode,
    Provenance,
    Runtime,
    SandboxKind,
)
from forgeyard.model.units import GIB
from tests.integration.agent.scripts import eventually, is_alive, number_in

pytestmark = pytest.mark.integration


def a_tool(folder: Path, name: str, script: str) -> None:
    """Put a program on a PATH."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


async def tools(path: Path) -> list[tuple[str, str | None]]:
    """Ask for the tools on a PATH; leave their digests out."""
    return [(tool.name, tool.version) for tool in await toolchains.probed(str(path))]


async def test_the_host_is_described_within_its_limits(tmp_path: Path) -> None:
    config = AgentConfig(name="here", jobs=3, labels={"zone": "a"}, headroom_disk="2Gi")
    found = await probe.registration(config, tmp_path)
    assert found.runner_name == "here"
    assert found.capabilities.platform is Platform.LINUX
    assert found.capabilities.architecture == platform.machine()
    assert found.capabilities.labels == {"zone": "a"}
    assert found.total.slots == 3
    assert 0 < found.total.cpu <= 1000 * len(os.sched_getaffinity(0))
    assert 0 < found.total.memory <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert found.total.disk > 0
    assert found.headroom.disk == 3 * GIB, "the local cache is kept back, too"


async def test_a_headroom_that_cannot_be_read_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(InvalidQuantity) as caught:
        await probe.registration(AgentConfig(headroom_memory="much"), tmp_path)
    assert caught.value.field == "agent.headroom_memory"


async def test_an_agent_offers_its_share_of_a_host_and_never_more_than_there_is(
    tmp_path: Path,
) -> None:
    config = AgentConfig(cpu="100m", memory="64Mi", disk="1000Ti", headroom_cpu="50m")
    found, whole = await asyncio.gather(
        probe.registration(config, tmp_path), probe.registration(AgentConfig(), tmp_path)
    )
    assert found.total.minus(found.headroom).cpu == 100
    assert found.total.minus(found.headroom).memory == 2**26
    assert 0 < found.total.disk <= whole.total.disk + GIB
    with pytest.raises(InvalidQuantity) as caught:
        await probe.registration(AgentConfig(cpu="many"), tmp_path)
    assert caught.value.field == "agent.cpu"


async def test_tools_are_asked_for_their_versions(tmp_path: Path) -> None:
    a_tool(tmp_path, "git", "echo git version 9.8.7")
    a_tool(tmp_path, "java", "echo 'openjdk version \"17.0.1\"' >&2")
    a_tool(tmp_path, "make", "echo no number")
    a_tool(tmp_path, "go", "exit 1")
    assert set(await tools(tmp_path)) == {("git", "9.8.7"), ("java", "17.0.1"), ("make", None)}


async def test_a_tool_that_hangs_is_killed_with_its_children_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "TIMEOUT_S", 0.5)
    a_tool(tmp_path, "git", f"/bin/sleep 60 & echo $! > {tmp_path}/child; wait")
    a_tool(tmp_path, "node", "echo v20.1.0")
    begun = time.monotonic()
    assert await tools(tmp_path) == [("node", "20.1.0")]
    assert time.monotonic() - begun < 5
    child = await number_in(tmp_path / "child")
    await eventually(lambda: not is_alive(child))


async def test_a_tool_sees_nothing_of_the_agents_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORGEYARD_TOKEN", "sesame")
    a_tool(tmp_path, "git", f"/usr/bin/env > {tmp_path}/seen; echo 1.0")
    await toolchains.probed(str(tmp_path))
    assert "sesame" not in (tmp_path / "seen").read_text()


async def test_configured_toolchains_come_first_and_are_not_asked(tmp_path: Path) -> None:
    a_tool(tmp_path, "node", "echo v20.1.0")
    offered = ToolchainConfig(name="node", version="22.0.0", bin="/nowhere/bin")
    found = await probe.capabilities(AgentConfig(path=str(tmp_path), toolchains=(offered,)))
    assert [(tool.name, tool.version) for tool in found.toolchains] == [
        ("node", "22.0.0"),
        ("node", "20.1.0"),
    ]
    assert found.toolchains[0].digest is None, "there is no such directory"


async def test_the_loop_goes_on_while_tools_are_asked(tmp_path: Path) -> None:
    a_tool(tmp_path, "git", "/bin/sleep 0.3; echo 1.0")
    asking = asyncio.create_task(toolchains.probed(str(tmp_path)))
    beats = 0
    while not asking.done():
        await asyncio.sleep(0.01)
        beats += 1
    assert beats >= 10


def test_the_load_of_this_host_can_be_read(tmp_path: Path) -> None:
    load = host.load(tmp_path, disk_headroom=0)
    assert 0 < load.memory.left <= load.memory.total
    assert 0 < load.disk.left <= load.disk.total


async def test_a_tool_that_cannot_be_executed_is_left_out(tmp_path: Path) -> None:
    a_tool(tmp_path, "git", "echo git version 9.8.7")
    (tmp_path / "node").write_bytes(b"\x7fnothing that runs")
    (tmp_path / "node").chmod(0o755)
    (tmp_path / "ruby").write_text("#!/no/such/interpreter\n")
    (tmp_path / "ruby").chmod(0o755)
    assert await tools(tmp_path) == [("git", "9.8.7")]


CPUINFO = """\
processor : 0
flags\t\t: fpu AVX2 aes sse4_2

processor : 1
flags\t\t: fpu avx2 aes
"""


@pytest.mark.requirement("ELG-022")
def test_only_what_every_processor_can_do_is_a_feature(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(CPUINFO)
    assert equipment.cpu_features(file) == ("aes", "aes-ni", "avx2", "fpu")
    file.write_text("processor\t: 0\nFeatures\t: fp asimd\n")
    assert equipment.cpu_features(file) == ("asimd", "fp", "neon")


@pytest.mark.parametrize(
    "text",
    ["", "flags :\n", "model name: x\n", "flags: " + " ".join(f"f{n}" for n in range(600))],
)
def test_features_that_cannot_be_told_whole_are_unknown(tmp_path: Path, text: str) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(text)
    assert equipment.cpu_features(file) is None
    assert equipment.cpu_features(tmp_path / "absent") is None


async def test_runtimes_are_there_if_they_answer(tmp_path: Path) -> None:
    a_tool(tmp_path, "docker", '[ "$1" = version ] && echo 24.0.7')
    a_tool(tmp_path, "podman", "echo cannot connect; exit 125")
    assert await equipment.runtimes(str(tmp_path)) == (Runtime(name="docker", version="24.0.7"),)


@pytest.mark.requirement("DEV-001")
async def test_gpus_are_none_unknown_or_what_the_driver_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "TIMEOUT_S", 0.5)
    dev, path = tmp_path / "dev", str(tmp_path)
    dev.mkdir()
    assert await equipment.probed_gpus(path, dev) == ()
    (dev / "dri").mkdir()
    (dev / "dri" / "renderD128").touch()
    assert await equipment.probed_gpus(path, dev) is None
    a_tool(tmp_path, "nvidia-smi", "echo 'GPU-5a1b, Tesla T4, 15360, 7.5, Default'")
    (gpu,) = await equipment.probed_gpus(path, dev) or ()
    assert (gpu.vendor, gpu.model, gpu.provenance) == (
        GpuVendor.NVIDIA,
        "Tesla T4",
        Provenance.PROBED,
    )
    for misbehaving in ("exit 9", "/bin/sleep 60", "echo hello"):
        a_tool(tmp_path, "nvidia-smi", misbehaving)
        assert await equipment.probed_gpus(path, dev) is None


@pytest.mark.requirement("ELG-026")
async def test_an_agent_tells_what_it_has_how_it_knows_and_how_it_runs_jobs(
    tmp_path: Path,
) -> None:
    a_tool(tmp_path, "nvidia-smi", "echo 'GPU-5a1b, Tesla T4, 15360, 7.5, Default'")
    a_tool(tmp_path, "git", "echo 2.39.5")
    config = AgentConfig(path=str(tmp_path), devices={"phone": 2}, gpus=(GpuConfig(model="A10"),))
    found = await probe.capabilities(config)
    has = found.equipment
    assert has.cpu_features == equipment.cpu_features()
    assert has.devices == (Device(kind="phone", count=2),)
    assert [device.provenance for device in has.devices] == [Provenance.CONFIGURED]
    assert has.gpus is not None
    assert [(gpu.model, gpu.provenance) for gpu in has.gpus] == [("A10", Provenance.CONFIGURED)]
    assert has.sandboxes == (SandboxKind.NONE,)
    assert has.network_modes == (NetworkMode.HOST,)
    assert has.isolation == (IsolationClass.PROCESS,)
    assert found.platform is Platform.LINUX
    assert found.trust is TrustClass.TRUSTED_INTERNAL
    assert found.toolchains[0].provenance is Provenance.PROBED
    assert found.provenance["platform"] is Provenance.PROBED
    assert found.schema_version == REPORT_VERSION
    bare = await probe.capabilities(AgentConfig(path=str(tmp_path)))
    assert bare.equipment.devices == ()
    assert bare.equipment.gpus is not None
    assert [gpu.model for gpu in bare.equipment.gpus] == ["Tesla T4"]
