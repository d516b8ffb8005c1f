"""Watches in which order transactions lock rows: scopes before runners, always.

Whoever grants locks scopes first. A transaction that holds a runner and then waits for a scope
would therefore be in a deadlock as soon as it meets one; here it is found without meeting any.
"""

import re
from collections.abc import Iterator

import sqlalchemy as sa

_UPDATED = re.compile(r"\bUPDATE (scopes|runners) ")
_SELECTED = re.compile(r"\bFROM (scopes|runners)\b")
_OF = re.compile(r" OF (\w+)")
_HELD = "locked so far"


class LockedTooLate(AssertionError):
    """A transaction waits for a scope while it holds a runner."""


def watch(engine: sa.Engine) -> None:
    """Fail every statement on this engine that locks scopes after runners."""
    sa.event.listen(engine, "begin", forget)
    sa.event.listen(engine, "savepoint", _keep)
    sa.event.listen(engine, "rollback_savepoint", _let_go)
    sa.event.listen(engine, "release_savepoint", _keep_all)
    sa.event.listen(engine, "before_cursor_execute", _note)


def forget(connection: sa.Connection) -> None:
    """Begin anew, for a test that does in one transaction what the product does in several."""
    connection.info[_HELD] = [set[str]()]


def _keep(connection: sa.Connection, _name: str) -> None:
    held = connection.info[_HELD]
    held.append(set(held[-1]))


def _keep_all(connection: sa.Connection, _name: str, _context: None) -> None:
    held = connection.info[_HELD]
    kept = held.pop()
    held[-1] |= kept


def _let_go(connection: sa.Connection, _name: str, _context: None) -> None:
    """Who goes back to a savepoint holds what was locked before it."""
    connection.info[_HELD].pop()


def _note(connection: sa.Connection, _cursor: object, statement: str, *_others: object) -> None:
    held: set[str] = connection.info.setdefault(_HELD, [set[str]()])[-1]
    wanted = locks(statement)
    if "scopes" in wanted and "runners" in held and "scopes" not in held:
        raise LockedTooLate(statement)
    held |= wanted


def locks(statement: str) -> set[str]:
    """Tell which of the two sorts of rows a statement locks, or changes."""
    changed = {found.group(1) for found in _UPDATED.finditer(statement)}
    return changed | {name for name in _selected(statement) if name in {"scopes", "runners"}}


def _selected(statement: str) -> Iterator[str]:
    """Name what each `FOR UPDATE` is about: the table it names, or the last one selected from."""
    before, *others = statement.split("FOR UPDATE")
    for after in others:
        named, tables = _OF.match(after), _SELECTED.findall(before)
        if named is not None:
            yield named.group(1)
        elif tables:
            yield tables[-1]
        before = after
