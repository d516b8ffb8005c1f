"""A job with a matrix becomes ordinary jobs, or one complaint about a place in the file."""

import json

import jsonschema
import pytest

from forgeyard.errors import ForgeyardError, InvalidRunFile
from forgeyard.model.capability import Platform
from forgeyard.model.job import JobSpec, MatrixCell
from forgeyard.model.run import Concurrency, RunSpec
from forgeyard.runfile import publish
from forgeyard.runfile.compile import compile_run
from forgeyard.runfile.load import check, parse

STEPS = [{"run": "true"}]
FILE = """\
jobs:
  test:
    strategy:
      matrix:
        python: ["3.11", "3.12"]
        os: [linux, macos]
        exclude: [{python: "3.11", os: macos}]
        include: [{python: "3.13", os: linux, extra: "yes"}]
      max-parallel: 2
    requires:
      platform: ${{ matrix.os }}
      toolchains: {python: "==${{ matrix.python }}.*"}
    steps:
      - run: tox -e py${{matrix.python}} ${{ matrix.extra }}
  report:
    needs: test
    if: always
    steps: [{run: make report}]
"""


def compiled(**jobs: object) -> RunSpec:
    """Compile a run of these jobs."""
    return compile_run({"jobs": jobs}, fallback_name="run")


def a_matrix(matrix: object, *, strategy: object = None, **parts: object) -> dict[str, object]:
    """Write a job with a matrix."""
    return {"strategy": {"matrix": matrix, **(strategy or {})}, "steps": STEPS, **parts}


def names(run: RunSpec) -> list[str]:
    """List the jobs."""
    return [job.name for job in run.jobs]


def complaint(job: object, **others: object) -> ForgeyardError:
    """Compile a run that must be refused for its job `test`."""
    with pytest.raises(ForgeyardError) as caught:
        compiled(test=job, **others)
    return caught.value


@pytest.mark.requirement("FAR-031")
def test_the_cells_of_a_matrix_are_ordinary_jobs() -> None:
    run = check(parse(FILE, file="run.yaml"), "run")
    cells = ["test-3.11-linux", "test-3.12-linux", "test-3.12-macos", "test-3.13-linux"]
    assert names(run) == [*cells, "report"]
    assert run.jobs[-1].needs == tuple(cells)
    last = run.jobs[3]
    assert last.matrix == MatrixCell(
        of="test", values={"python": "3.13", "os": "linux", "extra": "yes"}, max_parallel=2
    )
    assert (last.requires.platform, last.steps[0].run) == (Platform.LINUX, "tox -e py3.13 yes")
    # What the scheduler and the agent see of a cell is what they would see of a job written out.
    plain = compiled(
        written={
            "requires": {"platform": "linux", "toolchains": {"python": "==3.13.*"}},
            "steps": [{"run": "tox -e py3.13 yes"}],
        }
    ).jobs[0]
    assert (last.requires, last.resources, last.steps) == (
        plain.requires,
        plain.resources,
        plain.steps,
    )


def test_a_value_that_only_other_cells_have_is_empty() -> None:
    run = check(parse(FILE, file="run.yaml"), "run")
    assert run.jobs[0].steps[0].run == "tox -e py3.11 "


def test_values_reach_every_text_but_no_key() -> None:
    (job,) = compiled(
        test=a_matrix(
            {"n": [8]},
            env={"N": "${{ matrix.n }}"},
            resources={"cpu": "${{matrix.n}}00m"},
            outputs={"n": "dist/${{ matrix.n }}"},
            timeouts={"execution": "${{ matrix.n }}m"},
        )
    ).jobs
    assert (job.env, job.resources.cpu, job.outputs[0].path) == ({"N": "8"}, 800, "dist/8")
    assert job.timeouts.execution == 480_000


def test_numbers_and_booleans_are_written_as_the_file_writes_them() -> None:
    run = compiled(test=a_matrix({"n": [3, True, "x y/z"]}))
    assert [job.matrix.values["n"] for job in run.jobs if job.matrix] == ["3", "true", "x y/z"]
    assert names(run) == ["test-3", "test-true", "test-x_y_z"]


def test_a_cell_may_need_its_counterpart() -> None:
    run = compiled(
        build=a_matrix({"os": ["linux", "macos"]}),
        test=a_matrix({"os": ["linux", "macos"]}, needs="build-${{ matrix.os }}"),
        after={"needs": ["test-linux", "build"], "steps": STEPS},
    )
    needs = {job.name: job.needs for job in run.jobs}
    assert needs["test-macos"] == ("build-macos",)
    assert needs["after"] == ("test-linux", "build-linux", "build-macos")


def test_only_included_cells_are_named_after_all_their_values() -> None:
    run = compiled(test=a_matrix({"include": [{"cc": "gcc", "v": 12}, {"cc": "clang"}]}))
    assert names(run) == ["test-gcc-12", "test-clang"]


def test_names_that_collide_or_grow_too_long_end_in_a_digest_that_never_changes() -> None:
    run = compiled(test=a_matrix({"x": ["a/b", "a b", "c"]}))
    assert names(run) == ["test-a_b-b7f3df64", "test-a_b-b235acc9", "test-c"]
    long = compiled(test=a_matrix({"x": ["y" * 100, "y" * 101]}))
    assert [len(name) for name in names(long)] == [64, 64]
    assert len(set(names(long))) == 2
    assert names(long) == names(compiled(test=a_matrix({"x": ["y" * 100, "y" * 101]})))


def test_a_strategy_reaches_every_cell() -> None:
    strategy = {"fail-fast": False, "max-parallel": 3}
    (job,) = compiled(test=a_matrix({"n": [1]}, strategy=strategy)).jobs
    assert job.matrix == MatrixCell(of="test", values={"n": "1"}, fail_fast=False, max_parallel=3)


M = "jobs.test.strategy.matrix"


@pytest.mark.parametrize(
    ("job", "field"),
    [
        (a_matrix({}), M),
        (a_matrix({"n": []}), f"{M}.n"),
        (a_matrix({"n": "1"}), f"{M}.n"),
        (a_matrix({"n": [3.1]}), f"{M}.n.0"),
        (a_matrix({"n": [None]}), f"{M}.n.0"),
        (a_matrix({"n": [{"a": 1}]}), f"{M}.n.0"),
        (a_matrix({"n": ["1", 1]}), f"{M}.n"),
        (a_matrix({"n": ["${{ matrix.n }}"]}), f"{M}.n.0"),
        (a_matrix({"n": list(range(51))}), f"{M}.n"),
        (a_matrix({"n n": [1]}), f"{M}.n n"),
        (a_matrix({f"n{one}": [1] for one in range(11)}), M),
        (a_matrix({"a": list(range(20)), "b": list(range(20))}), M),
        (a_matrix({f"n{one}": list(range(50)) for one in range(10)}), M),
        (a_matrix({"n": [1], "exclude": [{"n": 1}]}), M),
        (a_matrix({"n": [1], "exclude": [{"n": 2}]}), f"{M}.exclude.0"),
        (a_matrix({"n": [1], "exclude": [{"m": 1}]}), f"{M}.exclude.0.m"),
        (a_matrix({"include": [{"n": 1}, {"n": 1}]}), M),
        (a_matrix({"n": [1]}, strategy={"max-parallel": 0}), "jobs.test.strategy.max-parallel"),
        (a_matrix({"n": [1]}, strategy={"fail_fast": True}), "jobs.test.strategy.fail_fast"),
        ({"strategy": None, "steps": STEPS}, "jobs.test.strategy"),
        (a_matrix({"n": [1]}, env={"A": "${{ matrix.m }}"}), "jobs.test.env.A"),
        (a_matrix({"n": [1]}, env={"A": "${{ env.B }}"}), "jobs.test.env.A"),
        (a_matrix({"n": [1]}, steps=[{"run": "a ${{ matrix.n"}]), "jobs.test.steps.0.run"),
        (a_matrix({"n": [1]}, if_="x"), "jobs.test.if_"),
        (a_matrix({"n": ["vms"]}, requires={"platform": "${{ matrix.n }}"}), None),
        (a_matrix({"n": [1]}, needs="absent"), "jobs.test.needs"),
        (a_matrix({"n": [1]}, needs="test"), "jobs.test.needs"),
        (a_matrix({"n": [1]}, resources={"cpu": "${{ matrix.n }}z"}), "jobs.test.resources.cpu"),
        ({"steps": [{"run": "echo ${{ matrix.n }}"}]}, "jobs.test.steps.0.run"),
    ],
)
def test_what_is_wrong_is_said_of_the_job_in_the_file(job: object, field: str | None) -> None:
    assert complaint(job).field == (field or "jobs.test.requires.platform")


def test_a_cell_may_not_be_called_like_another_job() -> None:
    error = complaint(a_matrix({"n": [1]}), **{"test-1": {"steps": STEPS}})
    assert (error.field, error.value) == (M, "test-1")
    assert complaint(a_matrix({"n": ["1-2"]}), **{"test-1": a_matrix({"n": [2]})}).value


def test_a_float_is_refused_with_what_to_write_instead() -> None:
    assert "quotes" in (complaint(a_matrix({"n": [3.10]})).allowed or "")


def test_all_cells_of_a_run_have_a_limit_in_number_and_size() -> None:
    wide = a_matrix({"a": list(range(16)), "b": list(range(16))})
    assert len(compiled(test=wide).jobs) == 256
    four = {f"j{number}": wide for number in range(3)}
    assert "too many jobs" in complaint(wide, **four).message
    script = "#" * 60_000
    heavy = {**wide, "steps": [{"run": script}, {"run": script}]}
    assert "too large" in complaint(heavy).message


def test_the_work_of_matrices_that_are_mostly_excluded_has_a_limit() -> None:
    cut = [{"a": number} for number in range(1, 50)]
    most = a_matrix({"a": list(range(50)), "b": list(range(50)), "exclude": cut})
    assert len(compiled(test=most).jobs) == 50
    error = complaint(most, **{f"j{number}": most for number in range(5)})
    assert "too large" in error.message


def test_a_placeholder_outside_jobs_is_refused() -> None:
    document = {"concurrency": {"group": "a-${{ github.ref }}"}, "jobs": {"a": {"steps": STEPS}}}
    with pytest.raises(InvalidRunFile) as caught:
        compile_run(document, fallback_name="run")
    assert caught.value.field == "concurrency.group"


@pytest.mark.parametrize(
    ("before", "after", "place"),
    [
        ("tox -e py${{matrix.python}}", "tox ${{matrix.pyton}}", (14, 9)),
        ("[linux, macos]\n", "[linux, 3.10, macos]\n", (6, 21)),
        ("platform: ${{", "platform: x${{", (11, 7)),
        ('{python: "3.11", os: macos}', '{python: "3.1", os: macos}', (7, 19)),
        ("needs: test\n", "needs: test-3.11\n", (16, 5)),
        ("max-parallel: 2", "max-parallels: 2", (9, 7)),
    ],
)
def test_complaints_carry_their_place(before: str, after: str, place: tuple[int, int]) -> None:
    assert before in FILE
    with pytest.raises(InvalidRunFile) as caught:
        check(parse(FILE.replace(before, after), file="run.yaml"), "run")
    assert (caught.value.line, caught.value.column) == place


def test_an_editor_accepts_a_matrix_and_marks_a_misspelt_key() -> None:
    document = parse(FILE, file="run.yaml").document
    jsonschema.validate(document, publish.schema())
    text = json.dumps(document).replace("max-parallel", "max-parallels")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(json.loads(text), publish.schema())


def test_a_concurrency_group_reaches_the_model() -> None:
    document = {"concurrency": {"group": "deploy prod"}, "jobs": {"a": {"steps": STEPS}}}
    run = compile_run(document, fallback_name="run")
    assert run.concurrency == Concurrency(group="deploy prod", cancel_in_progress=False)
    assert compiled(a={"steps": STEPS}).concurrency is None


def test_a_job_without_a_matrix_is_no_cell() -> None:
    assert compiled(a={"steps": STEPS}).jobs[0] == JobSpec(
        name="a", steps=compiled(a={"steps": STEPS}).jobs[0].steps
    )
