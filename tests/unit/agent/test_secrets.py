"""A secrets file is read only if it belongs to the agent alone, and complaints never quote it."""

import os
import stat
from pathlib import Path

import pytest

from forgeyard.agent import secrets
from forgeyard.errors import Forbidden, ForgeyardError, InvalidRequest, NotFound


def a_file(folder: Path, text: str = "TOKEN=abcdef\n", *, mode: int = 0o600) -> Path:
    """Write a secrets file."""
    path = folder / "secrets"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_names_and_values_are_read_as_they_are(tmp_path: Path) -> None:
    text = '# comment\n\nTOKEN=a=b c#d \r\n  OTHER ="quoted"\n'
    assert secrets.load(a_file(tmp_path, text)) == {"TOKEN": "a=b c#d ", "OTHER": '"quoted"'}


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o666])
def test_a_file_that_others_may_touch_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(Forbidden, match=f"{mode:04o}") as caught:
        secrets.load(a_file(tmp_path, mode=mode))
    assert caught.value.field == "agent.secrets_file"
    assert caught.value.allowed is not None
    assert "0600" in caught.value.allowed


def test_a_link_to_a_proper_file_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(a_file(tmp_path))
    with pytest.raises(Forbidden):
        secrets.load(link)


def test_a_directory_and_a_pipe_are_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for path in (tmp_path, pipe):
        with pytest.raises(ForgeyardError, match="not a regular file"):
            secrets.load(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_another_users_file_is_refused(tmp_path: Path) -> None:
    path = a_file(tmp_path)
    os.chown(path, 12_345, -1)
    with pytest.raises(Forbidden, match="another user"):
        secrets.load(path)


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        secrets.load(tmp_path / "nothing")


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="larger"):
        secrets.load(a_file(tmp_path, "A=" + "x" * secrets.LARGEST_FILE))


@pytest.mark.parametrize(
    "text",
    ["hunter22", "A=okay\n1A=hunter22", "A B=hunter22", "A=hunter22\nA=hunter22", "A=h22"],
)
def test_a_bad_line_is_named_and_never_quoted(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"line \d") as caught:
        secrets.parse(text, name="secrets")
    said = f"{caught.value.message} {caught.value.value}"
    assert "hunter" not in said
    assert "h22" not in said


def test_the_usual_permissions_are_accepted(tmp_path: Path) -> None:
    path = a_file(tmp_path, mode=0o400)
    assert stat.S_IMODE(path.stat().st_mode) == 0o400
    assert secrets.load(path) == {"TOKEN": "abcdef"}
