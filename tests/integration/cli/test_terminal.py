"""The command line as its own process: on a terminal, in a pipe, interrupted."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.cli.house import House
from tests.repositories import Repository, use_own_git

pytestmark = pytest.mark.integration

ONE = "name: ci\njobs:\n  build:\n    steps: [{run: make}]\n"
COMMAND = (sys.executable, "-m", "forgeyard.cli.main")


def on_a_terminal(
    *arguments: str, until: Callable[[str], bool], then: Callable[[], object], **environment: str
) -> tuple[int, str]:
    """Run a command on a terminal of its own; act once it has printed something."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", **environment},
    )
    os.close(theirs)
    printed, acted, deadline = b"", False, time.monotonic() + 30
    try:
        while time.monotonic() < deadline:
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    printed += os.read(ours, 65_536)
                except OSError:
                    break
            if not acted and until(printed.decode(errors="replace")):
                then()
                acted = True
        return process.wait(10), printed.decode(errors="replace")
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_a_person_sees_a_live_table_in_colour(house: House) -> None:
    run_id = house.submit(ONE)
    lease = house.lease()
    code, printed = on_a_terminal(
        *("run", "watch", run_id),
        until=lambda text: "linux-1" in text,
        then=lambda: house.desk.complete(lease),
    )
    assert code == 0
    assert "\x1b[36mrunning" in printed
    assert "\x1b[32msucceeded" in printed


def test_no_color_is_honoured(house: House) -> None:
    run_id = house.submit(ONE)
    house.desk.complete(house.lease())
    code, printed = on_a_terminal(
        *("run", "show", run_id), until=lambda _: False, then=lambda: None, NO_COLOR="1"
    )
    assert code == 0
    assert "succeeded" in printed
    assert "\x1b[3" not in printed


def test_an_upload_shows_how_far_it_is_to_a_person_only(house: House) -> None:
    Path("ci.yaml").write_text(ONE)
    Path("big").write_bytes(os.urandom(3 * 2**20))
    code, printed = on_a_terminal("run", "submit", "ci.yaml", until=lambda _: False, then=bool)
    assert code == 0
    assert "uploading" in printed
    Path("big").write_bytes(os.urandom(2**20))
    said = house.run("run", "submit", "ci.yaml")
    assert "uploading" not in said.out + said.err
    assert "\x1b" not in said.out + said.err


def test_a_fetch_shows_how_far_it_is_to_a_person_only(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_own_git(tmp_path, monkeypatch)
    app = Repository.new(tmp_path / "app")
    app.commit({"forgeyard.yaml": ONE})
    command = ("run", "submit", "--git", app.url)
    code, printed = on_a_terminal(*command, until=lambda _: False, then=bool)
    assert code == 0, printed
    assert "objects: 100%" in printed
    said = house.run(*command)
    assert "objects" not in said.out + said.err
    assert f"fetching HEAD of {app.url}" in said.err


def test_an_interrupted_watch_is_130_and_the_run_goes_on(house: House) -> None:
    run_id = house.submit(ONE)
    with subprocess.Popen(
        [*COMMAND, "run", "watch", run_id],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "eligible" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert f"forgeyard run cancel {run_id}" in process.stderr.read()
    assert house.desk.run_state(run_id) == "queued"


def test_a_reader_that_has_seen_enough_causes_no_traceback(house: House) -> None:
    run_id = house.submit(ONE)
    lease = house.lease()
    for sequence in range(8):
        house.log(lease, sequence, "x" * 79 + "\n" + ("y" * 79 + "\n") * 700)
    with subprocess.Popen(
        [*COMMAND, "run", "logs", run_id],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("build | x")
        process.stdout.close()
        assert process.wait(10) != 0
        assert "Traceback" not in process.stderr.read()
