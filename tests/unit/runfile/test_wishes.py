import pytest

from forgeyard.errors import ForgeyardError
from forgeyard.model.wishes import MAX_KEYS, Preemptibility, SchedulingClass, Wishes
from forgeyard.runfile.compile import compile_run


def wishes(**parts: object) -> Wishes:
    return compile_run(document(**parts), fallback_name="run").jobs[0].wishes


def document(**parts: object) -> dict[str, object]:
    return {"jobs": {"lint": {"steps": [{"run": "true"}], **parts}}}


def refused(wanted: dict[str, object]) -> str | None:
    with pytest.raises(ForgeyardError) as caught:
        compile_run(wanted, fallback_name="run")
    assert caught.value.allowed
    return caught.value.field


def test_a_job_that_wishes_nothing_has_no_keys_and_is_never_stopped() -> None:
    assert wishes() == Wishes()


@pytest.mark.requirement("FAR-017")
@pytest.mark.parametrize("name", list(SchedulingClass))
def test_every_class_can_be_named(name: SchedulingClass) -> None:
    assert wishes(**{"class": name.value}).scheduling_class is name


def test_keys_and_preemption_are_read_in_short_and_in_long() -> None:
    assert wishes(exclusive="staging").keys == ("staging",)
    found = wishes(exclusive=["staging", "db"], preemption="restartable")
    assert found == Wishes(keys=("staging", "db"), preemption=Preemptibility.RESTARTABLE)


@pytest.mark.requirement("SPT-010")
def test_that_a_job_can_save_its_work_has_to_be_said() -> None:
    def checkpoint(**parts: object) -> bool:
        return compile_run(document(**parts), fallback_name="run").jobs[0].checkpoint

    assert checkpoint(checkpoint=True) is True
    assert checkpoint() is False
    assert checkpoint(preemption="restartable") is False
    assert refused(document(checkpoint="sometimes")) == "jobs.lint.checkpoint"


@pytest.mark.parametrize(
    ("connectivity", "offline"),
    [("continuous", 0), ("grace", None), ({"offline": "2h"}, 7_200_000)],
)
def test_a_job_says_how_long_it_may_run_on_without_the_server(
    connectivity: object, offline: int | None
) -> None:
    assert wishes(connectivity=connectivity) == Wishes(offline=offline)


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ({"class": "fast"}, "jobs.lint.class"),
        ({"exclusive": [str(n) for n in range(MAX_KEYS + 1)]}, "jobs.lint.exclusive"),
        ({"exclusive": ["a", "a"]}, "jobs.lint.exclusive"),
        ({"exclusive": ["a\nb"]}, "jobs.lint.exclusive.0"),
        ({"preemption": "often"}, "jobs.lint.preemption"),
        ({"connectivity": "sometimes"}, "jobs.lint.connectivity"),
        ({"connectivity": {"offline": "soon"}}, "jobs.lint.connectivity.offline"),
        ({"connectivity": {"offline": "31d"}}, "jobs.lint.connectivity.offline"),
        ({"connectivity": {"online": "1h"}}, "jobs.lint.connectivity.online"),
    ],
)
def test_a_wrong_wish_is_named(parts: dict[str, object], field: str) -> None:
    assert str(refused(document(**parts))).startswith(field)


@pytest.mark.parametrize("queue", ["main", "a/b/c", "a/b/c/d/e", "a//c/d", "a/b/c/-d", 7])
def test_a_queue_is_named_by_its_whole_path(queue: object) -> None:
    assert refused({**document(), "queue": queue}) == "queue"
    run = compile_run({**document(), "queue": "a/b/c/d"}, fallback_name="run")
    assert run.queue == "a/b/c/d"
