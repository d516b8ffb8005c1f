"""Suggestions come from what was used, with a margin, and change nothing."""

from dataclasses import replace

import pytest

from forgeyard.model.policy import SuggestionPolicy
from forgeyard.model.units import GIB, MIB, Bytes, MilliCpu, Resources
from forgeyard.scheduler.estimate import Estimate, estimate
from forgeyard.scheduler.suggest import Measured, suggest

POLICY = SuggestionPolicy()
ASKED = Resources(cpu=MilliCpu(4_000), memory=Bytes(8 * GIB))


def used(memory: int | None, cpu_ms: int | None = 500, wall_ms: int | None = 1_000) -> Measured:
    return Measured(wall_ms=wall_ms, cpu_ms=cpu_ms, peak_memory_bytes=memory)


@pytest.mark.requirement("POL-001", "POL-002", "RES-008")
def test_a_request_is_suggested_above_what_nearly_all_attempts_used() -> None:
    attempts = [used(memory * MIB) for memory in (700, 710, 720, 730, 5_000)] * 20
    found = suggest(ASKED, [*attempts[:95], *[used(700 * MIB)] * 5], POLICY)
    assert found.memory == 6_144 * MIB
    usual = suggest(ASKED, [used(700 * MIB)] * 96 + [used(5_000 * MIB)] * 4, POLICY)
    assert usual.memory == 896 * MIB
    assert usual.cpu == 600
    assert (usual.requested_cpu, usual.requested_memory) == (ASKED.cpu, ASKED.memory)
    assert usual.text == (
        "suggested from 100 recent attempts: 0.6 cores (asks for 4 cores),"
        " 896 MiB of memory (asks for 8 GiB); nothing is changed"
    )


@pytest.mark.requirement("POL-001")
def test_nothing_below_what_the_policy_wants_is_suggested() -> None:
    policy = replace(POLICY, least_cpu_milli=250, least_memory_mib=512)
    found = suggest(ASKED, [used(MIB, cpu_ms=1)] * 5, policy)
    assert (found.cpu, found.memory) == (250, 512 * MIB)


def test_too_few_attempts_suggest_nothing() -> None:
    found = suggest(ASKED, [used(GIB)] * 2, POLICY)
    assert (found.cpu, found.memory) == (None, None)
    assert found.text == "nothing to suggest yet: 2 of 3 attempts that succeeded are known"


def test_what_was_not_measured_is_left_out() -> None:
    attempts = [used(None), used(GIB, wall_ms=0), used(GIB, cpu_ms=None), used(GIB)]
    found = suggest(ASKED, attempts, POLICY)
    assert (found.cpu, found.memory) == (None, 1_280 * MIB)
    only = suggest(ASKED, [used(None)] * 3, POLICY)
    assert (only.cpu, only.memory) == (600, None)


@pytest.mark.requirement("POL-003", "POL-004")
def test_an_estimate_is_the_wait_in_the_middle_and_says_on_how_many_it_rests() -> None:
    assert estimate([9, 1, 5], waited=2) == Estimate(wait_ms=5, starts_in_ms=3, jobs=3)
    assert estimate([1], waited=4) == Estimate(wait_ms=1, starts_in_ms=-3, jobs=1)
    assert estimate([], waited=4) is None
