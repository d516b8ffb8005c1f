"""Archives on the shelf: bounded, least recently used out first, and verified whenever used."""

import hashlib
import os
import threading
from pathlib import Path
from random import Random

import pytest

from forgeyard.agent.shelf import Shelf
from forgeyard.model.holdings import MAX_CLOSURES, MAX_OBJECTS, NOTHING_HELD

pytestmark = pytest.mark.integration


class Table:
    """A shelf, and a place beside it for archives on their way."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.shelf = Shelf(folder / "archives", limit=limit)
        self.shelf.open()

    def put(self, content: bytes) -> str:
        """Keep an archive as a transfer does; return its digest."""
        path = self.folder / "arrived"
        path.write_bytes(content)
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self.shelf.keep(digest, path)
        path.unlink()
        return digest

    def get(self, digest: str) -> bytes | None:
        """Take an archive; `None` if it must be fetched, and then nothing lies there."""
        path = self.folder / "wanted"
        size = self.shelf.take(digest, path)
        if size is None:
            assert not path.exists()
            return None
        content = path.read_bytes()
        assert len(content) == size
        path.unlink()
        return content

    def file(self, digest: str) -> Path:
        """Tell where an archive lies."""
        return self.folder / "archives" / digest.replace(":", "-")

    def on_disk(self) -> int:
        """Count the bytes that really lie there."""
        return sum(path.stat().st_size for path in (self.folder / "archives").iterdir())


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Make a shelf for a hundred bytes."""
    return Table(tmp_path, 100)


def test_what_is_kept_is_there_for_as_many_attempts_as_want_it(table: Table) -> None:
    digest = table.put(b"a" * 60)
    assert [table.get(digest), table.get(digest)] == [b"a" * 60, b"a" * 60]
    assert table.get("sha256:" + "0" * 64) is None


def test_what_was_not_used_for_longest_goes_first_and_the_limit_is_never_exceeded(
    table: Table,
) -> None:
    first, second = table.put(b"a" * 40), table.put(b"b" * 40)
    assert table.get(first) == b"a" * 40
    third = table.put(b"c" * 40)
    assert table.on_disk() == table.shelf.size == 80
    assert table.get(second) is None
    assert [table.get(first), table.get(third)] == [b"a" * 40, b"c" * 40]
    huge = table.put(b"d" * 101)
    assert table.get(huge) is None
    assert table.get(first) is not None, "what is too large throws nothing out"


@pytest.mark.requirement("ACC-015")
@pytest.mark.parametrize("harm", ["garbled", "truncated", "deleted", "directory", "unreadable"])
def test_an_archive_that_came_to_harm_is_fetched_after_all(table: Table, harm: str) -> None:
    digest = table.put(b"a" * 60)
    file = table.file(digest)
    if harm == "garbled":
        file.write_bytes(b"b" * 60)
    elif harm == "truncated":
        os.truncate(file, 10)
    else:
        file.unlink()
    if harm == "directory":
        file.mkdir()
    if harm == "unreadable":
        file.symlink_to("/proc/self/mem")
    assert table.get(digest) is None
    assert digest not in table.shelf.summary().objects
    if harm != "directory":
        assert table.put(b"a" * 60) == digest
        assert table.get(digest) == b"a" * 60


def test_an_attempt_keeps_what_it_took_though_it_is_thrown_out_meanwhile(table: Table) -> None:
    digest = table.put(b"a" * 60)
    wanted = table.folder / "wanted"
    assert table.shelf.take(digest, wanted) == 60
    table.shelf.clear()
    assert table.on_disk() == table.shelf.size == 0
    assert wanted.read_bytes() == b"a" * 60


def test_the_next_agent_finds_what_the_last_one_kept_and_nothing_else(table: Table) -> None:
    old, new = table.put(b"a" * 40), table.put(b"b" * 40)
    os.utime(table.file(old), (1, 1))
    (table.folder / "archives" / "stray").write_text("half an archive")
    again = Table(table.folder, 50)
    assert (again.get(old), again.get(new)) == (None, b"b" * 40)
    assert again.on_disk() == again.shelf.size == 40
    assert Table(table.folder, 0).on_disk() == 0


def test_a_shelf_without_room_or_directory_keeps_nothing_and_breaks_nothing(
    tmp_path: Path,
) -> None:
    assert Table(tmp_path, 0).put(b"a") is not None
    assert Table(tmp_path, 0).shelf.summary() == NOTHING_HELD
    (tmp_path / "file").write_text("x")
    nowhere = Table.__new__(Table)
    nowhere.folder, nowhere.shelf = tmp_path, Shelf(tmp_path / "file" / "archives", limit=100)
    nowhere.shelf.open()
    assert nowhere.get(nowhere.put(b"a")) is None


def test_attempts_side_by_side_get_whole_archives_or_none(tmp_path: Path) -> None:
    table = Table(tmp_path, 250)
    contents = [bytes([65 + n]) * 100 for n in range(4)]
    names = {f"sha256:{hashlib.sha256(one).hexdigest()}": one for one in contents}
    wrong: list[str] = []
    taken: list[str] = []

    def work(place: int) -> None:
        path, rng = tmp_path / f"attempt-{place}", Random(place)
        for _ in range(200):
            digest, content = rng.choice(list(names.items()))
            if table.shelf.take(digest, path) is None:
                path.write_bytes(content)
                table.shelf.keep(digest, path)
            else:
                taken.append(digest)
            if path.read_bytes() != content:
                wrong.append(digest)
            path.unlink()

    threads = [threading.Thread(target=work, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(taken) > 50
    assert table.on_disk() <= 250


@pytest.mark.requirement("SCO-009", "SCO-010")
def test_the_summary_names_what_was_used_last_and_hints_at_the_rest(tmp_path: Path) -> None:
    table = Table(tmp_path, 10_000)
    digests = [table.put(f"{n:08}".encode()) for n in range(MAX_OBJECTS + 50)]
    table.get(digests[0])
    held = table.shelf.summary()
    assert len(held.objects) == MAX_OBJECTS
    assert set(held.objects) == {digests[0], *digests[51:]}
    assert all(held.holds(digest) for digest in digests)
    assert set(held.objects.values()) == {8}
    table.get(digests[60])
    assert table.shelf.summary() == held, "mere use is no news"


@pytest.mark.requirement("SCO-009")
def test_a_cache_is_known_by_its_key_as_long_as_its_archive_is_there(tmp_path: Path) -> None:
    table = Table(tmp_path, 10_000)
    digest = table.put(b"wheels")
    table.shelf.used("sha256:key", digest)
    table.shelf.used("sha256:gone", "sha256:" + "0" * 64)
    assert table.shelf.summary().closures == ("sha256:key",)
    for n in range(MAX_CLOSURES + 5):
        table.shelf.used(f"sha256:{n:03}", digest)
    assert len(table.shelf.summary().closures) == MAX_CLOSURES
    assert "sha256:key" not in table.shelf.summary().closures
