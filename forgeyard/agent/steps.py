"""Runs one step of a job: its script in a process group, its output into the log.

Asks the lease right before anything starts and as long as it runs. Nothing that a step started
outlives it.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from forgeyard.agent.cell import Cell
from forgeyard.agent.lease import HeldLease, StopReason
from forgeyard.agent.logs import LogStream
from forgeyard.agent.offers import SHELLS
from forgeyard.agent.process import Command, Exit, GroupId, ProcessGroup, kill_marked, start
from forgeyard.agent.usage import Meter, Sampler
from forgeyard.agent.workspace import Folders
from forgeyard.model.job import Step
from forgeyard.model.protocol import Offer, StepResult
from forgeyard.model.units import Millis

MARK = "FORGEYARD_LEASE_ID"
"""The variable by which processes of an attempt are known wherever they went."""
KILL_AFTER_S = 5.0
PIECE = 2**16
SILENT_S = 2.0
"""After everything was killed: how long to listen to whoever still holds the pipe open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What the steps of one attempt share."""

    held: HeldLease
    folders: Folders
    env: Mapping[str, str] = field(repr=False)
    logs: LogStream
    meter: Meter
    sampler: Sampler
    started: Callable[[GroupId], None]
    """Remembers a group, before anybody waits for it."""
    accepted: float
    """When the attempt was accepted, by the clock of the lease."""
    kill_after: float = KILL_AFTER_S
    cell: Cell | None = None
    """What the steps are shut in, if anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRun:
    """How a step went; `stopped` when it was made to end, `problem` when it never began."""

    result: StepResult
    stopped: StopReason | None = None
    problem: str = ""
    memory: int = 0
    """The limit for whose sake a process of it was killed; 0 if none was."""


def environment(
    offer: Offer,
    folders: Folders,
    *,
    passed: Mapping[str, str],
    devices: Mapping[str, str],
    path: str,
    secrets: Mapping[str, str],
) -> dict[str, str]:
    """Build the whole environment of a job; nothing of the agent's own is in it."""
    spec = offer.spec
    return {
        **passed,
        "PATH": path,
        "HOME": str(folders.home),
        "TMPDIR": str(folders.tmp),
        "CI": "true",
        **spec.env,
        **{name: secrets[name] for name in spec.secrets},
        "FORGEYARD": "true",
        "FORGEYARD_RUN_ID": offer.run_id,
        "FORGEYARD_RUN_NAME": offer.run_name,
        "FORGEYARD_JOB_ID": offer.job_id,
        "FORGEYARD_JOB_NAME": spec.name,
        "FORGEYARD_ATTEMPT": str(offer.attempt_number),
        "FORGEYARD_WORKSPACE": str(folders.workspace),
        **_commit(offer),
        **({"FORGEYARD_NOTICE": str(folders.notice)} if spec.checkpoint else {}),
        **devices,
        MARK: offer.lease_id,
    }


def _commit(offer: Offer) -> dict[str, str]:
    """Tell a job which commit it works on, if it is one."""
    if offer.git is None:
        return {}
    return {
        "FORGEYARD_REPOSITORY": offer.git.repository,
        "FORGEYARD_REF": offer.git.ref,
        "FORGEYARD_COMMIT": offer.git.commit,
    }


async def run_step(step: Step, bench: Bench, *, until: float) -> StepRun:
    """Run a step to its end, or to the end of the job's time at `until`.

    Raises:
        Interrupted: before anything was started.
    """
    begun = bench.held.clock()
    began = Millis(round((begun - bench.accepted) * 1000))
    listening, speaking = os.pipe()
    try:
        group = _start(step, bench, output=speaking, until=until)
    except (OSError, ValueError) as error:
        os.close(listening)
        return StepRun(
            result=StepResult(name=step.name, exit_code=None, began=began),
            problem=f"step {step.name!r} could not be started: {error}",
        )
    except BaseException:
        os.close(listening)
        raise
    finally:
        os.close(speaking)
    was_killed = _no if bench.cell is None else bench.cell.watch_memory()
    end, stopped = await _attend(group, step, bench, until=until, listening=listening)
    wall = Millis(round((bench.held.clock() - begun) * 1000))
    is_ours = stopped is None and bench.cell is not None and not bench.cell.was_reached
    return StepRun(
        result=StepResult(
            name=step.name, exit_code=None if is_ours else end.code, wall=wall, began=began
        ),
        stopped=stopped,
        problem=f"step {step.name!r} could not be shut in" if is_ours else "",
        memory=bench.cell.memory if bench.cell is not None and was_killed() else 0,
    )


def _no() -> bool:
    """Nobody kills for want of memory where nobody limits it."""
    return False


def _start(step: Step, bench: Bench, *, output: int, until: float) -> ProcessGroup:
    """Start the script unless the lease has lapsed; nothing comes between question and start."""
    command = Command(
        argv=(*SHELLS[step.shell], step.run), cwd=bench.folders.workspace, env=bench.env
    )
    if bench.cell is not None:
        command = bench.cell.around(command)
        # Else nobody but the agent could open what /dev/stdout leads to.
        bench.cell.hand_over(output)
    bench.held.check(until=until)
    return start(command, output=output)


async def _attend(
    group: ProcessGroup, step: Step, bench: Bench, *, until: float, listening: int
) -> tuple[Exit, StopReason | None]:
    """Stay with a group until it, and everything it started, has ended and was heard out."""
    ear = _Ear(step.name, bench.logs)
    with bench.sampler.watching(group.id.pid, bench.meter):
        hearing = asyncio.ensure_future(ear.listen(listening))
        try:
            bench.started(group.id)
            stopped = await _until_end(group, bench, until=until)
        finally:
            end = await group.reap()
            bench.meter.ended(end)
            await asyncio.to_thread(kill_marked, f"{MARK}={bench.held.lease_id}")
            await ear.hear_out(hearing)
    await bench.logs.end_step()
    return end, stopped


async def _until_end(group: ProcessGroup, bench: Bench, *, until: float) -> StopReason | None:
    held = bench.held
    exited = asyncio.ensure_future(group.wait())
    try:
        while not exited.done():
            reason = held.stop_reason(until=until)
            if reason is not None:
                if not reason.is_fenced:
                    await group.terminate(
                        kill_after=bench.kill_after, give_up=lambda: held.fenced() is not None
                    )
                return reason
            await held.pause_for(exited, until=until)
        return None
    finally:
        exited.cancel()


class _Ear:
    """Reads a pipe into the log until nobody speaks any more."""

    def __init__(self, step: str, logs: LogStream) -> None:
        self._step = step
        self._logs = logs
        self._silent_since: float | None = None

    async def listen(self, descriptor: int) -> None:
        """Read to the end; while the log has no room, whoever speaks has to wait."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=PIECE)
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
        )
        try:
            while True:
                self._silent_since = loop.time()
                data = await reader.read(PIECE)
                self._silent_since = None
                if not data:
                    return
                await self._logs.write(self._step, data)
        finally:
            transport.close()

    async def hear_out(self, hearing: "asyncio.Future[None]") -> None:
        """Wait for the end, but not for a stranger who only keeps the pipe open."""
        loop = asyncio.get_running_loop()
        while not hearing.done():
            await asyncio.wait((hearing,), timeout=SILENT_S / 10)
            if self._silent_since is not None and loop.time() - self._silent_since >= SILENT_S:
                hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)
