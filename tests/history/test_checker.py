"""Each rule of the checker complains of histories that break it, and only of them."""

from dataclasses import replace
from typing import Any

import pytest

from tests.history.checker import complaints
from tests.history.entries import Ended, Entry, Granted


class Story:
    """Writes entries one after the other."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.clock = 0

    def add(self, op: str, result: object, **told: Any) -> "Story":
        self.clock += 10
        now = self.clock
        entry = Entry(
            name=f"t/{len(self.entries)}",
            actor="t",
            op=op,
            invoked=now,
            applied=now + 1,
            returned=now + 2,
            result=result,
        )
        self.entries.append(replace(entry, **told))
        return self

    def grant(self, lease: str = "l1", *, epoch: int = 1, **told: Any) -> "Story":
        given = {"job": "j", "runner": "r", "session": "s", "amounts": (1, 0, 0, 1)}
        own = {key: told.pop(key) for key in list(told) if key in Granted.__dataclass_fields__}
        one = Granted(
            lease=lease,
            attempt=f"a-{lease}",
            epoch=epoch,
            capacity=(1, 0, 0, 1),
            **{**given, **own},
        )
        verdicts = [[one.job, "granted"]]
        result = {"granted": 1, "verdicts": verdicts, "repeated": False}
        args = {"cycle": len(self.entries)}
        return self.add("commit_cycle", result, granted=(one,), **{"args": args, **told})

    def ask(
        self, op: str, result: object, lease: str = "l1", *, epoch: int = 1, **told: Any
    ) -> "Story":
        args = {"lease": lease, "epoch": epoch, "session": "s"}
        if op == "complete":
            args["outcome"] = told.pop("outcome", "succeeded")
            if result == "accepted":
                told = {"ended": (Ended(lease=lease, to="released"),), **told}
        if (op, result) == ("reject", "done"):
            told = {"ended": (Ended(lease=lease, to="rejected"),), **told}
        return self.add(op, result, **{"args": args, **told})

    def expire(self, lease: str = "l1", **told: Any) -> "Story":
        return self.add(
            "expire", True, args={"lease": lease}, ended=(Ended(lease=lease, to="expired"),), **told
        )

    def broken(self) -> set[str]:
        return set(complaints(self.entries))


def accepted() -> Story:
    return Story().grant().ask("accept", "accepted")


REGISTER = {"answers_are_explained", "small_histories_are_linearizable"}
"""Both judge by the register of one job, in different ways."""


def test_a_history_without_fault_breaks_no_rule() -> None:
    story = accepted().ask("renew", ["renewed"], args={"session": "s", "leases": [["l1", 1]]})
    story.expire().ask("complete", "stale_rejected")
    story.grant("l2", epoch=2).ask("reject", "done", "l2", epoch=2)
    story.ask("reject", "done", "l2", epoch=2, ended=()).grant("l3", epoch=3)
    story.ask("accept", "accepted", "l3", epoch=3).ask("progress", "done", "l3", epoch=3)
    story.ask("complete", "accepted", "l3", epoch=3)
    story.ask("complete", "duplicate_accepted", "l3", epoch=3)
    assert story.broken() == set()


def test_an_epoch_given_twice_is_found() -> None:
    story = Story().grant().expire().grant("l2", epoch=1)
    assert story.broken() == {"epochs_grow", *REGISTER}


def test_the_acceptance_of_an_earlier_grant_is_found() -> None:
    story = Story().grant().expire().grant("l2", epoch=2).ask("accept", "accepted")
    assert story.broken() == {"only_the_last_grant_is_accepted", *REGISTER}


def test_the_acceptance_of_what_was_never_granted_is_found() -> None:
    assert "only_the_last_grant_is_accepted" in Story().ask("accept", "accepted").broken()


def test_a_job_granted_while_its_lease_lives_is_found() -> None:
    story = Story().grant().grant("l2", epoch=2, runner="other")
    assert story.broken() == {"intervals_are_disjoint", *REGISTER}


def test_a_lease_that_ends_twice_is_found() -> None:
    assert Story().grant().expire().expire().broken() == {"intervals_are_disjoint", *REGISTER}


@pytest.mark.parametrize("amounts", [(2, 0, 0, 1), (1, 1, 0, 1), (1, 0, 1, 1), (1, 0, 0, 2)])
def test_a_runner_given_too_much_is_found_in_every_dimension(amounts: tuple[int, ...]) -> None:
    assert Story().grant(amounts=amounts).broken() == {"capacity_holds"}


def test_a_runner_given_two_jobs_that_fit_only_one_by_one_is_found() -> None:
    story = Story().grant().grant("l2", job="other")
    assert story.broken() == {"capacity_holds"}
    assert Story().grant().expire().grant("l2", job="other").broken() == set()


def test_a_cycle_with_two_answers_is_found() -> None:
    story = Story().grant(args={"cycle": 1})
    again = {"granted": 0, "verdicts": [["j", "job_gone"]], "repeated": True}
    story.add("commit_cycle", again, args={"cycle": 1})
    assert story.broken() == {"the_same_key_gives_the_same_answer"}


def test_a_submission_that_starts_two_runs_is_found() -> None:
    first, second = ({"run_id": run_id, "created": True} for run_id in ("r1", "r2"))
    story = Story().add("submit", first, args={"key": "k"})
    assert story.broken() == set()
    story.add("submit", second, args={"key": "k"})
    assert story.broken() == {"the_same_key_gives_the_same_answer"}


def test_a_completion_that_counts_twice_is_found() -> None:
    story = accepted().ask("complete", "accepted").ask("complete", "accepted")
    assert "the_same_key_gives_the_same_answer" in story.broken()
    assert story.broken() >= REGISTER


def test_an_attempt_settled_twice_is_found() -> None:
    decided = {"attempt_state": "lost", "job_state": "eligible", "decision": "try again at once"}
    story = accepted().expire()
    story.add("settle", decided, args={"attempt": "a-l1"})
    assert story.broken() == set()
    story.add("settle", decided, args={"attempt": "a-l1"})
    assert story.broken() == {"the_same_key_gives_the_same_answer"}


def test_a_completion_that_frees_nothing_is_found() -> None:
    story = accepted().ask("complete", "accepted", ended=())
    assert story.broken() == {"an_end_frees_its_runner"}


def test_a_renewal_of_a_lease_that_ended_is_found() -> None:
    story = accepted().expire()
    story.add("renew", ["renewed"], args={"session": "s", "leases": [["l1", 1]]})
    assert story.broken() == REGISTER


def test_a_late_result_that_counts_is_found() -> None:
    story = accepted().expire().grant("l2", epoch=2).ask("complete", "accepted")
    assert story.broken() == {"intervals_are_disjoint", *REGISTER}


def test_a_job_granted_after_its_success_is_found() -> None:
    story = accepted().ask("complete", "accepted").grant("l2", epoch=2)
    assert story.broken() == REGISTER


def test_what_is_unknown_may_have_happened_or_not() -> None:
    unknown = {"happened": None, "returned": None}
    for answer in ("accepted", "duplicate_accepted"):
        story = accepted().ask("complete", "accepted", **unknown).ask("complete", answer)
        assert story.broken() == set()
    assert Story().grant(**unknown).grant("l2").broken() == set()
    assert Story().grant(**unknown).expire().grant("l2", epoch=2).broken() == set()


def test_what_is_unknown_never_both_happened_and_did_not() -> None:
    unknown = {"happened": None, "returned": None}
    story = accepted().ask("complete", "accepted", **unknown)
    story.add("renew", ["renewed"], args={"session": "s", "leases": [["l1", 1]]})
    assert story.broken() == set()
    story.ask("complete", "duplicate_accepted")
    # Clocks alone would let what nobody saw the end of take effect after the renewal.
    assert story.broken() == {"answers_are_explained"}


def test_an_unknown_grant_that_somebody_saw_counts() -> None:
    unknown = {"happened": None, "returned": None}
    story = Story().grant(**unknown).ask("accept", "accepted").grant("l2", epoch=1)
    assert story.broken() == {"epochs_grow", "intervals_are_disjoint", "capacity_holds", *REGISTER}


def test_calls_at_the_same_time_may_have_come_in_any_order_but_others_may_not() -> None:
    """The search trusts clocks alone: it knows of no order beyond that of calls and answers."""
    story = accepted().ask("complete", "duplicate_accepted").ask("complete", "accepted")
    assert story.broken() == REGISTER
    first, second = story.entries[-2:]
    story.entries[-2:] = [replace(first, returned=second.returned), second]
    assert story.broken() == {"answers_are_explained"}
