"""How runners and amounts of resources are printed, for `scheduler` and `runner` alike."""

from collections.abc import Iterable
from typing import Final

from forgeyard.cli import output
from forgeyard.cli.runner_shapes import Runner
from forgeyard.cli.scheduler_shapes import CapacityGroup
from forgeyard.cli.shapes import Amounts
from forgeyard.cli.watching import now_ms

POOL_COLUMNS: Final = (
    *("pool", "platform", "runners", "cpu", "memory", "disk", "gpus", "devices", "held"),
)
RUNNER_COLUMNS: Final = ("runner", "state", "platform", "cpu", "memory", "disk", "jobs", "seen")


def runner_rows(runners: Iterable[Runner]) -> list[tuple[str, ...]]:
    """Write runners as rows; amounts are free of allocatable."""
    now = now_ms()
    return [
        (
            runner.name,
            _state(runner),
            "/".join(
                part or "?"
                for part in (runner.capabilities.platform, runner.capabilities.architecture)
            ),
            _of(output.cores(runner.free.cpu), output.cores(runner.allocatable.cpu)),
            _of(output.size(runner.free.memory), output.size(runner.allocatable.memory)),
            _of(output.size(runner.free.disk), output.size(runner.allocatable.disk)),
            f"{len(runner.placed)} of {runner.allocatable.slots}",
            _ago(runner.last_seen_at, now),
        )
        for runner in runners
    ]


def pool_rows(pools: Iterable[CapacityGroup]) -> list[tuple[str, ...]]:
    """Write pools as rows; amounts are free of allocatable."""
    return [
        (
            pool.pool,
            pool.platform,
            str(pool.runners),
            _of(output.cores(pool.free.cpu), output.cores(pool.allocatable.cpu)),
            _of(output.size(pool.free.memory), output.size(pool.allocatable.memory)),
            _of(output.size(pool.free.disk), output.size(pool.allocatable.disk)),
            str(pool.gpus),
            str(pool.devices),
            str(pool.devices_held),
        )
        for pool in pools
    ]


def free_text(free: Amounts, allocatable: Amounts) -> str:
    """Write in one line what is free of what may be given away."""
    return ", ".join(
        (
            f"{_of(output.cores(free.cpu), output.cores(allocatable.cpu))} cores",
            f"{_of(output.size(free.memory), output.size(allocatable.memory))} memory",
            f"{_of(output.size(free.disk), output.size(allocatable.disk))} disk",
            f"{_of(str(free.slots), str(allocatable.slots))} slots",
        )
    )


def amount_row(name: str, amounts: Amounts) -> tuple[str, ...]:
    """Write an amount of every resource as a row."""
    return (
        name,
        output.cores(amounts.cpu),
        output.size(amounts.memory),
        output.size(amounts.disk),
        str(amounts.slots),
    )


def _state(runner: Runner) -> str:
    if runner.suspect:
        return "suspect"
    if runner.drain_requested and runner.state == "online":
        return "draining"
    return output.words(runner.state)


def _of(free: str, total: str) -> str:
    return f"{free} of {total}"


def _ago(at: int | None, now: int) -> str:
    return "" if at is None else f"{output.duration(now - at)} ago"
