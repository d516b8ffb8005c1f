import pytest

from forgeyard.model.policy import BackfillPolicy, SchedulingPolicy
from forgeyard.model.units import Millis
from forgeyard.scheduler.holds import (
    BackfillWish,
    HeldRoom,
    HoldKind,
    Holds,
    earliest,
    when_free,
)
from forgeyard.scheduler.place import plan
from forgeyard.scheduler.snapshot import SchedulingJob
from tests.scheduling import MINUTE, NOW, a_job, a_runner, a_snapshot, amounts

WHOLE = amounts(cpu=4_000, memory_gib=4, disk_gib=4, slots=4)
HALF = amounts(cpu=2_000, memory_gib=2, disk_gib=2, slots=2)
POLICY = SchedulingPolicy(backfill=BackfillPolicy(after=Millis(MINUTE)))
BIG = a_job("big", resources=WHOLE, eligible_at=NOW - 5 * MINUTE, lasts=60 * MINUTE)


def held_for(job: SchedulingJob, runner: str = "linux-1", **changed: object) -> HeldRoom:
    values: dict[str, object] = {
        "job_id": job.job_id,
        "kind": HoldKind.BACKFILL,
        "partition": "default",
        "runner_id": f"rnr_{runner}",
        "room": job.resources,
        "since": NOW,
        "deadline": NOW + 10 * MINUTE,
        **changed,
    }
    return HeldRoom(**values)  # type: ignore[arg-type]


def placed(*jobs: SchedulingJob, hold: HeldRoom | None = None) -> dict[str, str]:
    world = a_snapshot(jobs, [a_runner(reserved=HALF)], held_room=(hold,) if hold else ())
    return {one.job_id: one.candidates[0][0] for one in plan(world, POLICY).decisions}


@pytest.mark.requirement("FAR-026")
def test_the_oldest_job_that_waited_long_for_room_gets_the_emptiest_runners_as_choice() -> None:
    runners = [a_runner("full", reserved=WHOLE), a_runner("half", reserved=HALF)]
    younger = a_job("younger", resources=WHOLE, eligible_at=NOW - 2 * MINUTE)
    made = plan(a_snapshot([younger, BIG], runners), POLICY)
    assert made.backfill == BackfillWish(
        job_id="job_big", resources=WHOLE, runners=("rnr_half", "rnr_full")
    )


def test_a_job_that_has_not_waited_long_enough_holds_nothing() -> None:
    fresh = a_job("fresh", resources=WHOLE, eligible_at=NOW - MINUTE + 1)
    assert plan(a_snapshot([fresh], [a_runner(reserved=HALF)]), POLICY).backfill is None


def test_no_room_is_held_where_the_job_could_never_run_or_nobody_takes_work() -> None:
    small, away = a_runner("small", total=HALF), a_runner("away", session_id=None)
    assert plan(a_snapshot([BIG], [small, away]), POLICY).backfill is None


def test_others_leave_held_room_alone_unless_they_are_over_in_time() -> None:
    hold = held_for(BIG)
    brief = a_job("brief", lasts=10 * MINUTE)
    long = a_job("long", lasts=10 * MINUTE + 1)
    assert placed(BIG, long, hold=hold) == {}
    assert placed(BIG, brief, hold=hold) == {"job_brief": "rnr_linux-1"}
    assert placed(BIG, long) == {"job_long": "rnr_linux-1"}


def test_nobody_borrows_what_victims_left_for_an_urgent_job() -> None:
    hold = held_for(BIG, kind=HoldKind.NOMINATION)
    assert placed(BIG, a_job("brief", lasts=1), hold=hold) == {}


def test_the_holder_itself_uses_its_room_and_frees_what_it_does_not_need() -> None:
    hold = held_for(BIG, room=WHOLE)
    small = a_job("big", resources=amounts(), eligible_at=NOW - 5 * MINUTE)
    later = a_job("later", lasts=60 * MINUTE)
    assert set(placed(small, later, hold=hold)) == {"job_big", "job_later"}


def test_a_hold_that_stands_keeps_its_runner_and_one_that_serves_no_more_is_chosen_anew() -> None:
    runners = [a_runner("full", reserved=WHOLE), a_runner("half", reserved=HALF)]
    stands = a_snapshot([BIG], runners, held_room=(held_for(BIG, "full"),))
    kept = plan(stands, POLICY).backfill
    assert kept is not None
    assert kept.runners == ("rnr_full",)
    gone = a_snapshot([BIG], runners, held_room=(held_for(BIG, "left"),))
    chosen = plan(gone, POLICY).backfill
    assert chosen is not None
    assert chosen.runners == ("rnr_half", "rnr_full")


def test_room_is_sure_when_the_last_reservation_it_needs_is_over() -> None:
    releases = [(NOW + 3, HALF), (NOW + 1, amounts()), (NOW + 9, WHOLE)]
    assert when_free(HALF, HALF, releases) == 0
    assert when_free(WHOLE, HALF, releases) == NOW + 3
    assert when_free(amounts(cpu=99_000), HALF, releases) is None


def test_the_runner_with_sure_room_first_is_chosen_and_the_first_listed_among_equals() -> None:
    wish = BackfillWish(job_id="j", resources=WHOLE, runners=("a", "b", "c", "gone"))
    free = dict.fromkeys(("a", "b", "c"), HALF)
    releases = {"a": ((NOW + 9, HALF),), "b": ((NOW + 5, HALF),), "c": ((NOW + 5, HALF),)}
    assert earliest(wish, free, releases) == ("b", NOW + 5)
    assert earliest(wish, free, {}) is None


def test_dissolving_ends_every_hold_of_a_job_and_no_other() -> None:
    other = a_job("other", resources=HALF)
    holds = Holds([held_for(BIG), held_for(BIG, "b"), held_for(other)], NOW)
    assert len(holds.dissolve("job_big")) == 2
    assert holds.on("rnr_linux-1") == HALF


def cycles_until_big(policy: SchedulingPolicy, limit: int) -> int | None:
    """Feed a half-busy runner with endless small jobs of three minutes; wait for the big one.

    What the store does with a plan is done here by the same pure functions.
    """
    small_lasts, running, hold = 3 * MINUTE, [NOW + MINUTE, NOW + 2 * MINUTE], None
    small = amounts(cpu=2_000, memory_gib=2, disk_gib=2, slots=2)
    for cycle in range(limit):
        now = NOW + cycle * MINUTE
        running = [end for end in running if end > now]
        big = a_job("big", resources=WHOLE, eligible_at=NOW, lasts=60 * MINUTE)
        fresh = [
            a_job(f"s{cycle}_{n}", resources=small, eligible_at=NOW - 9 * MINUTE, lasts=small_lasts)
            for n in range(3)
        ]
        reserved = amounts(
            cpu=2_000 * len(running),
            memory_gib=2 * len(running),
            disk_gib=2 * len(running),
            slots=2 * len(running),
        )
        runner = a_runner(total=WHOLE, reserved=reserved)
        world = a_snapshot([big, *fresh], [runner], taken_at=now, held_room=(hold,) if hold else ())
        made = plan(world, policy)
        won = [one.job_id for one in made.decisions]
        if "job_big" in won:
            return cycle
        running += [now + small_lasts for _ in won]
        if made.backfill is not None and hold is None:
            releases = [(end, small) for end in running]
            at = when_free(WHOLE, WHOLE.minus(reserved), releases)
            assert at is not None
            hold = held_for(big, since=now, deadline=max(now, at))
    return None


@pytest.mark.requirement("FAR-022", "FAR-026")
def test_small_jobs_never_starve_a_large_one_for_longer_than_what_runs_beside_it() -> None:
    waited = cycles_until_big(POLICY, limit=40)
    assert waited is not None
    # One minute until room is held, three until what runs then is over, a cycle of slack.
    assert waited <= 6


def test_without_backfill_rows_the_same_large_job_starves() -> None:
    never = SchedulingPolicy(backfill=BackfillPolicy(after=Millis(86_400_000)))
    assert cycles_until_big(never, limit=40) is None
