"""Of an archive only what was asked for is put in place, and of a refused one nothing."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from forgeyard.archive import pack_output, unpack_output
from forgeyard.errors import InvalidRequest, UnsafePath

LIMIT = 2**20


def an_archive(folder: Path, **files: str) -> io.BytesIO:
    """Pack files as an agent does, whatever they are called; `__` in a name stands for `/`."""
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    out = io.BytesIO()
    pack_output(folder, "**", out, LIMIT)
    return io.BytesIO(out.getvalue())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Make a workspace with a file of its own."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "main").write_text("mine")
    return workspace


def put(source: io.BytesIO, root: Path, pattern: str = "cache") -> int:
    """Unpack into a workspace."""
    return unpack_output(source, root, pattern, staging=root.parent / "staging", limit=LIMIT)


def test_only_what_the_path_names_is_put_in_place(root: Path, tmp_path: Path) -> None:
    archive = an_archive(tmp_path / "made", cache__a="1", cache__deep__b="2", main="theirs")
    assert put(archive, root) == 2
    assert (root / "cache" / "deep" / "b").read_text() == "2"
    assert (root / "main").read_text() == "mine"


def test_a_file_that_is_there_is_replaced(root: Path, tmp_path: Path) -> None:
    (root / "cache").mkdir()
    (root / "cache" / "a").write_text("old")
    assert put(an_archive(tmp_path / "made", cache__a="new"), root) == 1
    assert (root / "cache" / "a").read_text() == "new"


def test_a_refused_archive_leaves_nothing(root: Path, tmp_path: Path) -> None:
    archive = an_archive(tmp_path / "made", cache__a="1", cache__b="2" * 1_000)
    half = io.BytesIO(archive.getvalue()[:-40])
    with pytest.raises(InvalidRequest):
        put(half, root)
    assert not (root / "cache").exists()


def test_no_link_in_the_workspace_leads_out(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "cache").symlink_to(outside)
    with pytest.raises(UnsafePath):
        put(an_archive(tmp_path / "made", cache__a="1"), root)
    assert os.listdir(outside) == []


def test_a_pattern_that_climbs_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsafePath):
        put(an_archive(tmp_path / "made", cache__a="1"), root, "../x")


def test_links_come_along_and_stay_inside(root: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        link = tarfile.TarInfo("cache/bin")
        link.type, link.linkname = tarfile.SYMTYPE, "a"
        tar.addfile(link)
    assert put(io.BytesIO(out.getvalue()), root) == 1
    assert (root / "cache" / "bin").readlink() == Path("a")
