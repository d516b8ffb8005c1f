"""A cache's key changes with everything that its content depends on, and with nothing else."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgeyard.agent import cachekey
from forgeyard.agent.cachekey import cache_key, key_files
from forgeyard.errors import InvalidRequest, TooLarge
from forgeyard.model.job import CacheSpec

PIP = CacheSpec(name="pip", path=".cache/pip", key=("*.lock", "pyproject.toml"))
HERE = {"platform": "Linux", "architecture": "x86_64"}
FEW = st.sampled_from(["", "a", "b"]) | st.text(max_size=3)
"""So few that equal ones come up."""
FILES = st.dictionaries(FEW, FEW, max_size=3)
FACTS = st.tuples(FEW, FEW, FILES, FEW)


def key_of(facts: tuple[str, str, Mapping[str, str], str]) -> str:
    """Compute a key from name, path, files and architecture."""
    name, path, files, architecture = facts
    cache = replace(PIP, name=name, path=path)
    return cache_key(cache, files, platform="Linux", architecture=architecture)


@given(FACTS, FACTS)
def test_keys_are_equal_exactly_where_all_facts_are(
    one: tuple[str, str, dict[str, str], str], other: tuple[str, str, dict[str, str], str]
) -> None:
    assert (key_of(one) == key_of(other)) == (one == other)


@given(FILES)
def test_the_order_of_files_does_not_matter(files: dict[str, str]) -> None:
    backwards = dict(reversed(files.items()))
    assert cache_key(PIP, files, **HERE) == cache_key(PIP, backwards, **HERE)


def test_each_fact_changes_the_key() -> None:
    files = {"a.lock": "1"}
    keys = {
        cache_key(PIP, files, **HERE),
        cache_key(PIP, files, **{**HERE, "platform": "Darwin"}),
        cache_key(PIP, files, **{**HERE, "architecture": "aarch64"}),
        cache_key(replace(PIP, name="npm"), files, **HERE),
        cache_key(replace(PIP, path=".cache"), files, **HERE),
        cache_key(PIP, {"b.lock": "1"}, **HERE),
        cache_key(PIP, {"a.lock": "2"}, **HERE),
        cache_key(PIP, {"a.lock": "1", "b.lock": "1"}, **HERE),
    }
    assert len(keys) == 8
    assert cache_key(replace(PIP, key=("a.lock",)), files, **HERE) in keys, "files count, not globs"


def a_workspace(folder: Path) -> Path:
    """Write two key files and one that is none."""
    (folder / "sub").mkdir()
    (folder / "a.lock").write_text("one")
    (folder / "pyproject.toml").write_text("two")
    (folder / "main.py").write_text("three")
    return folder


def test_every_file_that_a_pattern_names_counts_once(tmp_path: Path) -> None:
    workspace = a_workspace(tmp_path)
    found = key_files(workspace, replace(PIP, key=("*.lock", "a.*", "pyproject.toml")))
    assert list(found) == ["a.lock", "pyproject.toml"]
    (workspace / "main.py").write_text("changed")
    assert key_files(workspace, PIP) == found
    (workspace / "a.lock").write_text("changed")
    assert key_files(workspace, PIP) != found


def test_a_link_counts_as_what_it_leads_to(tmp_path: Path) -> None:
    workspace = a_workspace(tmp_path)
    (workspace / "b.lock").symlink_to("main.py")
    before = key_files(workspace, PIP)
    (workspace / "main.py").write_text("changed")
    assert key_files(workspace, PIP)["b.lock"] != before["b.lock"]


def test_a_pattern_that_matches_nothing_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"'pip': the key 'absent\.lock' matches no file"):
        key_files(a_workspace(tmp_path), replace(PIP, key=("*.lock", "absent.lock")))


@pytest.mark.parametrize("kind", ["dangling", "directory", "pipe"])
def test_what_is_no_file_is_refused_and_hangs_nobody(tmp_path: Path, kind: str) -> None:
    workspace = a_workspace(tmp_path)
    if kind == "pipe":
        os.mkfifo(workspace / "x.lock")
    else:
        (workspace / "x.lock").symlink_to("sub" if kind == "directory" else "nowhere")
    with pytest.raises(InvalidRequest, match=r"'x\.lock' cannot be read"):
        key_files(workspace, PIP)


def test_files_and_bytes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = a_workspace(tmp_path)
    monkeypatch.setattr(cachekey, "MAX_BYTES", 6)
    assert len(key_files(workspace, PIP)) == 2
    (workspace / "a.lock").write_text("four")
    with pytest.raises(TooLarge):
        key_files(workspace, PIP)
    monkeypatch.setattr(cachekey, "MAX_FILES", 1)
    with pytest.raises(TooLarge, match="2 files"):
        key_files(workspace, PIP)
