"""Archives are the same for the same files, and nothing that comes in leaves its root."""

import gzip
import io
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from forgeyard.archive import (
    link_stays_inside,
    pack,
    pack_output,
    safe_relative,
    unpack,
)
from forgeyard.errors import ForgeyardError, InvalidRequest, NotFound, TooLarge, UnsafePath

LIMIT = 2**20


def a_file(name: str, content: bytes = b"x", **changed: object) -> tuple[tarfile.TarInfo, bytes]:
    """Describe an archive's entry; every field of TarInfo may be given."""
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    for field, value in changed.items():
        setattr(entry, field, value)
    return entry, content


def a_link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    return a_file(name, b"", type=kind, linkname=target)


def an_archive(*entries: tuple[tarfile.TarInfo, bytes]) -> io.BytesIO:
    """Make a tar.gz the way an attacker would: nothing is checked."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for entry, content in entries:
            tar.addfile(entry, io.BytesIO(content))
    return io.BytesIO(out.getvalue())


def tree(root: Path) -> dict[str, str]:
    """Read a directory: what each path holds, or where it points."""
    found: dict[str, str] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file():
            found[name] = path.read_text()
    return found


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Make a small source directory with a link and an executable."""
    root = tmp_path / "source"
    (root / "src").mkdir(parents=True)
    (root / "src/main.py").write_text("print()\n")
    (root / "build.sh").write_text("#!/bin/sh\n")
    (root / "build.sh").chmod(0o700)
    (root / "latest").symlink_to("src/main.py")
    return root


@pytest.fixture
def room(tmp_path: Path) -> Path:
    """Make an empty directory to unpack into, with something beside it to attack."""
    (tmp_path / "secret").write_text("untouched")
    room = tmp_path / "room"
    room.mkdir()
    return room


def packed(root: Path, **changed: object) -> bytes:
    out = io.BytesIO()
    pack(root, out, **{"limit": LIMIT, **changed})
    return out.getvalue()


def test_what_is_packed_comes_out_again(source: Path, room: Path) -> None:
    assert unpack(io.BytesIO(packed(source)), room, limit=LIMIT) == 3
    assert tree(room) == tree(source)
    assert (room / "build.sh").stat().st_mode & 0o111
    assert not (room / "src/main.py").stat().st_mode & 0o111


def test_the_same_files_give_the_same_bytes(source: Path) -> None:
    before = packed(source)
    os.utime(source / "src/main.py", (1, 1))
    (source / "src/main.py").chmod(0o600)
    assert packed(source) == before
    (source / "src/main.py").write_text("print(1)\n")
    assert packed(source) != before


def test_packing_tells_digest_and_size(source: Path) -> None:
    out = io.BytesIO()
    result = pack(source, out, limit=LIMIT)
    assert (result.size, result.files, result.skipped) == (len(out.getvalue()), 3, ())
    assert result.digest.startswith("sha256:")


def test_links_that_lead_out_and_special_files_stay_behind(source: Path) -> None:
    (source / "outside").symlink_to("/etc/passwd")
    (source / "above").symlink_to("../secret")
    os.mkfifo(source / "pipe")
    result = pack(source, io.BytesIO(), limit=LIMIT)
    assert result.skipped == ("above", "outside", "pipe")
    assert result.files == 3


def test_a_directory_that_became_a_link_is_not_read_through(source: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "main.py").write_text("stolen")
    (source / "src/main.py").unlink()
    (source / "src").rmdir()
    (source / "src").symlink_to(outside)
    result = pack(source, io.BytesIO(), limit=LIMIT, select=lambda _root: ["src/main.py"])
    assert (result.files, result.skipped) == (0, ("src/main.py",))


def test_version_control_our_own_data_and_ignored_files_stay_behind(source: Path) -> None:
    for name in (".git/config", ".forgeyard/token", "node_modules/a.js", "src/gen/x", "a.log"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("x")
    (source / ".forgeyardignore").write_text("# a comment\nnode_modules/\n/src/gen\n*.log\n")
    out = io.BytesIO(packed(source))
    with tarfile.open(fileobj=out) as tar:
        assert tar.getnames() == [".forgeyardignore", "build.sh", "latest", "src/main.py"]


def test_a_checkout_is_what_git_would_track(source: Path) -> None:
    subprocess.run(["git", "init", "-q", source], check=True)
    (source / ".gitignore").write_text("*.o\n")
    (source / "junk.o").write_text("x")
    (source / "new.c").write_text("x")
    subprocess.run(["git", "-C", source, "add", "src/main.py", "new.c"], check=True)
    (source / "new.c").unlink()  # tracked, but gone
    with tarfile.open(fileobj=io.BytesIO(packed(source))) as tar:
        assert tar.getnames() == [".gitignore", "build.sh", "latest", "src/main.py"]


def test_a_git_hook_that_packs_another_checkout_gets_that_ones_files(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "-q", source], check=True)
    before = packed(source)
    subprocess.run(["git", "init", "-q", tmp_path / "hooked"], check=True)
    (tmp_path / "hooked/.git/info/exclude").write_text("build.sh\n")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "hooked/.git"))
    assert packed(source) == before


def test_a_checkout_that_git_cannot_read_is_refused_whole(source: Path) -> None:
    subprocess.run(["git", "init", "-q", source], check=True)
    (source / ".gitignore").write_text(".env\n")
    (source / ".env").write_text("sesame")
    (source / ".git/config").write_text("[core\n")
    with pytest.raises(InvalidRequest, match="git"):
        packed(source)


def test_a_checkout_within_the_checkout_brings_its_own_files(source: Path) -> None:
    subprocess.run(["git", "init", "-q", source], check=True)
    subprocess.run(["git", "init", "-q", source / "inner"], check=True)
    (source / "inner/.gitignore").write_text("*.o\n")
    (source / "inner/junk.o").write_text("x")
    (source / "inner/kept.c").write_text("x")
    with tarfile.open(fileobj=io.BytesIO(packed(source))) as tar:
        assert "inner/kept.c" in tar.getnames()
        assert "inner/junk.o" not in tar.getnames()


def test_names_that_are_no_text_survive(source: Path, room: Path) -> None:
    name = os.fsdecode(b"\xff\xfe")
    (source / name).write_text("x")
    unpack(io.BytesIO(packed(source)), room, limit=LIMIT)
    assert (room / name).read_text() == "x"


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unreadable for root")
def test_a_directory_that_may_not_be_read_is_an_error(source: Path) -> None:
    (source / "src").chmod(0)
    with pytest.raises(InvalidRequest, match="cannot be read"):
        packed(source)
    (source / "src").chmod(0o700)


def test_packing_stops_at_its_limit(source: Path) -> None:
    (source / "zeros").write_bytes(bytes(LIMIT))
    with pytest.raises(TooLarge, match="exceed"):
        pack(source, io.BytesIO(), limit=LIMIT)


def test_packing_what_is_no_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        pack(tmp_path / "nowhere", io.BytesIO(), limit=LIMIT)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("dist/*.whl", ["dist/a.whl", "dist/b.whl"]),
        ("dist", ["dist/a.whl", "dist/b.whl", "dist/deep/c.whl", "dist/notes.txt"]),
        ("./dist//a.whl", ["dist/a.whl"]),
        ("**/*.whl", ["dist/a.whl", "dist/b.whl", "dist/deep/c.whl"]),
        ("dist/**", ["dist/a.whl", "dist/b.whl", "dist/deep/c.whl", "dist/notes.txt"]),
        ("dist/[ab].whl", ["dist/a.whl", "dist/b.whl"]),
        ("nothing/*", []),
    ],
)
def test_an_output_is_what_its_pattern_names(
    tmp_path: Path, pattern: str, names: list[str]
) -> None:
    for name in ("dist/a.whl", "dist/b.whl", "dist/deep/c.whl", "dist/notes.txt", "other"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "loop").symlink_to(".")
    out = io.BytesIO()
    assert pack_output(tmp_path, pattern, out, LIMIT).files == len(names)
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as tar:
        assert tar.getnames() == names


@pytest.mark.parametrize("pattern", ["../up", "/etc/passwd", ".", "", "a/../../b", "a\0b"])
def test_an_output_outside_the_workspace_is_refused(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(UnsafePath) as caught:
        pack_output(tmp_path, pattern, io.BytesIO(), LIMIT)
    assert caught.value.field == "outputs.path"


@pytest.mark.parametrize(
    ("path", "safe"), [("a", "a"), ("./a//b/", "a/b"), ("..a/b..", "..a/b.."), ("ä/b", "ä/b")]
)
def test_a_safe_path_is_made_plain(path: str, safe: str) -> None:
    assert safe_relative(path) == safe


@pytest.mark.parametrize(
    "path",
    ["", ".", "/", "/a", "..", "a/..", "../a", "a/../b", "a\0b", "a" * 256, "a/" * 3000, "\ud800"],
)
def test_an_unsafe_path_is_refused(path: str) -> None:
    with pytest.raises(UnsafePath) as caught:
        safe_relative(path, "outputs[0].path")
    assert caught.value.field == "outputs[0].path"
    caught.value.message.encode()  # printable whatever the path was


@pytest.mark.parametrize(
    ("path", "target", "stays"),
    [
        ("a", "b", True),
        ("d/a", "../b", True),
        ("d/a", "..", True),
        ("d/a", "../../b", False),
        ("a", "..", False),
        ("a", "d/../b", False),
        ("a", "/etc", False),
        ("a", "", False),
        ("a", "b\0", False),
    ],
)
def test_a_link_stays_inside_or_not(path: str, target: str, stays: bool) -> None:
    assert link_stays_inside(path, target) is stays


UNSAFE: dict[str, Callable[[], io.BytesIO]] = {
    "climbing": lambda: an_archive(a_file("../secret")),
    "climbing in the middle": lambda: an_archive(a_file("a/../../secret")),
    "absolute": lambda: an_archive(a_file("/tmp/forgeyard-absolute")),
    "NUL": lambda: an_archive(a_file("a", pax_headers={"path": "a\0b"})),
    "too long": lambda: an_archive(a_file("n" * 300)),
    "link out": lambda: an_archive(a_link("out", "../secret")),
    "absolute link": lambda: an_archive(a_link("out", "/etc/passwd")),
    "chained links": lambda: an_archive(a_link("d/here", ".."), a_link("out", "d/here/..")),
    "through a link": lambda: an_archive(a_link("in", "."), a_file("in/x")),
    "hard link": lambda: an_archive(a_link("out", "../secret", tarfile.LNKTYPE)),
    "device": lambda: an_archive(a_file("null", b"", type=tarfile.CHRTYPE, devmajor=1)),
    "pipe": lambda: an_archive(a_file("pipe", b"", type=tarfile.FIFOTYPE)),
    "sparse": lambda: an_archive(a_file("s", b"", pax_headers={"GNU.sparse.size": "9" * 12})),
    "file over directory": lambda: an_archive(a_file("a/b"), a_file("a")),
    "directory over file": lambda: an_archive(a_file("a"), a_file("a/b")),
    "climbing directory": lambda: an_archive(a_file("..", b"", type=tarfile.DIRTYPE)),
}


@pytest.mark.parametrize("kind", UNSAFE)
def test_an_unsafe_entry_is_refused(room: Path, kind: str) -> None:
    with pytest.raises(UnsafePath):
        unpack(UNSAFE[kind](), room, limit=LIMIT)
    assert (room.parent / "secret").read_text() == "untouched"
    assert sorted(path.name for path in room.parent.iterdir()) == ["room", "secret"]


def test_a_later_archive_cannot_write_through_an_earlier_ones_link(room: Path) -> None:
    unpack(an_archive(a_file("d/f"), a_link("in", "d")), room, limit=LIMIT)
    with pytest.raises(UnsafePath):
        unpack(an_archive(a_file("in/f", b"y")), room, limit=LIMIT)
    assert tree(room)["d/f"] == "x"


def test_a_link_put_there_by_a_job_is_replaced_not_followed(room: Path) -> None:
    (room / "f").symlink_to("../secret")
    unpack(an_archive(a_file("f", b"new")), room, limit=LIMIT)
    assert tree(room) == {"f": "new"}
    assert (room.parent / "secret").read_text() == "untouched"


def test_a_later_archive_writes_over_an_earlier_one(room: Path) -> None:
    unpack(an_archive(a_file("a", b"old"), a_file("b", b"b")), room, limit=LIMIT)
    unpack(an_archive(a_file("a", b"new"), a_file("a", b"newest")), room, limit=LIMIT)
    assert tree(room) == {"a": "newest", "b": "b"}


def test_what_other_tools_write_is_taken(room: Path) -> None:
    directory = {"type": tarfile.DIRTYPE}
    archive = an_archive(
        a_file("./", b"", **directory),
        a_file("./a", b"", **directory),
        a_file("./a/b"),
        a_file("long/" * 40 + "name"),
        a_link("l", "a/b"),
    )
    assert unpack(archive, room, limit=LIMIT) == 3
    assert tree(room)["a/b"] == "x"


def test_special_bits_are_dropped(room: Path) -> None:
    unpack(an_archive(a_file("a", mode=0o6777)), room, limit=LIMIT)
    assert (room / "a").stat().st_mode & 0o7022 == 0


def test_an_empty_archive_is_fine(room: Path) -> None:
    assert unpack(an_archive(), room, limit=LIMIT) == 0


def test_files_beyond_the_limit_are_refused_before_they_are_written(room: Path) -> None:
    with pytest.raises(TooLarge):
        unpack(an_archive(a_file("a", bytes(600)), a_file("b", bytes(600))), room, limit=1_000)
    assert not (room / "b").exists()


def test_more_files_than_allowed_are_refused(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forgeyard.archive.MAX_FILES", 3)
    with pytest.raises(TooLarge):
        unpack(an_archive(*(a_file(str(n)) for n in range(4))), room, limit=LIMIT)


def test_a_bomb_is_refused_in_little_memory(room: Path) -> None:
    bomb = gzip.compress(bytes(16 * 2**20))
    with pytest.raises(TooLarge):
        unpack(io.BytesIO(bomb), room, limit=LIMIT)


def test_a_bomb_in_a_header_is_refused(room: Path) -> None:
    with pytest.raises(TooLarge):
        unpack(an_archive(a_file("a", pax_headers={"comment": "x" * 2**21})), room, limit=2**30)


def test_headers_that_only_lead_to_headers_are_refused(room: Path) -> None:
    header = tarfile.TarInfo("x")
    header.type = tarfile.XHDTYPE
    with pytest.raises(InvalidRequest):
        unpack(io.BytesIO(gzip.compress(header.tobuf() * 5_000)), room, limit=LIMIT)


def raw() -> bytes:
    return gzip.decompress(an_archive(a_file("a", b"y" * 700), a_file("b")).getvalue())


def spoiled_header() -> bytes:
    """Spoil the second entry's header, which the tar reader would take for the end."""
    data = bytearray(raw())
    data[512 + 1024] ^= 1
    return bytes(data)


DAMAGED: dict[str, Callable[[], bytes]] = {
    "no gzip": lambda: b"hello",
    "empty": lambda: b"",
    "cut": lambda: gzip.compress(raw())[:-40],
    "flipped": lambda: gzip.compress(raw())[:-6] + b"\0\0" + gzip.compress(raw())[-4:],
    "no tar": lambda: gzip.compress(b"hello" * 1_000),
    "cut tar": lambda: gzip.compress(raw()[:700]),
    "spoiled header": lambda: gzip.compress(spoiled_header()),
    "something behind": lambda: gzip.compress(raw() + b"more"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_archive_is_refused(room: Path, kind: str) -> None:
    with pytest.raises(InvalidRequest):
        unpack(io.BytesIO(DAMAGED[kind]()), room, limit=LIMIT)


def test_every_refusal_says_what_was_wrong(room: Path) -> None:
    for make in UNSAFE.values():
        with pytest.raises(ForgeyardError) as caught:
            unpack(make(), room, limit=LIMIT)
        assert caught.value.field
