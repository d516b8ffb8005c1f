"""Run files on disk: YAML within bounds, and every complaint with its file, line and column."""

from pathlib import Path

import pytest

from forgeyard.errors import InvalidRunFile, NotFound
from forgeyard.runfile.load import MAX_SIZE, check, fallback_name, load_run, parse

GOOD = """\
name: ci
jobs:
  lint:
    steps:
      - run: make lint
  test:
    needs: [lint]
    resources:
      cpu: 500m
    steps:
      - run: make test
"""


def refusal(text: str) -> InvalidRunFile:
    """Read and check a text that must be refused."""
    with pytest.raises(InvalidRunFile) as caught:
        check(parse(text, file="run.yaml"), "run")
    assert caught.value.file == "run.yaml"
    return caught.value


def place(error: InvalidRunFile) -> tuple[int | None, int | None]:
    """Tell where an error points."""
    return error.line, error.column


def test_a_good_file_is_read_with_its_document(tmp_path: Path) -> None:
    path = tmp_path / "ci.yaml"
    path.write_text(GOOD)
    run, document = load_run(path)
    assert [job.name for job in run.jobs] == ["lint", "test"]
    assert document["name"] == "ci"


def test_a_file_without_a_name_is_named_after_itself(tmp_path: Path) -> None:
    path = tmp_path / "nightly build.yaml"
    path.write_text(GOOD.replace("name: ci\n", ""))
    run, document = load_run(path)
    assert run.name == document["name"] == "nightly build"
    assert fallback_name(Path("\x1b.yaml")) == "run"


@pytest.mark.parametrize(
    ("before", "after", "expected", "field"),
    [
        ("cpu: 500m", "cpu: lots", (9, 7), "jobs.test.resources.cpu"),
        ("    needs: [lint]", "    needs: [lint, absent]", (7, 5), "jobs.test.needs"),
        ("    needs: [lint]", "    need: [lint]", (7, 5), "jobs.test.need"),
        ("    needs: [lint]", "    needs: [lint, lint]", (7, 19), "jobs.test.needs.1"),
        ("- run: make test", "- ran: make test", (11, 9), "jobs.test.steps.0.ran"),
        ("    steps:\n      - run: make lint\n", "    env: {}\n", (3, 3), "jobs.lint.steps"),
        ("name: ci", "name: [ci]", (1, 1), "name"),
    ],
)
def test_a_complaint_points_at_its_line(
    before: str, after: str, expected: tuple[int, int], field: str
) -> None:
    error = refusal(GOOD.replace(before, after))
    assert place(error) == expected
    assert error.field == field


def test_a_job_whose_name_has_dots_is_found() -> None:
    text = "jobs:\n  a:\n    steps: [{run: x}]\n  a.b:\n    steps: [{run: x}]\n    if: never\n"
    assert place(refusal(text)) == (6, 5)


def test_a_cycle_points_at_the_needs_that_close_it() -> None:
    text = "jobs:\n  a: {needs: b, steps: [{run: x}]}\n  b: {needs: a, steps: [{run: x}]}\n"
    error = refusal(text)
    assert (error.line, error.field) == (2, "jobs.a.needs")


def test_a_duplicate_key_is_refused_at_its_second_place() -> None:
    error = refusal("jobs:\n  a:\n    steps: [{run: x}]\n  a:\n    steps: [{run: y}]\n")
    assert place(error) == (4, 3)
    assert "line 2" in error.message


@pytest.mark.parametrize("key", ["1", "1.5", "true", "null", "~", "[a]", "{a: b}", "? [a]"])
def test_a_key_that_is_not_text_is_refused(key: str) -> None:
    assert "text" in refusal(f"jobs:\n  {key}: x\n").message


def test_words_that_older_yaml_took_for_booleans_are_text() -> None:
    loaded = parse("on: yes\noff: no\nday: 2026-01-01\noctal: 010\nquoted: '1'\n", file="x")
    assert loaded.document == {
        "on": "yes",
        "off": "no",
        "day": "2026-01-01",
        "octal": 10,
        "quoted": "1",
    }


def test_the_core_schema_is_all_there_is() -> None:
    text = "a: ~\nb:\nc: True\nd: -3\ne: 1.5\nf: .5\ng: 1e3\nh: .inf\ni: 0x10\nj: 1_000\nk: '~'\n"
    assert list(parse(text, file="x").document.values()) == [
        *(None, None, True, -3, 1.5, 0.5, 1000.0),
        *(".inf", "0x10", "1_000", "~"),
    ]


def test_json_is_yaml() -> None:
    text = '{"jobs": {"a": {"steps": [{"run": "true"}], "needs": []}}}'
    assert check(parse(text, file="x"), "json").jobs[0].name == "a"


def test_an_escape_that_names_no_character_is_an_error() -> None:
    with pytest.raises(InvalidRunFile, match="escape"):
        parse('name: "\\UFFFFFFFF"', file="ci.yaml")


def test_json_escapes_of_large_characters_are_one_character_and_lone_ones_an_error() -> None:
    text = r'{"name": "\ud83d\ude80", "jobs": {"a": {"steps": [{"run": "true"}]}}}'
    assert check(parse(text, file="x"), "x").name == "🚀"
    assert "not valid text" in refusal(text.replace(r"\ude80", "")).message


def test_an_alias_may_be_used_and_complaints_inside_point_at_its_anchor() -> None:
    text = (
        "jobs:\n  a: {env: &env {A: '1'}, steps: [{run: x}]}\n  b: {env: *env, steps: [{run: x}]}\n"
    )
    run = check(parse(text, file="x"), "run")
    assert run.jobs[1].env == {"A": "1"}
    assert refusal(text.replace("'1'", "1")).line == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &a [x]\nb: *nothing\n", "undefined|no anchor"),
        ("a: &a [*a]\n", "contains itself"),
        ("a: &a [x]\nb: [" + "*a, " * 51 + "]\n", "too many aliases"),
        ("a: &a {b: c}\nd:\n  <<: *a\n", "merge keys"),
        ("a: !!python/object:os.system x\n", "tags"),
        ("a: !!binary aGk=\n", "tags"),
        ("a: !custom [x]\n", "tags"),
        ("a: 1\n---\nb: 2\n", "second document"),
        ("[" * 30 + "]" * 30, "too deeply"),
        ("[" * 50_000, "too deeply"),
        ("a:\n\tb: c\n", r"\\t"),
        ("a: [1, 2\n", "expected"),
        ("a: b: c\n", "not allowed"),
        ("a: 'open\n", "quoted"),
        ("%YAML 9.9\n---\na: b\n", "."),
        ("- a\n- b\n", "not a mapping"),
        ("just text\n", "not a mapping"),
        ("&a b: c\n", "anchor"),
    ],
)
def test_what_is_not_plain_bounded_yaml_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidRunFile, match=said) as caught:
        parse(text, file="run.yaml")
    assert (caught.value.line or 0) >= 1
    assert (caught.value.column or 0) >= 1


@pytest.mark.parametrize(
    "text", ["", "\n\n", "# only a comment\n", "---\n", "~\n", "--- null\n...\n"]
)
def test_an_empty_file_is_said_to_be_empty(text: str) -> None:
    assert "empty" in refusal(text).message


def test_an_alias_bomb_is_refused_before_it_is_built() -> None:
    levels = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for this, last in zip("bcdefgh", "abcdefg", strict=True):
        levels.append(f"{this}: &{this} [{', '.join([f'*{last}'] * 9)}]")
    assert refusal("\n".join(levels)).allowed is not None


def test_few_aliases_of_large_text_are_weighed_written_out() -> None:
    text = f"a: &a '{'x' * 100_000}'\nb: [{', '.join(['*a'] * 20)}]\n"
    assert "too much text" in refusal(text).message


def test_a_megabyte_of_labels_is_refused_while_it_is_read() -> None:
    labels = "".join(f"        label-{n}: x\n" for n in range(45_000))
    text = f"jobs:\n  a:\n    requires:\n      labels:\n{labels}"
    assert "too many values" in refusal(text[:MAX_SIZE]).message


def test_a_number_of_many_digits_stays_text() -> None:
    assert parse(f"a: {'9' * 5_000}\n", file="x").document["a"] == "9" * 5_000


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as caught:
        load_run(tmp_path / "absent.yaml")
    assert caught.value.exit_code == 3


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRunFile, match="is a directory"):
        load_run(tmp_path)


def test_a_name_with_a_nul_is_refused() -> None:
    with pytest.raises(InvalidRunFile, match="null byte"):
        load_run(Path("a\0b"))


@pytest.mark.parametrize(
    ("raw", "said", "expected"),
    [
        (b"a: b\nc: \xff\xfe\n", "not UTF-8", (2, 4)),
        (b"\x7fELF\x02\x01\x01\x00", "control character", (1, 5)),
        (b"a: b\nc: d\x00e\n", "U\\+0000", (2, 5)),
        (b"a: b\x1b[31m\n", "U\\+001B", (1, 5)),
        (b"\x89PNG\r\n\x1a\n", "not UTF-8", (1, 1)),
    ],
)
def test_a_binary_file_is_refused_where_it_stops_being_text(
    tmp_path: Path, raw: bytes, said: str, expected: tuple[int, int]
) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(raw)
    with pytest.raises(InvalidRunFile, match=said) as caught:
        load_run(path)
    assert place(caught.value) == expected
    assert caught.value.file == str(path)


def test_a_file_larger_than_the_limit_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(b"#" * (MAX_SIZE + 1))
    with pytest.raises(InvalidRunFile, match="too large"):
        load_run(path)


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert load_run(path)[0].name == "ci"
