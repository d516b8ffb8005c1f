"""What the kernel says about sizes, limits and pressure, read without trust."""

from pathlib import Path

import pytest

from forgeyard.agent import host
from forgeyard.agent.host import Amount, Load
from forgeyard.model.runner import ResourcePressure


@pytest.mark.parametrize(
    ("text", "milli"),
    [
        ("150000 100000\n", 1500),
        ("50000 100000", 500),
        ("1 100000", 1),
        ("max 100000", None),
        ("-1 100000", None),
        ("", None),
        ("100000 0", None),
        ("nonsense", None),
    ],
)
def test_a_cpu_limit_is_a_share_of_its_period(text: str, milli: int | None) -> None:
    assert host.parse_cpu_max(text) == milli


@pytest.mark.parametrize(
    ("text", "limit"),
    [("1048576\n", 1048576), ("max\n", None), ("9223372036854771712\n", None), ("", None)],
)
def test_a_memory_limit_that_limits_nothing_is_none(text: str, limit: int | None) -> None:
    assert host.parse_limit(text) == limit


def test_meminfo_is_read_in_bytes() -> None:
    text = "MemTotal:       16000 kB\nMemAvailable:    8000 kB\nHugePages_Total:       3\nodd\n"
    assert host.parse_meminfo(text) == {
        "MemTotal": 16_384_000,
        "MemAvailable": 8_192_000,
        "HugePages_Total": 3,
    }


def test_the_control_group_of_each_version_is_found() -> None:
    text = "5:cpu,cpuacct:/jobs\n3:memory:/m\n0::/user.slice/x\n"
    assert host.parse_cgroup(text, "") == "/user.slice/x"
    assert host.parse_cgroup(text, "cpu") == "/jobs"
    assert host.parse_cgroup(text, "memory") == "/m"
    assert host.parse_cgroup(text, "io") is None
    assert host.parse_cgroup("0::/../../other\n", "") is None


def test_the_share_of_time_in_which_all_work_stalls_is_read() -> None:
    text = (
        "some avg10=90.00 avg60=1.00 avg300=0.00 total=1\n"
        "full avg10=45.50 avg60=1.00 avg300=0.00 total=1\n"
    )
    assert host.parse_stall(text) == 45.5
    assert host.parse_stall("") == 0.0
    assert host.parse_stall("full avg10=nonsense\n") == 0.0


def a_load(*, memory: int = 50, disk: int = 50, stall: float = 0.0, is_hot: bool = False) -> Load:
    """Describe a host by what is left of a hundred units."""
    return Load(
        memory=Amount(total=100, left=memory),
        disk=Amount(total=100, left=disk),
        disk_headroom=10,
        memory_stall=stall,
        is_hot=is_hot,
    )


def test_pressure_names_the_worst_shortage() -> None:
    assert a_load().pressure() is ResourcePressure.NORMAL
    assert a_load(memory=4, disk=1).pressure() is ResourcePressure.MEMORY
    assert a_load(stall=60.0).pressure() is ResourcePressure.MEMORY
    assert a_load(disk=4).pressure() is ResourcePressure.DISK
    assert a_load(disk=9).pressure() is ResourcePressure.DISK
    assert a_load(is_hot=True).pressure() is ResourcePressure.THERMAL
    assert a_load(disk=9, is_hot=True).pressure() is ResourcePressure.DISK


def test_a_size_that_could_not_be_read_is_no_shortage() -> None:
    assert not Amount(total=0, left=0).is_scarce


@pytest.mark.requirement("RUN-014")
def test_a_host_is_hot_close_to_a_limit_that_its_kernel_names(tmp_path: Path) -> None:
    assert not host.is_hot(tmp_path / "absent")
    zone = tmp_path / "thermal_zone0"
    zone.mkdir()
    (zone / "temp").write_text("94999\n")
    assert not host.is_hot(tmp_path)
    for number, kind, limit in ((0, "passive", 60_000), (1, "critical", 100_000), (2, "hot", 0)):
        (zone / f"trip_point_{number}_type").write_text(f"{kind}\n")
        (zone / f"trip_point_{number}_temp").write_text(f"{limit}\n")
    assert not host.is_hot(tmp_path)
    (zone / "temp").write_text("95000\n")
    assert host.is_hot(tmp_path)
    (zone / "temp").write_text("unreadable")
    assert not host.is_hot(tmp_path)
