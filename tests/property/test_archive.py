"""Whatever an archive holds, what is unpacked stays below its root."""

import gzip
import io
import os
import tarfile
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from forgeyard import archive, selection
from forgeyard.errors import Rejected

LIMIT = 10_000
NAMES = st.text(st.sampled_from("ab.*\\ é\n"), min_size=1, max_size=4).filter(
    lambda name: name not in (".", "..")
)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
FILES = st.dictionaries(PATHS, st.binary(max_size=700), max_size=6)
PARTS = st.sampled_from(["a", "b", "..", ".", "", "etc", "\0"])
HOSTILE_PATHS = st.lists(PARTS, max_size=5).map("/".join)
KINDS = st.sampled_from(
    [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE]
)
LINKS = st.lists(
    st.tuples(
        st.just(tarfile.SYMTYPE),
        st.sampled_from(["a", "b", "c/a", "c/b"]),
        st.sampled_from(["..", "a", "c/a", "c/a/..", "a/..", "../a", "../..", "c/../.."]),
    ),
    min_size=2,
    max_size=5,
)
ENTRIES = st.lists(st.tuples(KINDS, HOSTILE_PATHS, HOSTILE_PATHS), max_size=8)


def write(root: Path, files: dict[str, bytes]) -> dict[str, bytes]:
    """Write what can be written together: a file cannot lie below another."""
    written: dict[str, bytes] = {}
    for name, content in files.items():
        try:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content)
        except OSError:
            continue
        written[name] = content
    return written


def hostile(entries: list[tuple[bytes, str, str]]) -> io.BytesIO:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
        for kind, name, target in entries:
            entry = tarfile.TarInfo("x")
            entry.type = kind
            entry.pax_headers = {"path": name} | ({"linkpath": target} if target else {})
            entry.size = 1 if kind == tarfile.REGTYPE else 0
            tar.addfile(entry, io.BytesIO(b"!"))
    return io.BytesIO(out.getvalue())


@given(FILES)
@settings(max_examples=40, deadline=None)
def test_files_survive_the_journey(files: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as here, tempfile.TemporaryDirectory() as there:
        written = write(Path(here), files)
        out = io.BytesIO()
        result = archive.pack(
            Path(here), out, limit=LIMIT, select=lambda root: selection.matching(root, "**")
        )
        again = io.BytesIO()
        archive.pack(Path(here), again, limit=LIMIT, select=lambda _root: reversed(list(written)))
        assert again.getvalue() == out.getvalue()
        assert archive.unpack(io.BytesIO(out.getvalue()), Path(there), limit=LIMIT) == result.files
        found = {
            str(path.relative_to(there)): path.read_bytes()
            for path in Path(there).rglob("*")
            if path.is_file()
        }
        assert found == written


@given(st.lists(ENTRIES, min_size=1, max_size=3))
@settings(max_examples=100, deadline=None)
def test_no_archive_and_no_sequence_of_archives_leaves_the_root(
    archives: list[list[tuple[bytes, str, str]]],
) -> None:
    with tempfile.TemporaryDirectory() as outer:
        root = Path(outer, "a/b/root")
        root.mkdir(parents=True)
        for entries in archives:
            try:
                archive.unpack(hostile(entries), root, limit=LIMIT)
            except Rejected:
                continue
        assert [str(path) for path in Path(outer).rglob("*") if root not in path.parents] == [
            str(Path(outer, "a")),
            str(Path(outer, "a/b")),
            str(root),
        ]
        for path in root.rglob("*"):
            assert Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))


@given(LINKS)
@settings(max_examples=150, deadline=None)
def test_no_links_lead_out_together_that_stay_inside_alone(
    links: list[tuple[bytes, str, str]],
) -> None:
    with tempfile.TemporaryDirectory() as root:
        for link in links:
            try:
                archive.unpack(hostile([link]), Path(root), limit=LIMIT)
            except Rejected:
                continue
        for path in Path(root).rglob("*"):
            assert Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))


@given(st.binary(max_size=3_000))
@settings(max_examples=100, deadline=None)
def test_bytes_that_are_no_archive_are_refused_not_feared(noise: bytes) -> None:
    with tempfile.TemporaryDirectory() as root:
        for data in (noise, gzip.compress(noise), gzip.compress(noise.ljust(512, b"\1"))):
            try:
                archive.unpack(io.BytesIO(data), Path(root), limit=LIMIT)
            except Rejected:
                continue


@given(HOSTILE_PATHS)
def test_a_safe_path_names_the_same_place_and_stays_safe(path: str) -> None:
    try:
        safe = archive.safe_relative(path)
    except Rejected:
        return
    assert archive.safe_relative(safe) == safe == os.path.normpath(path)
    assert os.path.normpath(f"/base/{safe}").startswith("/base/")
