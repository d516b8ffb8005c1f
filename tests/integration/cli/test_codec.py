"""`forgeyard codec`, and processes that a production profile refuses to run."""

import base64
import json
from pathlib import Path

import pytest

from forgeyard.cli.main import main
from forgeyard.trust.sealing import read_keys

pytestmark = pytest.mark.integration


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run a command that has to succeed; return what it printed."""
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert ended.value.code == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, dict]:
    """Run a command that has to fail; return its code and what it says."""
    with pytest.raises(SystemExit) as ended:
        main([*words, "--json"] if "--json" not in words else list(words))
    return ended.value.code, json.loads(capsys.readouterr().err)


def test_keys_are_made_and_named_and_never_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--data-dir", str(tmp_path), "--json")
    first = json.loads(said(capsys, "codec", "new-key", *where))["key"]
    second = said(capsys, "codec", "new-key", *where)
    file = tmp_path / "codec.keys"
    shown = said(capsys, "codec", "show", *where)
    found = json.loads(shown)
    assert found == {
        "file": str(file),
        "keys": [first, json.loads(second)["key"]],
        "seals": json.loads(second)["key"],
    }
    table = said(capsys, "codec", "show", *where[:2])
    keys = [base64.b64encode(key).decode() for key in read_keys(file).keys.values()]
    assert len(keys) == 2
    assert not any(key in text for key in keys for text in (shown, second, table))


def test_a_file_that_is_missing_is_not_made_by_looking(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, problem = refused(capsys, "codec", "show", "--file", str(tmp_path / "gone"))
    assert (code, problem["code"]) == (3, "forgeyard.not_found")


@pytest.mark.parametrize("words", [("worker",), ("api",)])
def test_a_production_process_refuses_sqlite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--profile", "production", "--data-dir", str(tmp_path)])
    assert ended.value.code == 2
    assert "keeps its store in PostgreSQL" in capsys.readouterr().err


def test_up_is_not_for_production(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORGEYARD_PROFILE", "production")
    with pytest.raises(SystemExit) as ended:
        main(["up", "--data-dir", str(tmp_path)])
    assert ended.value.code == 2
    assert "development server" in capsys.readouterr().err


def test_a_certificate_without_its_key_is_no_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORGEYARD_TEMPORAL__CERT_FILE", "client.crt")
    with pytest.raises(SystemExit) as ended:
        main(["worker", "--data-dir", str(tmp_path)])
    assert ended.value.code == 2
    assert "cert_file and key_file go together" in capsys.readouterr().err
