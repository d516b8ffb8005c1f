"""The table of requirements is current, and a mark that proves nothing is refused."""

from pathlib import Path

import pytest

from tests import coverage_table

HEAD = "import pytest\n\nfrom tests.helpers import demand, prepare\n\n"
MARK = '@pytest.mark.requirement("AAA-001")\n'
CATALOGUE = """
[reasons]
heading = "a title"

[[group]]
prefix = "AAA"
title = "First"
count = 3
owner = 4
except = [{ ids = "002", na = "heading" }, { ids = "003", issue = "later" }]
"""


def marks_of(root: Path, source: str) -> coverage_table.Marks:
    (root / "tests").mkdir()
    (root / "tests" / "helpers.py").write_text(
        "def demand(x):\n    assert x\n\n\ndef prepare(x):\n    return x\n"
    )
    (root / "tests" / "test_it.py").write_text(HEAD + source)
    return coverage_table.read_marks(root)


def test_the_page_is_current_and_no_mark_is_at_fault(capsys: pytest.CaptureFixture[str]) -> None:
    status = coverage_table.main(["--check"])

    assert status == 0, capsys.readouterr().err


def test_a_stale_page_fails_the_check_and_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, catalogue = tmp_path / "coverage.md", tmp_path / "requirements.toml"
    page.write_text("old")
    catalogue.write_text(CATALOGUE)
    for name, path in (("ROOT", tmp_path), ("CATALOGUE", catalogue), ("PAGE", page)):
        monkeypatch.setattr(coverage_table, name, path)

    assert coverage_table.main(["--check"]) == 1
    assert page.read_text() == "old"
    assert coverage_table.main([]) == 0
    assert coverage_table.main(["--check"]) == 0


@pytest.mark.parametrize(
    "body",
    [
        "def test_it():\n    prepare(1)\n",
        "def test_it():\n    set_up()\n\n\ndef set_up():\n    demand(1)\n",
        "def test_it(x):\n    x.until()\n\n\nclass X:\n    def until(self): ...\n",
        "def test_it():\n    assert True\n",
        "async def test_it():\n    ...\n",
        "@pytest.mark.skip\ndef test_it():\n    assert prepare(1)\n",
    ],
)
def test_a_mark_on_a_test_without_an_assertion_fails(tmp_path: Path, body: str) -> None:
    (fault,) = marks_of(tmp_path, MARK + body).faults

    assert fault.startswith("tests/test_it.py::test_it is marked but ")


@pytest.mark.parametrize(
    "body",
    [
        MARK + "@pytest.mark.soak\ndef test_it():\n    assert prepare(1)\n",
        "pytestmark = [pytest.mark.soak]\n\n\n" + MARK + "def test_it():\n    assert prepare(1)\n",
    ],
)
def test_what_make_test_leaves_out_proves_nothing_here(tmp_path: Path, body: str) -> None:
    marks = marks_of(tmp_path, body)

    assert (marks.found, marks.faults) == ((), ())


@pytest.mark.parametrize(
    "body",
    [
        "def test_it():\n    assert prepare(1)\n",
        "def test_it():\n    with pytest.raises(ValueError):\n        prepare(1)\n",
        "def test_it():\n    demand(1)\n",
        "def test_it():\n    until_so()\n\n\ndef until_so():\n    demand(1)\n",
        "def test_it(x):\n    x.until()\n\n\nclass X:\n    def until(self):\n        demand(1)\n",
    ],
)
def test_a_mark_on_a_test_that_asserts_is_found(tmp_path: Path, body: str) -> None:
    marks = marks_of(tmp_path, MARK + body)

    assert marks.faults == ()
    assert [mark.id for mark in marks.found] == ["AAA-001"]


def test_marks_are_read_from_modules_classes_and_cases(tmp_path: Path) -> None:
    marks = marks_of(
        tmp_path,
        'pytestmark = [pytest.mark.requirement("AAA-001")]\n'
        'CASES = [pytest.param(1, marks=pytest.mark.requirement("AAA-002"))]\n\n\n'
        '@pytest.mark.parametrize("x", CASES)\ndef test_cases(x):\n    assert x\n\n\n'
        '@pytest.mark.requirement("AAA-003")\nclass TestAll:\n'
        "    def test_one(self):\n        assert prepare(1)\n",
    )

    assert marks.faults == ()
    assert {(mark.id, mark.test.rpartition("py::")[2]) for mark in marks.found} == {
        ("AAA-001", "test_cases"),
        ("AAA-002", "test_cases"),
        ("AAA-001", "TestAll::test_one"),
        ("AAA-003", "TestAll::test_one"),
    }


@pytest.mark.parametrize(
    "source",
    [
        'PROVES = pytest.mark.requirement("AAA-001")\n',
        'ID = "AAA-001"\n\n\n@pytest.mark.requirement(ID)\ndef test_it():\n    assert prepare(1)\n',
    ],
)
def test_a_mark_without_a_test_or_a_literal_id_fails(tmp_path: Path, source: str) -> None:
    assert len(marks_of(tmp_path, source).faults) == 1


def test_unknown_ids_and_needless_marks_contradict_the_catalogue() -> None:
    requirements = coverage_table.read_catalogue(CATALOGUE)
    marks = [coverage_table.Mark(id=one, test="t") for one in ("AAA-001", "AAA-002", "AAA-004")]

    assert coverage_table.contradictions(requirements, marks) == [
        "t: unknown id AAA-004",
        "t: AAA-002 is n/a (a title)",
    ]


def test_an_id_described_twice_is_an_error() -> None:
    with pytest.raises(ValueError, match="AAA"):
        coverage_table.read_catalogue(CATALOGUE.replace('ids = "003"', 'ids = "002-003"'))


def test_the_page_says_of_every_id_tested_open_or_not_applicable() -> None:
    requirements = coverage_table.read_catalogue(CATALOGUE)
    text = coverage_table.page(
        requirements, [coverage_table.Mark(id="AAA-001", test="tests/test_it.py::test_it")]
    )

    assert "**All 3**: 1 tested, 1 open, 1 n/a" in text
    assert "| AAA-001 | tested: `test_it.py::test_it` |" in text
    assert "| AAA-002 | n/a (a title) |" in text
    assert "| AAA-003 | open(later) |" in text
