"""Every provider under the same tests: each on a bench that can do to it what its back end can."""

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from forgeyard import clock, proctable
from forgeyard.fleet.ports import (
    TAG_INSTALLATION,
    TAG_INSTANCE,
    FleetProvider,
    Machine,
    ProvisionRequest,
)
from forgeyard.model.capacity import MachineState
from providers.local import LocalProvider, Starter
from tests.fleet.fake import FakeProvider, Knobs
from tests.fleet.requests import THEIRS, a_request, sought

GONE = (None, MachineState.GONE)
STANDIN = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(0)); time.sleep(600)"
"""What stands in for an agent: it starts fast, and ends when asked to."""


def now_ms() -> int:
    """Tell the time as providers want it."""
    return int(clock.now().timestamp() * 1000)


class Bench(Protocol):
    """A provider, and the world that it acts on."""

    provider: FleetProvider

    def request(self, instance: str = "cin_1", **changed: object) -> ProvisionRequest:
        """Wish for something that this provider can make."""
        ...

    def until(self, holds: Callable[[], bool]) -> None:
        """Let time pass until something holds."""
        ...

    def existing(self) -> list[str]:
        """Name everything that exists, by the back end's own word."""
        ...

    def foreign(self) -> str:
        """Put a machine of another installation there, tagged with our instance's id."""
        ...


class Faulty(Bench, Protocol):
    """A bench whose back end is far away: calls are lost, refused and late."""

    def lose_reply(self) -> None:
        """Let the next create happen, and its answer be lost."""
        ...

    def throttle(self) -> None:
        """Let the next create be refused, for now."""
        ...

    def exhaust(self, offering: str) -> None:
        """Let nothing be left of an offering."""
        ...

    def lose_page(self) -> None:
        """Let the next listing miss a page."""
        ...


def state_of(bench: Bench, request: ProvisionRequest) -> MachineState | None:
    """Look for the machine of a request, not knowing its name."""
    found = bench.provider.inspect(sought(request))
    return None if found is None else found.state


def running(bench: Bench, request: ProvisionRequest) -> Machine:
    """Make a machine and wait until it is seen running."""
    made = bench.provider.provision(request)
    bench.until(lambda: state_of(bench, request) is MachineState.RUNNING)
    return made


class FakeBench:
    """The fake: time is virtual, and everything is seen late."""

    def __init__(self) -> None:
        self.time = 1_700_000_000_000
        self.provider = FakeProvider(lambda: self.time, knobs=Knobs(page_size=2))

    def request(self, instance: str = "cin_1", **changed: object) -> ProvisionRequest:
        """Wish for a machine."""
        return a_request(instance, **changed)

    def until(self, holds: Callable[[], bool]) -> None:
        """Let up to two minutes pass."""
        for _ in range(120):
            if holds():
                return
            self.time += 1_000
        raise AssertionError("it never came true")

    def existing(self) -> list[str]:
        """Ask the fake."""
        return self.provider.existing()

    def foreign(self) -> str:
        """Plant a look-alike."""
        tags = replace(a_request().owner, installation=THEIRS).tags(operation_key="x", image="")
        self.provider.plant("foreign", tags)
        return "foreign"

    def lose_reply(self) -> None:
        """Turn the knob."""
        self.provider.knobs.creates.append("lost")

    def throttle(self) -> None:
        """Turn the knob."""
        self.provider.knobs.creates.append("throttled")

    def exhaust(self, offering: str) -> None:
        """Turn the knob."""
        self.provider.knobs.offerings[offering] = "ice"

    def lose_page(self) -> None:
        """Turn the knob."""
        self.provider.knobs.lost_pages = 1


class LocalBench:
    """Real processes of this host."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.starter = Starter(
            command=(sys.executable, "-c", STANDIN, "agent"),
            environment={"PATH": os.defpath},
            grace_ms=20_000,
        )
        self.provider = self.another()

    def another(self) -> LocalProvider:
        """Make the provider of another worker on this host."""
        return LocalProvider(self.folder, self.starter, now=now_ms)

    def request(self, instance: str = "cin_1", **changed: object) -> ProvisionRequest:
        """Wish for an agent."""
        return a_request(instance, **changed)

    def until(self, holds: Callable[[], bool]) -> None:
        """Ask again and again."""
        deadline = time.monotonic() + 30
        while not holds():
            assert time.monotonic() < deadline, "it never came true"
            time.sleep(0.02)

    def existing(self) -> list[str]:
        """Look at the process table, and at nothing that the provider wrote."""
        return [str(process.pid) for process in self.processes()]

    def processes(self) -> list[proctable.Process]:
        """List the living agents below this bench's directory."""
        return [
            process
            for folder in self.folder.iterdir()
            for process in proctable.carriers(f"FORGEYARD_AGENT__WORK_DIR={folder}/work")
        ]

    def foreign(self) -> str:
        """Let another installation use the same directory."""
        owner = replace(a_request().owner, installation=THEIRS)
        assert owner.tags(operation_key="", image="")[TAG_INSTANCE] == "cin_1"
        assert owner.tags(operation_key="", image="")[TAG_INSTALLATION] == THEIRS
        self.another().provision(a_request(owner=owner, operation_key="op-theirs"))
        (process,) = self.processes()
        return str(process.pid)

    def close(self) -> None:
        """Kill whatever is left."""
        for process in self.processes():
            os.killpg(process.pid, signal.SIGKILL)
