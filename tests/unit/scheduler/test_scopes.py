from random import Random

import pytest

from forgeyard.scheduler.scopes import ROOT, Charge, SchedulingScope, Tags

PATH = ("tnt", "org", "prj", "que")


def a_tree(**weights: int) -> dict[str, SchedulingScope]:
    return {
        name: SchedulingScope(scope_id=name, name=name, weight=weights.get(name, 1))
        for name in (ROOT, *PATH, "other")
    }


def starts(tags: Tags) -> list[int]:
    """Tell when each scope of the path would start next: all that a tag decides."""
    parents = (ROOT, *PATH)
    return [tags.start(scope_id, parent) for parent, scope_id in zip(parents, PATH, strict=False)]


@pytest.mark.requirement("FAR-019")
@pytest.mark.requirement("TST-002")
def test_service_is_counted_to_every_scope_of_the_path_by_its_weight() -> None:
    tags = Tags(a_tree(tnt=4, que=2))
    tags.charge(PATH, 1_000)
    assert [tags.finish[name] for name in PATH] == [250_000, 1_000_000, 1_000_000, 500_000]
    assert tags.finish["other"] == 0


def test_whoever_was_idle_starts_where_its_rivals_are() -> None:
    tags = Tags(a_tree())
    for _ in range(5):
        tags.charge(("other",), 1_000)
    assert tags.start("tnt", ROOT) == 4_000_000


def test_a_refund_restores_every_tag_even_if_weights_changed_meanwhile() -> None:
    before = Tags(a_tree())
    before.charge(PATH, 700)
    tags = Tags(a_tree())
    tags.charge(PATH, 700)
    charges = tags.charge(PATH, 1_300)
    heavier = {
        name: SchedulingScope(
            scope_id=name,
            name=name,
            weight=9,
            finish_tag=tags.finish[name],
            clock=tags.clock[name],
        )
        for name in (ROOT, *PATH)
    }
    after = Tags(heavier)
    after.refund(PATH, charges)
    assert {name: after.finish[name] for name in PATH} == {n: before.finish[n] for n in PATH}
    assert {name: after.clock[name] for name in PATH} == {n: before.clock[n] for n in PATH}


def test_refunds_in_any_order_leave_nobody_better_or_worse_off() -> None:
    for seed in range(200):
        rng = Random(seed)
        tags = Tags(a_tree(tnt=rng.randint(1, 5), que=rng.randint(1, 5)))
        for _ in range(rng.randint(0, 3)):
            tags.charge(PATH, rng.randint(100, 4_000))
        expected = starts(tags)
        charged = [tags.charge(PATH, rng.randint(100, 4_000)) for _ in range(rng.randint(1, 4))]
        rng.shuffle(charged)
        for charges in charged:
            tags.refund(PATH, charges)
        assert starts(tags) == expected, f"seed {seed}"


def test_after_a_refund_no_clock_stays_ahead_of_whoever_waits_again() -> None:
    tags = Tags(a_tree())
    tags.charge(PATH, 1_000)
    charges = tags.charge(PATH, 1_000)
    for _ in range(3):
        tags.charge(("other",), 1_000)
    assert tags.clock[ROOT] == 3_000_000
    tags.refund(PATH, charges)
    assert tags.clock[ROOT] == tags.start("tnt", ROOT) == 1_000_000
    assert charges[0] == Charge(price=1_000_000, start=1_000_000, before=0)
