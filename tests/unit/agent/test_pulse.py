"""Which changes of a host's size are worth telling."""

from dataclasses import replace

import pytest

from forgeyard.agent.pulse import is_significant
from forgeyard.model.units import GIB, Bytes, MilliCpu
from tests.builders import some_resources

HOST = some_resources(cpu=4_000, memory=8 * GIB, disk=100 * GIB, slots=4)


@pytest.mark.requirement("ELG-028")
@pytest.mark.parametrize(
    ("disk", "significant"),
    [(100 * GIB, False), (95 * GIB, False), (94 * GIB, True), (106 * GIB, True), (0, True)],
)
def test_a_disk_that_is_a_little_fuller_is_no_news(disk: int, significant: bool) -> None:
    assert is_significant(HOST, replace(HOST, disk=Bytes(disk))) is significant


def test_any_other_change_is_and_a_disk_of_which_nothing_was_known_too() -> None:
    assert is_significant(HOST, replace(HOST, cpu=MilliCpu(3_999)))
    assert is_significant(replace(HOST, disk=Bytes(0)), HOST)
