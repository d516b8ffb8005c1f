"""The kernel's process lines, whatever a command calls itself."""

from forgeyard.proctable import parse_stat

LINE = (
    "1234 (a) b) (c) S 1 77 77 0 -1 4194304 100 0 0 0 150 50 0 0 20 0 1 0 987654 1000 25 "
    "18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
)


def test_a_command_with_parentheses_and_spaces_shifts_nothing() -> None:
    process = parse_stat(LINE)
    assert (process.pid, process.group, process.started) == (1234, 77, 987654)
    assert process.resident % 25 == 0
    assert process.resident > 0
    assert process.cpu == 2_000
    assert process.is_alive


def test_a_zombie_is_not_alive() -> None:
    assert not parse_stat(LINE.replace(") S ", ") Z ")).is_alive
