"""Every provider under the same tests: each on a bench that can do to it what its back end can."""

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import boto3

from forgeyard import clock, proctable
from forgeyard.fleet.ports import (
    TAG_INSTALLATION,
    TAG_INSTANCE,
    Bootstrap,
    FleetProvider,
    Machine,
    ProvisionRequest,
)
from forgeyard.model.capacity import MachineState
from providers.aws import AwsProvider
from providers.aws_sdk import AwsSettings
from providers.local import LocalProvider, Starter
from tests.fleet.ec2_proxy import Proxy
from tests.fleet.fake import FakeProvider, Knobs
from tests.fleet.requests import THEIRS, a_request, sought

PIN = f"sha256/{'A' * 43}="
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


def wait_until(holds: Callable[[], bool], *, within_s: float = 60.0) -> None:
    """Ask again and again, by the clock on the wall."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


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
        wait_until(holds)

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


class AwsBench:
    """moto behind the proxy: tokens count, and machines are seen late."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        proxy.hidden_s = 0.2
        self.provider = AwsProvider(settings_for(proxy.url))
        self.direct: Any = client(proxy.upstream, "ec2")
        self.ami = self.direct.register_image(Name="agents")["ImageId"]

    def request(self, instance: str = "cin_1", **changed: object) -> ProvisionRequest:
        """Wish for an instance that can be had."""
        token = Bootstrap(url="https://ci.example:8701", token=f"fye1.{instance}", pin=PIN)
        request = a_request(instance, **{"bootstrap": token, **changed})
        offering = request.offering
        if not offering.settings:
            offering = replace(
                offering, machine=offering.machine or "m5.large", settings={"ami": self.ami}
            )
        return replace(request, offering=offering)

    def until(self, holds: Callable[[], bool]) -> None:
        """Ask again and again."""
        wait_until(holds)

    def existing(self) -> list[str]:
        """Ask moto."""
        pages = self.direct.describe_instances()["Reservations"]
        instances = [one for reservation in pages for one in reservation["Instances"]]
        return [one["InstanceId"] for one in instances if one["State"]["Name"] != "terminated"]

    def foreign(self) -> str:
        """Make a look-alike."""
        owner = replace(a_request().owner, installation=THEIRS)
        tags = owner.tags(operation_key=a_request().operation_key, image="")
        return str(self.plant(tags))

    def plant(self, tags: dict[str, str]) -> object:
        """Make a machine that nobody here asked for."""
        listed = [{"Key": key, "Value": value} for key, value in tags.items()]
        made = self.direct.run_instances(
            ImageId=self.ami,
            InstanceType="m5.large",
            MinCount=1,
            MaxCount=1,
            TagSpecifications=[{"ResourceType": "instance", "Tags": listed}],
        )
        return made["Instances"][0]["InstanceId"]

    def lose_reply(self) -> None:
        """Close the connection before the answer."""
        self.proxy.lost.append("RunInstances")

    def throttle(self) -> None:
        """Refuse one create."""
        self.proxy.refused.append(("RunInstances", 503, "RequestLimitExceeded"))

    def exhaust(self, offering: str) -> None:
        """Run out of the type that the test takes."""
        self.proxy.exhausted.add("m5.large")

    def lose_page(self) -> None:
        """Fail at the second page."""
        self.proxy.refused.append(("DescribeInstances+", 500, "InternalError"))


def settings_for(url: str, **changed: object) -> AwsSettings:
    """Look at one region through the proxy, five machines at a time."""
    settings = AwsSettings(
        regions=("us-east-1",),
        endpoint_url=url,
        access_key="AKIAIOSFODNN7EXAMPLE",
        secret_key="x",
        page_size=5,
    )
    return replace(settings, **changed)


def client(port: int, service: str, region: str = "us-east-1") -> object:
    """Speak to moto as a test does: without our code."""
    return boto3.client(
        service,
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name=region,
        aws_access_key_id="x",
        aws_secret_access_key="x",
    )
