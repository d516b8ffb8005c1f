"""`forgeyard token`, `login`, `whoami` and `audit` against a real API."""

import io
import json
import stat
from pathlib import Path

import pytest
import sqlalchemy as sa

from forgeyard.store import chain
from forgeyard.store.engine import write
from tests.integration.cli.house import House
from tests.unguarded import unguarded

pytestmark = pytest.mark.integration
RUN_FILE = "name: demo\njobs:\n  build:\n    steps:\n      - run: 'true'\n"


@pytest.fixture(autouse=True)
def credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep logins in a file of the test's own."""
    path = tmp_path / "config" / "credentials.json"
    monkeypatch.setenv("FORGEYARD_CREDENTIALS", str(path))
    return path


def make(house: House, *arguments: str) -> dict:
    """Make a token; return what is told of it."""
    given = ("token", "create", *arguments, "--expires", "1h", "--reason", "test", "--json")
    said = house.run(*given)
    assert said.code == 0, said.err
    return said.json()


def log_in(house: House, token: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{token}\n"))
    said = house.run("login", "--url", house.api_url, "--token-stdin")
    assert said.code == 0, said.err
    assert token not in said.out + said.err
    return said.out


def test_a_token_is_made_used_listed_and_revoked(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(house, "ci", "--service", "--role", "viewer", "--permission", "run.submit")
    monkeypatch.setenv("FORGEYARD_TOKEN", made["token"])
    assert "service ci" in house.run("whoami").out
    assert house.submit(RUN_FILE)
    refused = house.run("token", "list")
    assert (refused.code, "token.manage" in refused.err) == (5, True)
    monkeypatch.delenv("FORGEYARD_TOKEN")
    listed = house.run("token", "list")
    assert made["token_id"] in listed.out
    assert "viewer, run.submit" in listed.out
    assert made["token"] not in listed.out
    # Even whoever pastes the whole token sends no secret on.
    said = house.run("token", "revoke", made["token"], "--reason", "done")
    assert (said.code, made["token_id"] in said.out) == (0, True)
    assert house.run("token", "list", "--json").json() == []
    assert "revoked" in house.run("token", "list", "--ended").out
    monkeypatch.setenv("FORGEYARD_TOKEN", made["token"])
    assert house.run("whoami").code == 5


def test_a_token_alone_is_all_that_is_printed_as_data(house: House) -> None:
    said = house.run(
        *("token", "create", "alice", "--role", "viewer", "--expires", "1h", "--reason", "test")
    )
    assert said.out.strip().startswith("fya_")
    assert len(said.out.split()) == 1
    assert "not shown again" in said.err


def test_a_login_is_kept_for_its_owner_only_and_later_commands_use_it(
    house: House, credentials: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = make(house, "alice", "--role", "viewer")
    monkeypatch.setenv("FORGEYARD_DATA_DIR", str(tmp_path / "elsewhere"))
    assert house.run("whoami").code != 0
    assert "user alice" in log_in(house, made["token"], monkeypatch)
    assert stat.S_IMODE(credentials.stat().st_mode) == 0o600
    assert "user alice" in house.run("whoami").out
    assert house.run("run", "list").code == 0
    credentials.chmod(0o644)
    assert house.run("whoami").code == 5
    credentials.chmod(0o600)
    assert house.run("logout").code == 0
    assert house.run("whoami").code != 0
    assert made["token"] not in credentials.read_text()
    assert house.run("logout").code == 3


def test_a_system_in_the_data_directory_is_nearer_than_a_login(
    house: House, credentials: Path
) -> None:
    credentials.parent.mkdir()
    credentials.write_text(json.dumps({"current": "http://127.0.0.1:1", "tokens": {}}))
    credentials.chmod(0o600)
    assert "user admin" in house.run("whoami").out


def test_a_token_that_is_not_good_is_not_kept(
    house: House, credentials: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("nothing\n"))
    assert house.run("login", "--url", house.api_url, "--token-stdin").code == 5
    assert house.run("login", "--url", house.api_url).code == 2
    assert not credentials.exists()


@pytest.mark.requirement("PRI-072")
def test_the_trail_is_listed_and_verified_and_a_cut_end_is_found(house: House) -> None:
    """S20, by an operator's hands; the API keeps a head beside its data by itself."""
    make(house, "alice", "--role", "viewer")
    make(house, "bob", "--role", "viewer")
    listed = house.run("audit", "list", "--action", "token")
    assert listed.out.count("token.create") == 2
    assert "user:admin" in listed.out
    engine = house.desk.engine
    with write(engine) as connection:
        chain.seal_all(connection)
    head = house.run("audit", "head")
    assert json.loads(head.out)["seq"] == 2
    Path("heads").write_text(head.out)
    whole = house.run("audit", "verify", "--head", "heads")
    assert (whole.code, "as it was written" in whole.out) == (0, True), whole.err
    with write(engine) as connection, unguarded(connection):
        connection.execute(sa.text("DELETE FROM audit_chain WHERE seq = 2"))
        connection.execute(sa.text("DELETE FROM audit WHERE audit_id = 2"))
    assert house.run("audit", "verify").code == 0, "the chain alone cannot know"
    for kept in ("heads", json.loads(head.out)["hash"]):
        cut = house.run("audit", "verify", "--head", kept)
        assert (cut.code, "head gone" in cut.out) == (1, True)
    Path("heads").write_text("nonsense")
    assert house.run("audit", "verify", "--head", "heads").code == 2
    assert house.run("audit", "verify", "--head", "absent").code == 3
