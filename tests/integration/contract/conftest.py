"""The providers that the contract is tried on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.ec2_proxy import Proxy, proxying
from tests.fleet.moto_server import moto, reset
from tests.integration.contract.benches import AwsBench, Bench, FakeBench, Faulty, LocalBench


@pytest.fixture(scope="package")
def moto_port() -> Iterator[int]:
    """Run moto once."""
    with moto() as port:
        yield port


@pytest.fixture
def proxy(moto_port: int) -> Iterator[Proxy]:
    """Stand before an empty moto."""
    reset(moto_port)
    with proxying(moto_port) as made:
        yield made


@pytest.fixture
def aws(proxy: Proxy) -> AwsBench:
    """Set up Amazon."""
    return AwsBench(proxy)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalBench]:
    """Set up this host, and leave no process behind."""
    made = LocalBench(tmp_path / "machines")
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def fake() -> FakeBench:
    """Set up the fake."""
    return FakeBench()


@pytest.fixture(params=["fake", "local", "aws"])
def bench(request: pytest.FixtureRequest) -> Bench:
    """Set up each provider in turn."""
    made: Bench = request.getfixturevalue(request.param)
    return made


@pytest.fixture(params=["fake", "aws"])
def faulty(request: pytest.FixtureRequest) -> Faulty:
    """Set up each provider that is reached by a network."""
    made: Faulty = request.getfixturevalue(request.param)
    return made
