"""Finds out what this host has beside its tools: CPU features, runtimes, devices and GPUs.

What the operator configured counts before what is found. What cannot be found out is `None`, never
"has none", and nothing that goes wrong here keeps an agent from starting.
"""

import asyncio
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from forgeyard.agent.asking import ask, parse_version
from forgeyard.agent.isolation import NOTHING, Isolation
from forgeyard.machine_settings import AgentConfig
from forgeyard.model.equipment import (
    MAX_CPU_FEATURES,
    MAX_GPUS,
    Device,
    Equipment,
    Gpu,
    GpuSharing,
    GpuVendor,
    IsolationClass,
    Provenance,
    Runtime,
)
from forgeyard.model.units import MIB, Bytes, Rounding, parse_bytes

RUNTIMES: dict[str, tuple[str, ...]] = {
    "docker": ("docker", "version", "--format", "{{.Server.Version}}"),
    "podman": ("podman", "--version"),
    "wasmtime": ("wasmtime", "--version"),
}
"""What to ask for each runtime; docker is there only if its server answers."""
NVIDIA_SMI = (
    "nvidia-smi",
    "--query-gpu=uuid,name,memory.total,compute_cap,compute_mode",
    "--format=csv,noheader,nounits",
)
GPU_NODES = ("nvidia[0-9]*", "kfd", "dri/renderD*")
"""What lies under /dev where the kernel knows a GPU."""
SEVERAL_NAMES = {"asimd": "neon", "aes": "aes-ni"}
"""Features that people know by another name than the kernel; both are reported."""
_MOST_BYTES = 4 * MIB
_FLAGS = re.compile(r"^(?:flags|Features)[ \t]*:(.*)$", re.MULTILINE)
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z-]{1,100}")
_COMPUTE_CAPABILITY = re.compile(r"\d+(?:\.\d+)?")


async def equipment(config: AgentConfig, isolation: Isolation = NOTHING) -> Equipment:
    """Describe what this host has, and how this agent runs jobs.

    Raises:
        InvalidQuantity: naming the setting, when the memory of a GPU cannot be read.
    """
    granted = configured_gpus(config)
    found, gpus = await asyncio.gather(runtimes(config.path), probed_gpus(config.path))
    return Equipment(
        cpu_features=cpu_features(),
        runtimes=found,
        sandboxes=isolation.sandboxes,
        network_modes=isolation.networks,
        isolation=(IsolationClass.PROCESS,),
        devices=tuple(configured_devices(config)),
        gpus=granted or gpus,
    )


def cpu_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, ...] | None:
    """List what every processor of this host can do; `None` where the kernel does not say."""
    try:
        with cpuinfo.open(errors="replace") as stream:
            text = stream.read(_MOST_BYTES)
    except OSError:
        return None
    processors = [set(flags.lower().split()) for flags in _FLAGS.findall(text)]
    common = set[str].intersection(*processors) if processors else set[str]()
    named = common | {SEVERAL_NAMES[name] for name in common & set(SEVERAL_NAMES)}
    fits = 0 < len(named) <= MAX_CPU_FEATURES and all(len(name) <= 128 for name in named)
    return tuple(sorted(named)) if fits else None


async def runtimes(path: str) -> tuple[Runtime, ...]:
    """Ask every known runtime on a PATH for its version, all at once."""
    answers = await asyncio.gather(*(ask(command, path) for command in RUNTIMES.values()))
    return tuple(
        Runtime(name=name, version=parse_version(answer), provenance=Provenance.PROBED)
        for name, answer in zip(RUNTIMES, answers, strict=True)
        if answer is not None
    )


def configured_devices(config: AgentConfig) -> Iterator[Device]:
    """List the devices that the operator grants to jobs: some counted, some one by one."""
    for kind, count in sorted(config.devices.items()):
        yield Device(kind=kind, count=count, provenance=Provenance.CONFIGURED)
    for one in config.named_devices:
        yield one.device()


def configured_gpus(config: AgentConfig) -> tuple[Gpu, ...]:
    """List the GPUs that the operator grants to jobs."""
    return tuple(
        Gpu(
            id=gpu.id or None,
            vendor=gpu.vendor,
            model=gpu.model or None,
            memory=parse_bytes(
                gpu.memory, field=f"agent.gpus.{place}.memory", rounding=Rounding.CAPACITY
            )
            if gpu.memory
            else None,
            compute_capability=gpu.compute_capability or None,
            sharing=gpu.sharing,
            provenance=Provenance.CONFIGURED,
        )
        for place, gpu in enumerate(config.gpus)
    )


async def probed_gpus(path: str, dev: Path = Path("/dev")) -> tuple[Gpu, ...] | None:
    """Ask the driver for the GPUs; `None` where there may be some that nobody can tell about."""
    if shutil.which(NVIDIA_SMI[0], path=path) is None:
        return None if any(_nodes(dev)) else ()
    answer = await ask(NVIDIA_SMI, path)
    return None if answer is None else parse_gpus(answer)


def _nodes(dev: Path) -> Iterable[Path]:
    return (node for pattern in GPU_NODES for node in dev.glob(pattern))


def parse_gpus(answer: str) -> tuple[Gpu, ...] | None:
    """Read what nvidia-smi says, a GPU a line; `None` if that is something else or too much."""
    lines = [line.split(",") for line in answer.splitlines() if line.strip()]
    if len(lines) > MAX_GPUS or any(len(line) != 5 for line in lines):
        return None
    return tuple(_gpu(*(part.strip() for part in line)) for line in lines)


def _gpu(uuid: str, model: str, mebibytes: str, capability: str, mode: str) -> Gpu:
    """Describe one GPU; in the default mode its driver lets anybody in, which promises nothing."""
    is_number = mebibytes.isascii() and mebibytes.isdecimal() and len(mebibytes) < 10
    return Gpu(
        id=uuid if _UUID.fullmatch(uuid) else None,
        vendor=GpuVendor.NVIDIA,
        model=model[:128] or None,
        memory=Bytes(int(mebibytes) * MIB) if is_number else None,
        compute_capability=capability if _COMPUTE_CAPABILITY.fullmatch(capability) else None,
        sharing=GpuSharing.EXCLUSIVE if mode.startswith("Exclusive") else None,
        provenance=Provenance.PROBED,
    )
