"""S21: what is installed is what somebody has looked at: every package by version and hash."""

import importlib.metadata as metadata
import re
import tomllib
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text()
ENTRY = re.compile(r"^([a-z0-9][a-z0-9._-]*)==(\S+?)(?: ; (.+?))? \\\n((?:    --hash.*\n)+)", re.M)
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}(?: \\)?")


def locked() -> dict[str, str]:
    """Read the versions that the lock names for this interpreter and system."""
    return {
        canonicalize_name(found[1]): found[2]
        for found in ENTRY.finditer(LOCK)
        if found[3] is None or Marker(found[3]).evaluate()
    }


def test_every_package_of_the_lock_has_a_version_and_hashes_and_nothing_else_stands_in_it() -> None:
    """S21: no addresses, no indexes, nothing without a hash, no digest but SHA-256."""
    rest = ENTRY.sub("", LOCK)
    assert [line for line in rest.splitlines() if line and not line.lstrip().startswith("#")] == []
    assert len(locked()) > 50
    for found in ENTRY.finditer(LOCK):
        lines = found[4].splitlines()
        assert all(HASH.fullmatch(line) for line in lines), found[1]
    assert "://" not in LOCK


def test_every_package_that_the_project_asks_for_is_locked_in_the_range_it_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    wanted = [Requirement(one) for many in (project["dependencies"], *extras) for one in many]
    known = locked()
    for one in wanted:
        if one.name != "forgeyard":
            assert one.specifier.contains(known[canonicalize_name(one.name)]), one
    assert len(wanted) > 30


def test_what_is_installed_here_is_what_the_lock_says() -> None:
    """S21: `make` installs with --require-hashes; nothing else has crept in of another version."""
    here = {
        canonicalize_name(one.name): one.version for one in metadata.distributions() if one.name
    }
    assert {name: here.get(name) for name in locked()} == locked()
    assert set(here) - set(locked()) <= {"forgeyard", "pip", "setuptools"}


def test_the_build_demands_the_hashes() -> None:
    makefile = (ROOT / "Makefile").read_text()
    installs = [line for line in makefile.splitlines() if "-r requirements.lock" in line]
    assert len(installs) >= 2
    assert all("--require-hashes" in line for line in installs)
