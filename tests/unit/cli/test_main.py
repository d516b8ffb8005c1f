"""The command line as a whole: help, exit codes, and the commands that need no server."""

import json
import re
from pathlib import Path

import pytest
import typer

from forgeyard.cli import server
from forgeyard.cli.main import app, main
from forgeyard.cli.options import label_of
from forgeyard.errors import InvalidRequest, PortTaken

GOOD = "jobs:\n  lint:\n    steps:\n      - run: make lint\n"


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty directory where nothing runs and nothing is configured."""
    monkeypatch.chdir(tmp_path)
    for name in ("FORGEYARD_URL", "FORGEYARD_TOKEN", "FORGEYARD_TOKEN_FILE", "FORGEYARD_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def forgeyard(*arguments: str) -> int:
    """Run the command line; return its exit code."""
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    return int(caught.value.code or 0)


def commands() -> list[tuple[str, ...]]:
    """List every command there is."""
    found: list[tuple[str, ...]] = []
    waiting: list[tuple[tuple[str, ...], typer.Typer]] = [((), app)]
    while waiting:
        path, group = waiting.pop()
        for command in group.registered_commands:
            callback = command.callback
            assert callback is not None
            found.append((*path, command.name or callback.__name__))
        waiting.extend(
            ((*path, str(one.name)), one.typer_instance)
            for one in group.registered_groups
            if one.typer_instance
        )
    return found


def test_every_command_explains_itself_with_an_example(
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = typer.main.get_command(app)
    for command in commands():
        root.main([*command, "--help"], prog_name="forgeyard", standalone_mode=False)
        printed = capsys.readouterr().out
        example = re.search(r"Examples?:\n +(.*)", printed)
        assert example, command
        assert f"forgeyard {' '.join(command)}" in example[1], "the example is of this command"


def test_all_commands_of_the_issue_are_there() -> None:
    have = {" ".join(command) for command in commands()}
    run = "submit check list show logs watch cancel rerun artifacts download reprioritise"
    scheduler = "status queues runners capacity explain-job doctor rebalance"
    wanted = {
        *("up", "down", "status", "demo", "init", "worker", "api", "agent"),
        *(f"run {name}" for name in run.split()),
        *(f"scheduler {name}" for name in scheduler.split()),
        *(f"runner {name}" for name in ("list", "show", "drain", "undrain")),
        *(f"policy {name}" for name in ("show", "check", "set", "history")),
        *(f"scope {name}" for name in ("list", "create", "set", "pause", "resume")),
        *(f"token {name}" for name in ("create", "list", "revoke")),
        *(f"audit {name}" for name in ("list", "head", "verify")),
        *("job reprioritise", "login", "logout", "whoami"),
    }
    assert wanted <= have


WITHOUT_DATA = {"up", "down", "demo", "worker", "api", "agent", "image statement"}
"""Commands that run something, so that what they print is for people, or whose print is JSON."""


def test_every_command_that_tells_something_tells_it_to_programs_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    root, silent = typer.main.get_command(app), set[str]()
    for command in commands():
        root.main([*command, "--help"], prog_name="forgeyard", standalone_mode=False)
        if "--json" not in capsys.readouterr().out:
            silent.add(" ".join(command))
    assert silent == WITHOUT_DATA


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert forgeyard("--version") == 0
    assert re.fullmatch(r"forgeyard \d+\.\d+\.\d+\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    "arguments",
    [("nothing",), ("run", "nothing"), ("run", "list", "--limit", "0"), ("run", "show")],
)
def test_wrong_usage_is_2(arguments: tuple[str, ...]) -> None:
    assert forgeyard(*arguments) == 2


def test_nothing_listening_is_7(nowhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (nowhere / "token").write_text("t")
    url = ("--url", "http://127.0.0.1:1", "--token-file", "token")
    assert forgeyard("run", "list", *url) == 7
    assert "forgeyard up" in capsys.readouterr().err
    assert forgeyard("run", "list", "--json", *url) == 7
    printed = capsys.readouterr()
    assert json.loads(printed.err)["code"] == "forgeyard.unavailable"
    assert printed.out == ""


def test_no_token_is_5() -> None:
    assert forgeyard("run", "list", "--url", "http://ci.example") == 5


def test_a_wrong_setting_is_2_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORGEYARD_API__PORT", "high")
    assert forgeyard("run", "list") == 2
    assert "api.port" in capsys.readouterr().err


def test_a_bug_is_70_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("forgeyard.cli.main.app", broken)
    assert forgeyard("run", "list") == 70
    assert "RuntimeError: a bug" in capsys.readouterr().err


def test_an_error_of_ours_ends_with_its_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(*_: object, **__: object) -> None:
        raise PortTaken("taken")

    monkeypatch.setattr("forgeyard.cli.main.app", taken)
    assert forgeyard("up") == 7


def test_init_writes_a_file_that_passes_its_own_check(
    nowhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert forgeyard("init") == 0
    assert capsys.readouterr().out == "wrote forgeyard.yaml\n"
    assert forgeyard("run", "check", "forgeyard.yaml") == 0
    assert "3 jobs, 3 needs" in capsys.readouterr().out
    assert f'name: "{nowhere.name[:64]}"' in (nowhere / "forgeyard.yaml").read_text()


@pytest.mark.parametrize("name", ["123", "true", "a: b #", ".-.", "é", "a\nb"])
def test_init_works_in_a_directory_of_any_name(nowhere: Path, name: str) -> None:
    (nowhere / name).mkdir()
    assert forgeyard("init", name) == 0
    assert forgeyard("run", "check", f"{name}/forgeyard.yaml") == 0


def test_init_overwrites_only_when_told(nowhere: Path) -> None:
    (nowhere / "forgeyard.yaml").write_text("mine")
    assert forgeyard("init") == 4
    assert (nowhere / "forgeyard.yaml").read_text() == "mine"
    assert forgeyard("init", "--force", str(nowhere)) == 0
    assert (nowhere / "forgeyard.yaml").read_text() != "mine"


def test_init_where_nothing_can_be_written_is_2() -> None:
    assert forgeyard("init", "absent/forgeyard.yaml") == 2


def test_check_answers_programs_in_json(nowhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (nowhere / "ci.yaml").write_text(GOOD)
    assert forgeyard("run", "check", "ci.yaml", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"name": "ci", "jobs": 1, "needs": 0}


def test_check_says_where_a_file_is_wrong(
    nowhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (nowhere / "ci.yaml").write_text(GOOD.replace("steps", "stepz"))
    assert forgeyard("run", "check", "ci.yaml") == 2
    printed = capsys.readouterr().err
    assert "ci.yaml:3:5" in printed
    assert "did you mean 'steps'?" in printed
    assert forgeyard("run", "check", "ci.yaml", "--json") == 2
    problem = json.loads(capsys.readouterr().err)
    assert (problem["file"], problem["line"], problem["column"]) == ("ci.yaml", 3, 5)
    assert (problem["field"], problem["code"]) == ("jobs.lint.stepz", "runfile.invalid")


def test_a_missing_run_file_is_3() -> None:
    assert forgeyard("run", "check", "absent.yaml") == 3
    assert forgeyard("run", "submit", "absent.yaml") == 3


@pytest.mark.parametrize("key", ["", "é", "a\nb", "x" * 201])
def test_a_key_that_cannot_be_sent_is_refused_before_anything_is(nowhere: Path, key: str) -> None:
    (nowhere / "ci.yaml").write_text(GOOD)
    assert forgeyard("run", "submit", "ci.yaml", "--idempotency-key", key) == 2


@pytest.mark.parametrize("timeout", ["soon", "0s", "-1"])
def test_a_timeout_that_is_none_is_refused(timeout: str) -> None:
    assert forgeyard("run", "watch", "run_1", "--timeout", timeout) == 2


def test_status_and_down_of_nothing_are_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert forgeyard("status", "--json") == 3
    assert json.loads(capsys.readouterr().out)["running"] is False
    assert forgeyard("status") == 3
    assert forgeyard("down") == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ("--label", "zone"),
        ("--label", "=a"),
        ("--toolchain", "node"),
        ("--toolchain", "node=22"),
        ("--toolchain", "node==/bin"),
        ("--token", "a", "--token-file", "b"),
        ("--join", "ci:8701", "--token", "a"),
        ("--jobs", "0"),
        ("--cost", "cheap"),
        ("--cost", "-1"),
        ("--cost", "NaN"),
        ("--cost", "1e30"),
        ("--reliability", "eternal"),
        ("--site", "x" * 129),
    ],
)
def test_an_agent_with_a_wrong_option_does_not_start(arguments: tuple[str, ...]) -> None:
    assert forgeyard("agent", *arguments) == 2


def test_an_agent_without_a_token_does_not_start() -> None:
    assert forgeyard("agent", "--join", "http://ci.example:8701") == 5


def test_the_cost_of_an_hour_is_read_exactly_and_never_rounded_down() -> None:
    assert server._micros("0.35") == 350_000
    assert server._micros("0") == 0
    assert server._micros("0.0000001") == 1


def test_a_toolchain_keeps_equals_signs_in_its_path() -> None:
    assert server._toolchain("node=22.1.0=/opt/a=b/bin") == {
        "name": "node",
        "version": "22.1.0",
        "bin": "/opt/a=b/bin",
    }
    assert label_of("zone=a=b") == ("zone", "a=b")
    with pytest.raises(InvalidRequest):
        label_of("zone=")
