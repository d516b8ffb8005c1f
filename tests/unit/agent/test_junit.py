"""Test reports of any origin are counted right, or refused."""

import os
from pathlib import Path

import pytest

from forgeyard.agent import counting, junit
from forgeyard.agent.counting import count_tests
from forgeyard.agent.junit import Tally, tally
from forgeyard.agent.masking import Masker
from forgeyard.errors import InvalidRequest

PYTEST = b"""<?xml version="1.0" encoding="utf-8"?>
<testsuites name="pytest tests"><testsuite name="pytest" errors="1" failures="1" skipped="1"
 tests="5" time="1.9" timestamp="2026-01-01T00:00:00" hostname="h">
<testcase classname="tests.test_a" name="test_one" time="0.500" />
<testcase classname="tests.test_a" name="test_two" time="1.25"><failure message="assert 1 == 2
 +  where 1 = f()">def test_two(): ...</failure></testcase>
<testcase classname="tests.test_a" name="test_three" time="0.000"><skipped
 type="pytest.skip" message="later">x</skipped></testcase>
<testcase classname="tests.test_b" name="test_four[&lt;x&gt;]" time="0.1"><error
 message="failed on setup">boom</error><system-out>noise</system-out></testcase>
<testcase classname="tests.test_b" name="test_five" time="0.05"><properties><property
 name="a" value="b"/></properties></testcase>
</testsuite></testsuites>"""
MAVEN = b"""<?xml version="1.0" encoding="UTF-8"?>
<testsuite xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" name="com.x.FooTest"
 time="1,200.5" tests="3" errors="0" skipped="1" failures="1">
  <properties><property name="java.version" value="21"/></properties>
  <testcase name="adds" classname="com.x.FooTest" time="1,200.25"/>
  <testcase name="divides" classname="com.x.FooTest" time="0.25">
    <failure type="java.lang.AssertionError"><![CDATA[
java.lang.AssertionError: expected <1> but was <2>
	at com.x.FooTest.divides(FooTest.java:9)
]]></failure>
    <system-err><![CDATA[<testcase/>]]></system-err>
  </testcase>
  <testcase name="flaky" classname="com.x.FooTest"><flakyFailure message="once"/></testcase>
  <testcase name="later" classname="com.x.FooTest" time="0"><skipped/></testcase>
</testsuite>"""
NESTED = b"""<testsuites tests="6" failures="3"><testsuite tests="3" failures="1">
<testsuite tests="2" failures="1"><testcase name="a"/><testcase name="b"><failure/></testcase>
</testsuite><testcase name="c"/></testsuite></testsuites>"""


def as_it_is(text: str) -> str:
    """Mask nothing."""
    return text


def counts(found: Tally) -> tuple[int, int, int, int]:
    """Take what is counted."""
    return (found.tests, found.failures, found.errors, found.skipped)


def said(found: Tally) -> list[tuple[str, str]]:
    """Take the names of what did not pass, and what was said."""
    return [(one.name, one.message) for one in found.failing]


def read(*pieces: bytes) -> Tally:
    """Count one report."""
    return tally(pieces, mask=as_it_is)


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_pytests_reports_are_counted_however_they_are_cut(size: int) -> None:
    found = read(*(PYTEST[at : at + size] for at in range(0, len(PYTEST), size)))
    assert counts(found) == (5, 1, 1, 1)
    assert found.seconds == pytest.approx(1.9)
    # XML makes a space of a line end in an attribute.
    assert said(found) == [
        ("tests.test_a.test_two", "assert 1 == 2  +  where 1 = f()"),
        ("tests.test_b.test_four[<x>]", "failed on setup"),
    ]


def test_mavens_reports_are_counted_and_what_passed_at_last_has_passed() -> None:
    found = read(MAVEN)
    assert counts(found) == (4, 1, 0, 1)
    assert found.seconds == pytest.approx(1_200.5)
    assert said(found) == [
        ("com.x.FooTest.divides", "java.lang.AssertionError: expected <1> but was <2>")
    ]


def test_a_suite_within_a_suite_counts_its_tests_once() -> None:
    assert counts(read(NESTED)) == (3, 1, 0, 0)


def test_a_test_counts_once_whatever_befell_it() -> None:
    both = b"<s><testcase name='a'><skipped/><failure/><error/></testcase></s>"
    assert counts(read(both)) == (1, 1, 0, 0)
    deep = b"<s><testcase name='a'><x><failure/></x><testcase name='b'/></testcase></s>"
    assert counts(read(deep)) == (1, 0, 0, 0)


@pytest.mark.parametrize("time", ["", "x", "nan", "inf", "-1", "1e999", "9" * 10_000])
def test_a_time_that_is_none_adds_none_or_a_bounded_one(time: str) -> None:
    found = read(f"<s><testcase name='a' time='{time}'/></s>".encode())
    assert 0 <= found.seconds <= 1e9


BOMB = b"""<?xml version="1.0"?><!DOCTYPE s [<!ENTITY a "aaaaaaaaaa"><!ENTITY b
"&a;&a;&a;&a;&a;&a;&a;&a;">]><s><testcase name="&b;"/></s>"""
OUTSIDE = b'<!DOCTYPE s SYSTEM "file:///etc/passwd"><s/>'


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not xml",
        PYTEST[:-20],
        PYTEST + b"<more/>",
        BOMB,
        OUTSIDE,
        b"<s>&unknown;</s>",
        b'<?xml version="1.0" encoding="klingon"?><s/>',
        b'<?xml version="1.0" encoding="utf-7"?><s/>',
        b"<s>\xff</s>",
        b"<a>" * 101 + b"</a>" * 101,
    ],
    ids=lambda data: ascii(data[:12]),
)
def test_what_is_no_whole_report_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not a test report"):
        read(data)


def test_what_is_nested_as_deep_as_allowed_is_read() -> None:
    assert counts(read(b"<a>" * 99 + b"<testcase/>" + b"</a>" * 99)) == (1, 0, 0, 0)


def test_a_document_type_is_what_a_bomb_is_refused_for() -> None:
    with pytest.raises(InvalidRequest, match="document type"):
        read(BOMB)


def test_elements_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(junit, "MAX_ELEMENTS", 10)
    assert counts(read(b"<s>" + b"<testcase/>" * 9 + b"</s>")) == (9, 0, 0, 0)
    with pytest.raises(InvalidRequest):
        read(b"<s>" + b"<testcase/>" * 10 + b"</s>")


def test_names_and_messages_are_bounded_and_only_the_first_are_kept() -> None:
    case = '<testcase name="{}"><failure message="{}"/></testcase>'
    many = "".join(case.format(f"{n}" + "n" * 500, "m" * 5_000) for n in range(30))
    found = read(f"<s>{many}</s>".encode())
    assert (found.failures, len(found.failing)) == (30, 20)
    assert {len(one.name) for one in found.failing} == {300}
    assert {len(one.message) for one in found.failing} == {500}
    assert found.failing[0].name.startswith("0n")


def test_a_secret_is_masked_also_where_a_message_is_cut() -> None:
    masker = Masker(["hunter22", "line one\nline two"])
    straddling = "x" * 495 + "hunter22"
    text = (
        f'<s><testcase name="uses&#10;hunter22"><failure message="{straddling}"/></testcase>'
        "<testcase name='b'><error>\nsaid line one\nline two</error></testcase></s>"
    )
    found = tally([text.encode()], mask=masker.text)
    assert said(found) == [("uses ***", "x" * 495 + "***"), ("b", "said ***")]


def report(tests: int = 1) -> bytes:
    """Write a report of tests that passed."""
    return b"<s>" + b'<testcase name="a" time="0.001"/>' * tests + b"</s>"


def test_the_files_that_patterns_name_are_added_up_once_each(tmp_path: Path) -> None:
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "a.xml").write_bytes(PYTEST)
    (tmp_path / "reports" / "b.xml").write_bytes(MAVEN)
    found, notes = count_tests(tmp_path, ("reports/*.xml", "reports/a.xml"), mask=as_it_is)
    assert found is not None
    assert (found.tests, found.failed, found.skipped) == (9, 3, 2)
    assert (found.files, found.unreadable, found.time) == (2, 0, 1_202_400)
    assert [one.name for one in found.failing][-1] == "com.x.FooTest.divides"
    assert notes == ()


def test_missing_files_are_a_note_and_no_count(tmp_path: Path) -> None:
    assert count_tests(tmp_path, ("a.xml", "b/*"), mask=as_it_is) == (
        None,
        ("a.xml matches no file", "b/* matches no file"),
    )


def test_what_cannot_be_read_is_counted_and_spoils_nothing(tmp_path: Path) -> None:
    outside = tmp_path / "outside.xml"
    outside.write_bytes(report(100))
    workspace = tmp_path / "workspace"
    (workspace / "real").mkdir(parents=True)
    (workspace / "good.xml").write_bytes(report(2))
    (workspace / "half.xml").write_bytes(report(50)[:-9])
    (workspace / "link.xml").symlink_to(outside)
    (workspace / "inner.xml").symlink_to("good.xml")
    os.mkfifo(workspace / "pipe.xml")
    found, notes = count_tests(workspace, ("*.xml",), mask=as_it_is)
    assert found is not None
    assert (found.tests, found.files, found.unreadable) == (2, 5, 4)
    assert len(notes) == 4
    assert notes[0].startswith("half.xml: not a test report")
    assert notes[3] == "pipe.xml: it is no file, or too large"


def test_files_and_bytes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(report())
    for number in range(5):
        (tmp_path / f"{number}.xml").write_bytes(report())

    def seen() -> tuple[int, int]:
        found, _ = count_tests(tmp_path, ("*.xml",), mask=as_it_is)
        assert found is not None
        return found.tests, found.unreadable

    assert seen() == (5, 0)
    monkeypatch.setattr(counting, "MAX_FILES", 3)
    assert seen() == (3, 2)
    monkeypatch.setattr(counting, "MAX_BYTES", 2 * size)
    assert seen() == (2, 3)
    monkeypatch.setattr(counting, "MAX_FILE_BYTES", size - 1)
    assert seen() == (0, 5)


def test_notes_are_bounded(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number}.xml").touch()
    _, notes = count_tests(tmp_path, ("*.xml",), mask=as_it_is)
    assert len(notes) == 21
    assert notes[-1] == "and 10 more"
