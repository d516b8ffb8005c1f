"""The providers that the contract is tried on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.contract.benches import Bench, FakeBench, Faulty, LocalBench


@pytest.fixture(params=["fake", "local"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Set up each provider in turn."""
    if request.param == "fake":
        yield FakeBench()
        return
    made = LocalBench(tmp_path / "machines")
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(params=["fake"])
def faulty(request: pytest.FixtureRequest) -> Faulty:
    """Set up each provider that is reached by a network."""
    return FakeBench()
