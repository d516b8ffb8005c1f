"""Requirements and amounts in the words that rejections, diagnoses and explanations share."""

from forgeyard.model.capability import ToolchainRequirement
from forgeyard.model.gaps import wants
from forgeyard.model.origin import WRITTEN, Origin
from forgeyard.model.units import Resources, Rounding, bytes_text, cpu_text
from forgeyard.scheduler.snapshot import SchedulingJob
from forgeyard.scheduler.standing import pools_text, regions_text

DIMENSIONS = ("cpu", "memory", "disk", "slots")


def wanted_texts(job: SchedulingJob) -> tuple[str, ...]:
    """List everything a job must find on its runner, and who wants it beside its author."""
    wanted = job.requirements
    named = (
        ("platform", "platform", wanted.platform),
        ("arch", "architecture", wanted.architecture),
        ("os-version", "OS version", wanted.os_version),
        ("agent-version", "agent version", wanted.agent_version),
        ("trust", "trust", wanted.trust),
    )
    told = (
        *((path, f"{name} {value}") for path, name, value in named if value is not None),
        *((("pools", pools_text(wanted)),) if wanted.pools else ()),
        *((("regions", regions_text(wanted)),) if wanted.regions else ()),
        *(
            (f"labels.{name}", f"label {name}={value}")
            for name, value in sorted(wanted.labels.items())
        ),
        *((f"toolchains.{tool.name}", wanted_tool(tool)) for tool in wanted.toolchains),
        *wants(wanted.equipment),
    )
    return (
        *(attributed(text, wanted.origin(path)) for path, text in told),
        *(
            amount_of(name, job.resources, rounding=Rounding.REQUEST)
            for name in DIMENSIONS
            if _amounts(job.resources)[name]
        ),
    )


def attributed(text: str, origin: Origin) -> str:
    """Name who wants something, where that is not the author of the job (ELG-036)."""
    return text if origin == WRITTEN else f"{text} ({origin.text})"


def wanted_tool(tool: ToolchainRequirement) -> str:
    """Print a required tool: `python >=3.11,<4`."""
    return f"{tool.name} {tool_text(tool.version, tool.digest)}".rstrip()


def tool_text(version: str | None, digest: str | None) -> str:
    """Print what identifies a tool beside its name."""
    return " ".join(part for part in (version, digest) if part)


def amount_of(name: str, resources: Resources, *, rounding: Rounding) -> str:
    """Print one dimension of an amount so that it can stand alone: `12 GiB of memory`."""
    text = amount_text(name, resources, rounding=rounding)
    return f"{text} of {name}" if name in ("memory", "disk") else text


def amount_text(name: str, resources: Resources, *, rounding: Rounding) -> str:
    """Print one dimension of an amount where its name is known: `12 GiB`."""
    amount = _amounts(resources)[name]
    if name == "cpu":
        return cpu_text(amount)
    if name == "slots":
        return f"{max(amount, 0)} {'slot' if amount == 1 else 'slots'}"
    return bytes_text(amount, rounding=rounding)


def _amounts(resources: Resources) -> dict[str, int]:
    return {
        "cpu": resources.cpu,
        "memory": resources.memory,
        "disk": resources.disk,
        "slots": resources.slots,
    }
