"""What no history of the store may show, each rule in one pass over it.

A call whose end nobody saw counts where it must have happened, and never where that would make it a
culprit: what remains is wrong in every possible world.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tests.history.entries import BROKE, DIMENSIONS, RAISED, Entry, Granted, certain, lasting, read
from tests.history.register import SMALL, events, explained, is_linearizable

Rule = Callable[[Sequence[Entry]], Iterator[str]]
_NOT_SETTLED_NOW = ("settled before", "not ended")


def epochs_grow(entries: Sequence[Entry]) -> Iterator[str]:
    """The epochs of a job strictly increase."""
    newest: dict[str, int] = {}
    for entry in certain(entries):
        for one in entry.granted:
            before = newest.get(one.job, 0)
            if one.epoch <= before:
                yield f"{entry.name}: {one.job} was granted epoch {one.epoch} after {before}"
            newest[one.job] = max(one.epoch, before)


def only_the_last_grant_is_accepted(entries: Sequence[Entry]) -> Iterator[str]:
    """Nobody gets a lease who does not name the last grant of its job, and its epoch."""
    job_of: dict[str, str] = {}
    last: dict[str, Granted] = {}
    for entry in certain(entries):
        for one in entry.granted:
            job_of[one.lease], last[one.job] = one.job, one
        if entry.op == "accept" and entry.result == "accepted":
            lease, epoch = entry.args["lease"], entry.args["epoch"]
            grant = last.get(job_of.get(lease, ""))
            if grant is None or (grant.lease, grant.epoch) != (lease, epoch):
                yield f"{entry.told()}, but the last grant is {grant}"


def intervals_are_disjoint(entries: Sequence[Entry]) -> Iterator[str]:
    """A job has one live lease at a time, and a lease ends once."""
    live: dict[str, str] = {}
    job_of: dict[str, str] = {}
    ended: dict[str, str] = {}
    for entry in certain(entries):
        for end in entry.ended:
            if entry.happened:
                if end.lease in ended:
                    yield f"{entry.name}: {end.lease} ended again, after {ended[end.lease]}"
                ended[end.lease] = entry.name
            job = job_of.get(end.lease, "")
            if live.get(job) == end.lease:
                del live[job]
        for one in entry.granted:
            if one.job in live:
                yield f"{entry.name}: {one.job} got {one.lease} beside {live[one.job]}"
            live[one.job], job_of[one.lease] = one.lease, one.job


def capacity_holds(entries: Sequence[Entry]) -> Iterator[str]:
    """No runner is given more than it has, in any dimension."""
    load: dict[str, list[int]] = {}
    held: dict[str, Granted] = {}
    for entry in certain(entries):
        for end in entry.ended:
            one = held.pop(end.lease, None)
            if one is not None:
                load[one.runner] = _sums(load[one.runner], one, -1)
        for one in entry.granted:
            held[one.lease] = one
            load[one.runner] = _sums(load.get(one.runner, [0] * len(DIMENSIONS)), one, 1)
            sums = zip(DIMENSIONS, load[one.runner], one.capacity, strict=True)
            for name, total, most in sums:
                if total > most:
                    yield f"{entry.name}: {one.runner} holds {total} {name} of {most}"


def _sums(before: list[int], one: Granted, sign: int) -> list[int]:
    return [total + sign * amount for total, amount in zip(before, one.amounts, strict=True)]


def the_same_key_gives_the_same_answer(entries: Sequence[Entry]) -> Iterator[str]:
    """A cycle, a submission, a completion and a settlement that come twice count once."""
    known: dict[tuple[str, Any], tuple[object, bool, str]] = {}
    for entry in entries:
        keyed = _keyed(entry) if entry.happened else None
        if keyed is None:
            continue
        key, answer, is_first = keyed
        before = known.setdefault(key, (answer, is_first, entry.name))
        if before[2] == entry.name:
            continue
        if before[0] != answer or (before[1] and is_first):
            yield f"{entry.told()}, but {before[2]} was told {before[0]}"
        known[key] = (answer, is_first or before[1], entry.name)


def _keyed(entry: Entry) -> tuple[tuple[str, Any], object, bool] | None:
    """Tell by which key a call may be repeated, its answer, and whether it took effect now."""
    args, result = entry.args, entry.result
    if isinstance(result, str) and result.startswith((RAISED, BROKE)):
        return None
    match entry.op:
        case "commit_cycle":
            return ("cycle", args["cycle"]), result["verdicts"], not result["repeated"]
        case "submit" if args["key"] is not None:
            return ("submission", args["key"]), result["run_id"], result["created"]
        case "complete" if result.endswith("accepted"):
            # A lapsed lease is refused, and lives again if the outage of renewals was ours.
            key = (args["lease"], args["epoch"])
            return ("completion", key), args["outcome"], result == "accepted"
        case "settle" if not result["decision"].startswith(_NOT_SETTLED_NOW):
            return ("settlement", args["attempt"]), result["attempt_state"], True
    return None


def an_end_frees_its_runner(entries: Sequence[Entry]) -> Iterator[str]:
    """A completion or a rejection that took effect has ended its lease in the same transaction."""
    ended: set[str] = set()
    for entry in entries:
        ended |= {end.lease for end in entry.ended}
        took = (entry.op, entry.result) in (("complete", "accepted"), ("reject", "done"))
        if took and entry.args["lease"] not in ended:
            yield f"{entry.told()}, but its lease lives"


def answers_are_explained(entries: Sequence[Entry]) -> Iterator[str]:
    """Every answer fits what happened before; what is unknown happened or did not, never both."""
    for job, happenings in events(entries).items():
        event = explained(happenings)
        if event is not None:
            yield f"{job}: nothing explains {event.told()}"


def small_histories_are_linearizable(entries: Sequence[Entry]) -> Iterator[str]:
    """Some order of the calls on a job explains all their answers and fits all clocks."""
    for job, happenings in events(entries).items():
        if len(happenings) <= SMALL and not is_linearizable(happenings):
            yield f"{job}: no order explains {'; '.join(one.told() for one in happenings)}"


def only_what_was_foreseen_is_refused(entries: Sequence[Entry]) -> Iterator[str]:
    """No call got so far that only a last defence stopped it, such as a table of transitions."""
    for entry in entries:
        if isinstance(entry.result, str) and entry.result.startswith(BROKE):
            yield entry.told()


RULES: Final[Sequence[Rule]] = (
    epochs_grow,
    only_the_last_grant_is_accepted,
    intervals_are_disjoint,
    capacity_holds,
    the_same_key_gives_the_same_answer,
    an_end_frees_its_runner,
    answers_are_explained,
    small_histories_are_linearizable,
    only_what_was_foreseen_is_refused,
)


def complaints(entries: Sequence[Entry]) -> dict[str, list[str]]:
    """Name the rules that a history breaks, and how."""
    kept = lasting(entries)
    told = {rule.__name__: list(rule(kept)) for rule in RULES[:-1]}
    told[only_what_was_foreseen_is_refused.__name__] = list(
        only_what_was_foreseen_is_refused(entries)
    )
    return {name: lines for name, lines in told.items() if lines}


def demand_consistent(folder: Path) -> list[Entry]:
    """Insist that what was recorded in a folder breaks no rule; return it."""
    entries = read(folder)
    broken = complaints(entries)
    told = [f"{name}: {line}" for name, lines in broken.items() for line in lines]
    assert not told, "\n".join(told[:50])
    return entries


def summary(entries: Sequence[Entry]) -> str:
    """Say how much there was to check."""
    grants = sum(len(entry.granted) for entry in entries)
    unknown = sum(1 for entry in entries if entry.happened is None)
    return f"{len(entries)} calls, {grants} grants, {unknown} unknown"
