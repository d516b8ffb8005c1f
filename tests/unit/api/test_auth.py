"""The token file, and the gate that asks for the token."""

import stat
import threading
from pathlib import Path

import pytest

from forgeyard.api.auth import ensure_token
from forgeyard.errors import Forbidden


def test_a_missing_token_file_is_made_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "token"
    token = ensure_token(path)
    assert len(token) >= 40
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["token"]


def test_an_existing_token_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "token"
    assert ensure_token(path) == ensure_token(path)


def test_a_token_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    ensure_token(path)
    path.chmod(0o640)
    with pytest.raises(Forbidden) as caught:
        ensure_token(path)
    assert caught.value.field == "token"
    assert "chmod 600" in (caught.value.allowed or "")


def test_an_empty_token_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.touch(mode=0o600)
    with pytest.raises(Forbidden, match="empty"):
        ensure_token(path)


def test_processes_that_start_together_agree_on_one_token(tmp_path: Path) -> None:
    path = tmp_path / "token"
    found: list[str] = []
    barrier = threading.Barrier(8)

    def start() -> None:
        barrier.wait()
        found.append(ensure_token(path))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
