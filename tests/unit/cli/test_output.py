"""What people and programs see."""

import json

import pytest

from forgeyard.cli import output
from forgeyard.errors import Conflict, Corrupt, InvalidRunFile, NotFound, Unavailable


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (None, ""),
        (0, "0.0s"),
        (-5, "0.0s"),
        (4_200, "4.2s"),
        (59_949, "59.9s"),
        (59_960, "1m 0s"),
        (190_000, "3m 10s"),
        (7_500_000, "2h 5m"),
        (86_400_000, "24h 0m"),
        (190_000_000, "2d 4h"),
    ],
)
def test_durations_are_short(milliseconds: int | None, text: str) -> None:
    assert output.duration(milliseconds) == text


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (None, ""),
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (2**30, "1.0 GiB"),
        (2**52, "4096.0 TiB"),
    ],
)
def test_sizes_are_binary(amount: int | None, text: str) -> None:
    assert output.size(amount) == text


def test_cores_are_whole_or_not() -> None:
    assert (output.cores(500), output.cores(4_000), output.cores(None)) == ("0.5", "4", "")


def test_a_table_is_not_cut_off_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.put_table(("name", "why"), [("lint", "x" * 180)], empty="none")
    printed = capsys.readouterr().out
    assert "x" * 180 in printed
    assert printed.splitlines()[0].split() == ["NAME", "WHY"]


def test_an_empty_table_is_a_sentence_apart_from_the_data(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.put_table(("name",), [], empty="no runs")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "no runs\n")


def test_nothing_a_server_sends_steers_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output.put_table(("name",), [("\x1b[2J[bold]x[/bold] \u202e",)], empty="")
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "\u202e" not in printed
    assert "[bold]x[/bold]" in printed


def test_json_is_json_whatever_is_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"a": ["é", "\x1b", None, 1]}
    output.put_json(value)
    assert json.loads(capsys.readouterr().out) == value


def test_an_error_names_place_field_value_and_what_is_allowed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = InvalidRunFile(
        "jobs.a.if: 'never' is not known",
        field="jobs.a.if",
        value="never",
        allowed="success, failure, always",
        file="ci.yaml",
        line=3,
        column=5,
    )
    output.complain(error, as_json=False)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        "error: jobs.a.if: 'never' is not known",
        "  at       ci.yaml:3:5",
        "  field    jobs.a.if",
        "  value    never",
        "  allowed  success, failure, always",
    ]


def test_an_error_for_programs_is_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    error = NotFound("no run x", field="run_id", value="x")
    error.add_note("request req_7")
    output.complain(error, as_json=True)
    found = json.loads(capsys.readouterr().err)
    assert found["code"] == "forgeyard.not_found"
    assert found["type"] == "urn:forgeyard:problem:forgeyard.not_found"
    assert (found["status"], found["detail"], found["request_id"]) == (404, "no run x", "req_7")


def test_a_hint_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    output.complain(Unavailable("away"), as_json=False)
    assert "try again" in capsys.readouterr().err
    output.complain(Corrupt("broken"), as_json=False)
    assert "bug" in capsys.readouterr().err
    output.complain(Conflict("first"), as_json=False)
    assert "hint" not in capsys.readouterr().err


def test_states_have_a_colour_and_other_words_none() -> None:
    assert output.cell("timed out").style == "bold red"
    assert output.cell("linux-1").style == ""


def test_a_jobs_output_may_colour_a_terminal_and_nothing_else() -> None:
    told = "\x1b[31mred\x1b[0m\tand\r\n\x1b]52;c;aGk=\x07\x1b[2J\x9b2J"
    assert output.unsteered(told) == (
        "\x1b[31mred\x1b[0m\tand\r\n\\x1b]52;c;aGk=\\x07\\x1b[2J\\x9b2J"
    )
