"""A job's control group is bounded, watched and emptied, in either version of the kernel's."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forgeyard.agent.cgroup import ControlGroups, find
from forgeyard.errors import InvalidRequest
from forgeyard.model.ids import LeaseId
from tests.integration.agent.prison import need_control_groups

pytestmark = pytest.mark.integration
NAME = f"forgeyard-group-{os.getpid()}"
LEASE = LeaseId("lea1")


@contextmanager
def real_groups() -> Iterator[ControlGroups]:
    """Make a control group of this system's, or skip the test."""
    need_control_groups()
    groups = find(NAME)
    assert groups is not None
    try:
        yield groups
    finally:
        for base in groups.bases:
            base.rmdir()


def test_whatever_is_in_a_group_ends_when_the_group_is_removed() -> None:
    with real_groups() as groups:
        group = groups.of(LEASE)
        group.make(memory=0, processes=100)
        joins = "; ".join(f"echo 0 > {door}" for door in group.doors)
        with subprocess.Popen(("sh", "-c", f"{joins}; setsid env -i sleep 600 & wait")) as leader:
            while len(_members(group.doors[0])) < 2:
                assert leader.poll() is None
            assert group.remove()
            assert leader.wait(30) == -9
        assert not any(folder.exists() for folder in group.folders)
        assert group.remove(), "there is nothing left to do"


def _members(door: Path) -> list[str]:
    return door.read_text().split()


def test_in_version_2_a_group_lies_under_one_that_hands_its_controllers_down(
    tmp_path: Path,
) -> None:
    """The kernel's files are laid out by hand: what is shown is what is written where."""
    (tmp_path / "cgroup.controllers").touch()
    (tmp_path / "jobs").mkdir()
    groups = find("jobs", tmp_path)
    assert groups is not None
    assert groups.bases == (tmp_path / "jobs",)
    assert (tmp_path / "jobs/cgroup.subtree_control").read_text() == "+memory +pids"
    with pytest.raises(InvalidRequest) as caught:
        find("jobs/../..", tmp_path)
    assert caught.value.field == "agent.cgroup"


def test_no_group_is_looked_for_where_none_is_configured() -> None:
    assert find("") is None
