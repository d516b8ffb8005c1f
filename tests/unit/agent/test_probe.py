"""Versions are found in what tools say about themselves."""

import pytest

from forgeyard.agent.asking import parse_version


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        ("Python 3.11.2\n", "3.11.2"),
        ("git version 2.39.5 (Apple Git-154)\n", "2.39.5"),
        ("12.2.0\n", "12.2.0"),
        ("13\n", "13"),
        ("GNU Make 4.3\nBuilt for x86_64-pc-linux-gnu\n", "4.3"),
        ("v20.20.2\n", "20.20.2"),
        ("go version go1.21.5 linux/amd64", "1.21.5"),
        ("rustc 1.75.0 (82e1608df 2023-12-21)", "1.75.0"),
        ('openjdk version "17.0.15" 2025-04-15\n', "17.0.15"),
        ("GNU bash, version 5.2.15(1)-release (x86_64-pc-linux-gnu)", "5.2.15"),
        ("Debian clang version 14.0.6\nTarget: x86_64", "14.0.6"),
        ("no number at all", None),
        ("", None),
    ],
)
def test_the_first_version_counts(answer: str, version: str | None) -> None:
    assert parse_version(answer) == version


def test_a_flood_is_not_searched_to_its_end() -> None:
    assert parse_version("x" * 1_000_000 + " 1.2.3") is None
