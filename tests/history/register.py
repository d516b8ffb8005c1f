"""A job as one register: which lease holds it, under which epoch, and how earlier ones ended.

What an operation may answer in which state is said once, in `step`; time is no part of it, so a
refusal for being late is always possible.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tests.history.entries import Entry

FREE, OFFERED, ACTIVE = "free", "offered", "active"
LIVE = (OFFERED, ACTIVE)
SMALL = 12
"""So many operations on one job can be searched through."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """One operation on one job, with what it was told."""

    entry: Entry
    kind: str
    lease: str
    epoch: int = 0
    answer: str = ""

    def told(self) -> str:
        """Describe it for a complaint."""
        said = f" → {self.answer}" if self.answer else ""
        return f"{self.entry.name} {self.kind} {self.lease} epoch {self.epoch}{said}"


@dataclass(frozen=True, kw_only=True)
class Register:
    """Where a job stands."""

    epoch: int = 0
    lease: str = ""
    phase: str = FREE
    won: bool = False
    ended: frozenset[tuple[str, int, str]] = frozenset()
    """Leases that ended by their holder's word, and by which."""


def events(entries: Sequence[Entry]) -> dict[str, list[Event]]:
    """Sort what concerns each job, in the order in which it was applied."""
    granted = {one.lease: one for entry in entries for one in entry.granted}
    found: dict[str, list[Event]] = {}
    for entry in entries:
        for event in _of(entry):
            job = granted[event.lease].job if event.lease in granted else f"of {event.lease}"
            if event.kind == "end" and event.lease in granted:
                event = replace(event, epoch=granted[event.lease].epoch)
            found.setdefault(job, []).append(event)
    return found


def _of(entry: Entry) -> Iterator[Event]:
    for one in entry.granted:
        yield Event(entry=entry, kind="grant", lease=one.lease, epoch=one.epoch)
    own = None
    if entry.op in ("accept", "reject", "progress", "complete"):
        answer = str(entry.result)
        if entry.op == "complete":
            answer = f"{answer} {entry.args['outcome']}"
        own = entry.args["lease"]
        yield Event(entry=entry, kind=entry.op, lease=own, epoch=entry.args["epoch"], answer=answer)
    if entry.op in ("renew", "renew_together") and isinstance(entry.result, list):
        for (lease, epoch), verdict in zip(entry.args["leases"], entry.result, strict=True):
            yield Event(entry=entry, kind="renew", lease=lease, epoch=epoch, answer=verdict)
    for one in entry.ended:
        if one.lease != own:
            yield Event(entry=entry, kind="end", lease=one.lease, answer=one.to)


def step(register: Register, event: Event) -> Register | None:
    """Tell the state after an operation that was told this; None if it cannot have been."""
    current = event.lease == register.lease and event.epoch == register.epoch
    phase = register.phase if current else FREE
    answer = event.answer.partition(" ")[0]
    match event.kind, answer:
        case "grant", _:
            possible = register.phase == FREE and not register.won
            if not possible or event.epoch <= register.epoch:
                return None
            return replace(register, epoch=event.epoch, lease=event.lease, phase=OFFERED)
        case "accept", "accepted":
            return replace(register, phase=ACTIVE) if phase in LIVE else None
        case ("renew", "renewed" | "cancel") | ("progress", "done"):
            return register if phase == ACTIVE else None
        case ("reject", "done") | ("complete", "accepted" | "duplicate_accepted"):
            return _said(register, event, phase)
        case "complete", "stale_rejected":
            return register if _how(event) not in register.ended else None
        case "end", _:
            return replace(register, phase=FREE) if phase in LIVE else None
    return register


def _said(register: Register, event: Event, phase: str) -> Register | None:
    """End a lease by its holder's word, or recognise that it ended by the same word before."""
    answer, _, outcome = event.answer.partition(" ")
    how = _how(event)
    if phase == (OFFERED if event.kind == "reject" else ACTIVE) and answer != "duplicate_accepted":
        won = outcome == "succeeded"
        return replace(register, phase=FREE, won=won, ended=register.ended | {how})
    return register if how in register.ended and answer != "accepted" else None


def _how(event: Event) -> tuple[str, int, str]:
    return event.lease, event.epoch, event.answer.partition(" ")[2] or event.kind


def explained(happenings: Sequence[Event]) -> Event | None:
    """Follow a job in the order applied, once as if each unknown call happened, once as if not.

    Return the first event that no such world explains.
    """
    worlds = {Register()}
    for event in happenings:
        following = {after for world in worlds if (after := step(world, event)) is not None}
        if event.entry.happened is None:
            following |= worlds
        if not following:
            return event
        worlds = following
    return None


def is_linearizable(happenings: Sequence[Event]) -> bool:
    """Search for an order that explains all answers and contradicts no clock (Wing and Gong).

    It looks only at when each call was made and answered. One whose end nobody saw may come at any
    time after it was made, or never.
    """
    assert len(happenings) <= SMALL
    must = sum(1 << n for n, one in enumerate(happenings) if one.entry.happened)
    seen: set[tuple[int, Register]] = set()
    line = [(0, Register())]
    while line:
        done, register = line.pop()
        if done & must == must:
            return True
        if (done, register) in seen:
            continue
        seen.add((done, register))
        open_ = [n for n in range(len(happenings)) if not done >> n & 1]
        bounds = [happenings[n].entry.returned or 0 for n in open_ if happenings[n].entry.happened]
        for n in open_:
            if happenings[n].entry.invoked <= min(bounds):
                after = step(register, happenings[n])
                if after is not None:
                    line.append((done | 1 << n, after))
    return False
