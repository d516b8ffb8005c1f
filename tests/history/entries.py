"""A history: what every component asked of the store, when, what it was told, and what came of it.

A process appends to a file of its own, three lines for each call: that it was made, what it did
(within its transaction, while its locks were held), and how that transaction ended. A process that
dies leaves out the last ones, and a call whose transaction may have been committed is unknown.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

DIMENSIONS = ("cpu_milli", "memory_bytes", "disk_bytes", "slots")
RAISED, BROKE = "raised ", "broke "
"""How results begin that are errors: of the caller or of a database that is gone, and of ours."""


@dataclass(frozen=True, kw_only=True)
class Granted:
    """A lease as SQL held it within the transaction that made it."""

    lease: str
    attempt: str
    job: str
    runner: str
    session: str
    epoch: int
    amounts: tuple[int, ...] = (0, 0, 0, 0)
    """What the job asks for, in the order of `DIMENSIONS`."""
    capacity: tuple[int, ...] = (0, 0, 0, 0)
    """What the runner could give away at that moment, were it empty."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A lease that let go of its runner."""

    lease: str
    to: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One call.

    `applied` is when its function returned: it still held the locks of what it changed, so that of
    two calls on one lease the one that was applied first also took effect first.
    """

    name: str
    actor: str
    op: str
    invoked: int
    applied: int
    returned: int | None = None
    """When the end of its transaction was known; nothing if nobody lived to know it."""
    happened: bool | None = True
    """Whether it was committed; None if nobody can tell."""
    args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    result: Any = None
    granted: tuple[Granted, ...] = ()
    ended: tuple[Ended, ...] = ()

    def told(self) -> str:
        """Describe it in one line."""
        certainty = {True: "", None: " (unknown)", False: " (rolled back)"}[self.happened]
        return f"{self.name} {self.op}{dict(self.args)} → {self.result}{certainty}"


def read(folder: Path) -> list[Entry]:
    """Read what every process of a folder wrote, in the order in which it was applied.

    A call that never came to its end changed nothing and is left out.
    """
    entries = [entry for file in sorted(folder.glob("*.jsonl")) for entry in _of(file)]
    return sorted(entries, key=lambda entry: (entry.applied, entry.name))


def _of(file: Path) -> Iterable[Entry]:
    calls: dict[str, dict[str, Any]] = {}
    *whole, torn = file.read_text().split("\n")
    for line in map(json.loads, whole):
        calls.setdefault(line.pop("name"), {"actor": file.stem}).update(line)
    # Whoever dies while it writes a line has not begun to commit what the line tells.
    assert "\n" not in torn
    for name, call in calls.items():
        if "applied" not in call:
            continue
        call.setdefault("happened", None)
        granted = tuple(
            Granted(**{**one, **{key: tuple(one[key]) for key in ("amounts", "capacity")}})
            for one in call.pop("granted")
        )
        ended = tuple(Ended(**one) for one in call.pop("ended"))
        yield Entry(name=name, granted=granted, ended=ended, **call)


def lasting(entries: Sequence[Entry]) -> list[Entry]:
    """Leave out what was rolled back: it changed nothing, and nobody was told of it."""
    return [entry for entry in entries if entry.happened is not False]


def certain(entries: Sequence[Entry]) -> list[Entry]:
    """Leave of the unknown calls what nobody could take for a culprit.

    A cycle counts as committed if anybody has seen one of its leases, and an end as an end.
    """
    seen = {lease for entry in entries if entry.happened for lease in _leases_seen(entry)}
    return [
        entry
        if entry.happened or any(one.lease in seen for one in entry.granted)
        else replace(entry, granted=())
        for entry in entries
    ]


def _leases_seen(entry: Entry) -> Iterable[str]:
    yield from (end.lease for end in entry.ended)
    if entry.op in ("accept", "reject", "progress", "complete"):
        yield entry.args["lease"]
