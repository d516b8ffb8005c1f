"""A capacity class is named by what it promises, all of it and nothing else."""

from dataclasses import fields, replace

import pytest

from forgeyard.model.capability import Architecture, Platform, Toolchain, TrustClass
from forgeyard.model.equipment import Equipment, Gpu
from forgeyard.model.fleet import CapacityClass, IsolationClass
from tests.scheduling import amounts

PROMISE = CapacityClass(
    platform=Platform.LINUX,
    architecture=Architecture.X86_64,
    os_version="12",
    resources=amounts(cpu=4_000, memory_gib=16),
    toolchains=(Toolchain(name="python", version="3.12"),),
    labels={"disk": "fast", "zone": "a"},
    trust=TrustClass.TRUSTED_INTERNAL,
    image="sha256:one",
)
OTHERWISE = {
    "platform": Platform.MACOS,
    "architecture": Architecture.AARCH64,
    "os_version": "13",
    "resources": amounts(cpu=4_001, memory_gib=16),
    "toolchains": (Toolchain(name="python", version="3.13"),),
    "labels": {"disk": "slow", "zone": "a"},
    "equipment": Equipment(gpus=(Gpu(model="x"),)),
    "trust": TrustClass.UNTRUSTED_GENERAL,
    "isolation": IsolationClass.VM,
    "image": "sha256:two",
}


@pytest.mark.requirement("FLM-002", "FLM-003")
def test_equal_promises_are_one_class_and_any_other_promise_is_another() -> None:
    assert {one.name for one in fields(CapacityClass)} == set(OTHERWISE)
    again = replace(PROMISE, labels=dict(reversed(PROMISE.labels.items())))
    assert again.class_id == PROMISE.class_id
    named = {replace(PROMISE, **{name: value}).class_id for name, value in OTHERWISE.items()}
    assert len(named) == len(OTHERWISE)
    assert PROMISE.class_id not in named
