"""Machines that are agents on this host: each one a process, with a directory of its own.

An agent outlives the process that started it, and another one on the same host finds it again by
its record, or by its environment if the record was not finished. Needs a /proc.
"""

import fcntl
import json
import os
import signal
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final

from forgeyard import proctable
from forgeyard.beneath import remove_tree
from forgeyard.errors import Corrupt, InvalidSpec, NotFound, Unavailable
from forgeyard.fleet.ports import (
    TAG_INSTALLATION,
    TAG_INSTANCE,
    Check,
    CheckLevel,
    Interruption,
    Listing,
    Machine,
    ProvisionRequest,
    Sought,
)
from forgeyard.model.fleet import IsolationClass, Market, Offering
from forgeyard.proctable import Process
from providers.records import Record, Shelf, digest_of

START_WITHIN_MS: Final = 10_000
"""A record without a process this old is that of a machine that never came up."""
REMEMBERED_MS: Final = 3_600_000
"""How long a machine that ended is still told of."""
LOCK_EVERY_S: Final = 0.02
LOCK_TRIES: Final = 750
"""Looks at a lock that somebody else has: some fifteen seconds."""
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
"""An agent lets its jobs finish, then ends them, then is ended: one grace apart."""
SETTINGS: Final = frozenset(
    {
        *("pool", "reliability", "sandbox", "memory_limit_percent", "max_processes"),
        *("headroom_cpu", "headroom_memory", "headroom_disk", "local_cache", "drain_timeout_s"),
        "give_up_s",
    }
)
"""What an offering may say of the agent's configuration."""
Now = Callable[[], int]
"""Epoch milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    """How an agent is started on this host."""

    command: tuple[str, ...]
    """Up to and with `agent`; the first word is a path."""
    environment: Mapping[str, str]
    """All of it, but for what a machine's class and offering add."""
    token_file: Path | None = None
    """With what an agent proves itself that was given no token of its own."""
    grace_ms: int = 30_000


class LocalProvider:
    """Agents on this host, recorded below one directory."""

    def __init__(self, root: Path, starter: Starter, *, now: Now) -> None:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._root = root.resolve()
        self._starter = starter
        self._now = now
        self._shelf = Shelf(self._root)
        self._children: set[int] = set()

    @property
    def kind(self) -> str:
        """Name the sort of infrastructure."""
        return "local"

    def provision(self, request: ProvisionRequest) -> Machine:
        """Start an agent, or find the one that this very request has started.

        Raises:
            InvalidSpec: no process can be that, or the key stands for another request.
            NotFound: this request had its machine, and it is gone.
            Unavailable: it cannot be started now.
        """
        _demand_process(request)
        with self._locked():
            found = self._shelf.read(request.operation_key) or self._written(request)
            if found.digest != digest_of(request):
                raise InvalidSpec(
                    "this operation key was used for another request",
                    field="operation_key",
                    value=request.operation_key,
                )
            found = self._looked_at(found)
            if found.ended_at:
                raise NotFound(f"this machine is gone: {found.detail}", field="operation_key")
            if not found.pid:
                found = self._started(found, request)
            return _machine(found)

    def inspect(self, sought: Sought) -> Machine | None:
        """Find a machine by name, else by operation key, if its tags are the owner's."""
        with self._locked():
            found = self._find(sought)
            return None if found is None else _machine(self._looked_at(found))

    def list_machines(self, installation: str) -> Listing:
        """List the machines of an installation, with those that ended of late."""
        machines: list[Machine] = []
        complete = True
        with self._locked():
            for key in self._shelf.known():
                try:
                    record = self._shelf.read(key)
                except Corrupt:
                    complete = False
                    continue
                if record is None or record.tags.get(TAG_INSTALLATION) != installation:
                    continue
                record = self._looked_at(record)
                if self._is_forgotten(record):
                    remove_tree(self._shelf.folder(key))
                else:
                    machines.append(_machine(record))
        return Listing(machines=tuple(machines), complete=complete)

    def terminate(self, sought: Sought) -> None:
        """Ask an agent to end; whoever looks at it after its grace insists."""
        with self._locked():
            found = self._find(sought)
            if found is None or found.ended_at or found.stopping_at:
                return
            stopping = replace(found, stopping_at=self._now())
            self._shelf.write(stopping)
            self._looked_at(stopping)

    def interruptions(self) -> tuple[Interruption, ...]:
        """Tell which machines an operator has announced the end of, as long as they run.

        It rehearses what a cloud does with machines that it wants back.
        """
        with self._locked():
            ends = {key: self._shelf.announced_end(key) for key in self._shelf.known()}
        return tuple(Interruption(ref=key, at=at) for key, at in ends.items() if at)

    def acknowledge(self, receipts: tuple[str, ...]) -> None:
        """Do nothing: there are no receipts."""

    def check(self, offerings: tuple[Offering, ...]) -> tuple[Check, ...]:
        """Look whether processes can be seen, the command exists and every record is readable."""
        program = self._starter.command[0]
        unreadable = [key for key in self._shelf.known() if not self._is_readable(key)]
        settings = sorted({name for one in offerings for name in one.settings} - SETTINGS)
        findings = (
            ("processes", not proctable.boot_id(), "there is no /proc on this system"),
            ("agent", not os.access(program, os.X_OK), f"{program} cannot be run"),
            ("records", bool(unreadable), f"remove by hand below {self._root}: {unreadable}"),
            ("settings", bool(settings), f"not of a local agent: {settings}"),
        )
        return tuple(
            Check(name=name, level=CheckLevel.FAILED, text=text)
            if is_bad
            else Check(name=name, level=CheckLevel.OK, text="")
            for name, is_bad, text in findings
        )

    # One machine

    def _find(self, sought: Sought) -> Record | None:
        found = self._shelf.read(sought.ref or sought.operation_key)
        if found is None:
            return None
        owner = sought.owner
        tags = {TAG_INSTALLATION: owner.installation, TAG_INSTANCE: owner.instance_id}
        return found if tags.items() <= found.tags.items() else None

    def _written(self, request: ProvisionRequest) -> Record:
        record = Record(
            key=request.operation_key,
            digest=digest_of(request),
            tags=request.owner.tags(
                operation_key=request.operation_key, image=request.capacity.image
            ),
            image=request.capacity.image,
            machine=request.offering.machine,
            region=request.offering.region,
            zone=request.offering.zone,
            created_at=self._now(),
        )
        self._shelf.write(record)
        return record

    def _started(self, record: Record, request: ProvisionRequest) -> Record:
        folder = self._shelf.folder(record.key)
        arguments = [*self._starter.command, *self._arguments(request, folder)]
        environment = {**self._starter.environment, **_environment(request, folder)}
        pid = _spawn(arguments, environment, log=folder / "agent.log")
        self._children.add(pid)
        return self._known(record, proctable.find(pid))

    def _arguments(self, request: ProvisionRequest, folder: Path) -> tuple[str, ...]:
        bootstrap = request.bootstrap
        arguments = ("--join", bootstrap.url, "--name", request.runner_name)
        if bootstrap.token:
            token = folder / "enrolment-token"
            _write_private(token, bootstrap.token)
            return (*arguments, "--enrol-token-file", str(token), "--ca-pin", bootstrap.pin)
        if self._starter.token_file is not None:
            return (*arguments, "--token-file", str(self._starter.token_file))
        return arguments

    def _known(self, record: Record, process: Process | None) -> Record:
        if process is None:
            return record
        known = replace(record, pid=process.pid, started=process.started, boot=proctable.boot_id())
        self._shelf.write(known)
        return known

    def _looked_at(self, record: Record) -> Record:
        """See how a machine is now: find it, insist on its end, or clear away what it left."""
        if record.ended_at:
            return record
        process = self._process(record)
        if process is None:
            may_start = not (record.pid or record.stopping_at)
            if may_start and self._now() < record.created_at + START_WITHIN_MS:
                return record
            return self._buried(record)
        if not record.pid:
            record = self._known(record, process)
        if self._is_due(record):
            # As a cloud does it: without asking, and whatever runs there.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            return record
        return self._insisted(record, process) if record.stopping_at else record

    def _process(self, record: Record) -> Process | None:
        if record.pid:
            found = proctable.find(record.pid) if record.boot == proctable.boot_id() else None
            is_it = found is not None and found.is_alive and found.started == record.started
            return found if is_it else None
        mark = f"{WORK_DIR}={_work_dir(self._shelf.folder(record.key))}"
        return next((one for one in proctable.carriers(mark) if one.pid == one.group), None)

    def _insisted(self, record: Record, process: Process) -> Record:
        passed = max(0, self._now() - record.stopping_at) // max(1, self._starter.grace_ms)
        due = min(passed + 1, len(SIGNALS))
        if record.signals >= due:
            return record
        number = SIGNALS[due - 1]
        with suppress(ProcessLookupError):
            if number is signal.SIGKILL:
                os.killpg(process.pid, number)
            else:
                os.kill(process.pid, number)
        insisted = replace(record, signals=due)
        self._shelf.write(insisted)
        return insisted

    def _buried(self, record: Record) -> Record:
        """End the jobs that a killed agent left, remove all but its log, and write it down."""
        folder = self._shelf.folder(record.key)
        for process in proctable.dwellers(_work_dir(folder)):
            with suppress(ProcessLookupError):
                os.killpg(process.group, signal.SIGKILL)
        stays = "" if remove_tree(_work_dir(folder)) else "; its work directory stays"
        (folder / "enrolment-token").unlink(missing_ok=True)
        what = "its process ended" if record.pid else "it was never started"
        what = "it was taken away" if self._is_due(record) else what
        detail = f"{what}{stays}: {_last_line(folder / 'agent.log')}".removesuffix(": ")
        buried = replace(record, ended_at=self._now(), detail=detail)
        self._shelf.write(buried)
        return buried

    def _is_due(self, record: Record) -> bool:
        return 0 < self._shelf.announced_end(record.key) <= self._now()

    def _is_forgotten(self, record: Record) -> bool:
        return bool(record.ended_at) and self._now() > record.ended_at + REMEMBERED_MS

    def _is_readable(self, key: str) -> bool:
        try:
            self._shelf.read(key)
        except Corrupt:
            return False
        return True

    @contextmanager
    def _locked(self) -> Generator[None]:
        """Be the only one on this host to look or act, in whatever thread or process.

        A child that was born but does not run its program yet still holds the lock: whoever comes
        after a crash finds the agent in the process table.
        """
        try:
            with (self._root / "lock").open("wb") as file:
                _wait_for(file)
                self._reap()
                yield
        except OSError as error:
            raise Unavailable(f"local machines: {error}") from error

    def _reap(self) -> None:
        for pid in tuple(self._children):
            with suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            self._children.discard(pid)


def living(root: Path) -> tuple[Process, ...]:
    """List the agents that still run below a directory, for who ends everything on a host."""
    if not root.is_dir():
        return ()
    shelf = Shelf(root.resolve())
    found: list[Process] = []
    for key in shelf.known():
        with suppress(Corrupt):
            record = shelf.read(key)
            process = proctable.find(record.pid) if record is not None and record.pid else None
            if record is not None and process is not None and process.is_alive:
                is_it = process.started == record.started and record.boot == proctable.boot_id()
                found += [process] if is_it else []
    return tuple(found)


WORK_DIR: Final = "FORGEYARD_AGENT__WORK_DIR"
"""The variable by which an agent is known in the process table; its jobs do not get it."""


def _demand_process(request: ProvisionRequest) -> None:
    """Refuse what a process on this host cannot be."""
    if request.capacity.isolation is not IsolationClass.PROCESS:
        raise InvalidSpec(
            "a local machine is a process, and nothing stands between it and its neighbours",
            field="capacity.isolation",
            value=request.capacity.isolation,
            allowed=IsolationClass.PROCESS,
        )
    for name in request.offering.settings:
        if name not in SETTINGS:
            raise InvalidSpec(
                "a local agent has no such setting",
                field=f"offerings.{request.offering.name}.settings",
                value=name,
                allowed=", ".join(sorted(SETTINGS)),
            )


def _environment(request: ProvisionRequest, folder: Path) -> dict[str, str]:
    """Say by the agent's configuration what its class promises."""
    capacity, offering, has = request.capacity, request.offering, request.capacity.resources
    said: dict[str, object] = {
        "trust": capacity.trust.value,
        "jobs": has.slots,
        "cpu": f"{has.cpu}m" if has.cpu else "",
        "memory": has.memory,
        "disk": has.disk,
        "region": offering.region,
        "site": offering.zone,
        "cost_micros_per_hour": offering.cost,
        "reliability": "preemptible" if offering.market is Market.PREEMPTIBLE else "",
        "labels": json.dumps(dict(capacity.labels)) if capacity.labels else "",
        **offering.settings,
    }
    return {
        **{f"FORGEYARD_AGENT__{name.upper()}": str(value) for name, value in said.items() if value},
        WORK_DIR: str(_work_dir(folder)),
    }


def _machine(record: Record) -> Machine:
    return Machine(
        ref=record.key,
        state=record.state,
        tags=dict(record.tags),
        image=record.image,
        machine=record.machine,
        region=record.region,
        zone=record.zone,
        launched_at=record.created_at,
        detail=record.detail,
    )


def _work_dir(folder: Path) -> Path:
    return folder / "work"


def _spawn(arguments: list[str], environment: Mapping[str, str], *, log: Path) -> int:
    """Start a program in a session of its own, with nothing of ours but a log file."""
    create = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    files = (
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), create, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    )
    return os.posix_spawn(
        arguments[0],
        arguments,
        environment,
        file_actions=files,
        setsid=True,
        setsigmask=(),
        setsigdef=(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE),
    )


def _write_private(file: Path, text: str) -> None:
    file.unlink(missing_ok=True)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
        stream.write(text)


def _last_line(log: Path) -> str:
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - 2_000))
            lines = stream.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1][:300] if lines else ""


def _wait_for(file: IO[bytes]) -> None:
    """Take the lock, but not for ever: a process that froze with it must not freeze the others."""
    for _ in range(LOCK_TRIES):
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOCK_EVERY_S)
    raise TimeoutError(f"another process has held {file.name} for too long")
