"""A document becomes a run with every default filled in, or one typed complaint about one field."""

import pytest

from forgeyard.errors import ForgeyardError, InvalidQuantity, InvalidRequirements, InvalidRunFile
from forgeyard.model.capability import Architecture, Platform, ToolchainRequirement, TrustClass
from forgeyard.model.job import AUTOMATIC_RETRY, Condition, FailureClass, JobSpec, Priority
from forgeyard.runfile.compile import compile_run

STEPS = [{"run": "true"}]


def a_job(**parts: object) -> JobSpec:
    """Compile a run of one job."""
    document = {"jobs": {"lint": {"steps": STEPS, **parts}}}
    return compile_run(document, fallback_name="run").jobs[0]


def complaint(**parts: object) -> ForgeyardError:
    """Compile a run of one job that must be refused."""
    with pytest.raises(ForgeyardError) as caught:
        a_job(**parts)
    return caught.value


def test_the_smallest_job_gets_every_default() -> None:
    run = compile_run({"jobs": {"lint": {"steps": STEPS}}}, fallback_name="ci")
    assert run.name == "ci"
    assert run.timeout == 86_400_000
    assert run.jobs[0] == JobSpec(name="lint", steps=run.jobs[0].steps)
    assert run.jobs[0].steps[0].name == "step 1"


def test_every_key_reaches_the_model() -> None:
    run = compile_run(
        {
            "name": "all of it",
            "timeout": "2h",
            "jobs": {
                "first": {"steps": STEPS},
                "lint": {
                    "needs": "first",
                    "if": "failure",
                    "continue-on-error": True,
                    "env": {"A": "1"},
                    "secrets": ["TOKEN"],
                    "resources": {"cpu": "500m", "memory": "0.5Gi", "disk": "512K"},
                    "requires": {
                        "platform": "linux",
                        "os-version": ">=12",
                        "arch": "x86_64",
                        "toolchains": {
                            "python": ">=3.11,<4",
                            "git": "*",
                            "x": f"sha256:{'a' * 64}",
                        },
                        "labels": {"zone": "a"},
                        "trust": "trusted_internal",
                    },
                    "priority": "high",
                    "timeouts": {
                        "queue": "1h",
                        "preparation": "5m",
                        "execution": 90,
                        "upload": "5m",
                    },
                    "retry": {"max-attempts": 5, "on": ["timeout"], "delay": "10s"},
                    "steps": [{"name": "a", "run": "b", "shell": "bash"}],
                    "outputs": [{"name": "wheel", "path": "dist/*.whl", "required": False}],
                },
            },
        },
        fallback_name="unused",
    )
    job = run.jobs[1]
    assert (run.name, run.timeout) == ("all of it", 7_200_000)
    assert (job.needs, job.condition, job.continue_on_error) == (
        ("first",),
        Condition.FAILURE,
        True,
    )
    assert (job.env, job.secrets, job.priority) == ({"A": "1"}, ("TOKEN",), Priority.HIGH)
    assert (job.resources.cpu, job.resources.memory) == (500, 2**29)
    assert (job.resources.disk, job.resources.slots) == (512_000, 1)
    assert (job.requires.platform, job.requires.os_version) == (Platform.LINUX, ">=12")
    assert job.requires.architecture is Architecture.X86_64
    assert job.requires.trust is TrustClass.TRUSTED_INTERNAL
    assert job.requires.toolchains == (
        ToolchainRequirement(name="python", version=">=3.11,<4"),
        ToolchainRequirement(name="git"),
        ToolchainRequirement(name="x", digest=f"sha256:{'a' * 64}"),
    )
    assert (job.timeouts.queue, job.timeouts.execution) == (3_600_000, 90_000)
    assert (job.retry.max_attempts, job.retry.on) == (5, (FailureClass.TIMEOUT,))
    assert (job.retry.delay, job.retry.max_delay) == (10_000, 300_000)
    assert (job.steps[0].name, job.steps[0].shell) == ("a", "bash")
    assert (job.outputs[0].path, job.outputs[0].required) == ("dist/*.whl", False)


def test_short_forms_mean_the_same_as_long_ones() -> None:
    assert a_job(outputs={"w": "dist"}) == a_job(outputs=[{"name": "w", "path": "dist"}])
    assert a_job(requires={"toolchains": ["git"]}) == a_job(requires={"toolchains": {"git": "*"}})


def test_a_partly_written_retry_keeps_the_other_defaults() -> None:
    retry = a_job(retry={"delay": "10m"}).retry
    assert (retry.max_attempts, retry.on) == (3, AUTOMATIC_RETRY)
    assert retry.max_delay == 600_000, "never below the delay itself"


def test_no_failure_class_at_all_is_a_legal_retry_policy() -> None:
    assert a_job(retry={"on": []}).retry.on == ()


@pytest.mark.parametrize(
    ("parts", "field", "kind"),
    [
        ({"needs": "absent"}, "jobs.lint.needs", InvalidRequirements),
        ({"needs": "lint"}, "jobs.lint.needs", InvalidRequirements),
        ({"needs": ["a", "a"]}, "jobs.lint.needs.1", InvalidRunFile),
        ({"resources": {"cpu": "lots"}}, "jobs.lint.resources.cpu", InvalidQuantity),
        ({"resources": {"cpu": float("nan")}}, "jobs.lint.resources.cpu", InvalidQuantity),
        ({"resources": {"cpu": -1}}, "jobs.lint.resources.cpu", InvalidQuantity),
        ({"resources": {"cpu": 0}}, "jobs.lint.resources.cpu", InvalidRequirements),
        ({"resources": {"cpu": 10**6}}, "jobs.lint.resources.cpu", InvalidRequirements),
        ({"resources": {"cpu": 10**5000}}, "jobs.lint.resources.cpu", InvalidRunFile),
        ({"resources": {"memory": True}}, "jobs.lint.resources.memory", InvalidRunFile),
        ({"resources": {"memory": "2Pi"}}, "jobs.lint.resources.memory", InvalidRequirements),
        ({"resources": {"disk": "1e400"}}, "jobs.lint.resources.disk", InvalidQuantity),
        ({"timeouts": {"queue": "0s"}}, "jobs.lint.timeouts.queue", InvalidRequirements),
        ({"timeouts": {"queue": "31d"}}, "jobs.lint.timeouts.queue", InvalidRequirements),
        ({"timeouts": {"queue": "soon"}}, "jobs.lint.timeouts.queue", InvalidQuantity),
        ({"retry": {"max-attempts": 99}}, "jobs.lint.retry.max-attempts", InvalidRunFile),
        ({"retry": {"delay": "10m", "max-delay": "5m"}}, "jobs.lint.retry.max-delay", None),
        ({"retry": {"on": ["infra"]}}, "jobs.lint.retry.on.0", InvalidRunFile),
        ({"requires": {"os-version": "12"}}, "jobs.lint.requires.os-version", InvalidRequirements),
        ({"requires": {"toolchains": {"x": "sha256:1"}}}, "jobs.lint.requires.toolchains.x", None),
        ({"requires": {"toolchains": 3}}, "jobs.lint.requires.toolchains", InvalidRunFile),
        ({"requires": {"arch": "arm"}}, "jobs.lint.requires.arch", InvalidRunFile),
        ({"env": {"FORGEYARD_X": "1"}}, "jobs.lint.env.FORGEYARD_X", InvalidRunFile),
        ({"env": {"A": 1}}, "jobs.lint.env.A", InvalidRunFile),
        ({"env": {"A": "a\0b"}}, "jobs.lint.env.A", InvalidRunFile),
        ({"env": {"A": "\ud800"}}, "jobs.lint.env.A", InvalidRunFile),
        ({"env": {"A": "1"}, "secrets": ["A"]}, "jobs.lint.secrets.0", InvalidRunFile),
        ({"secrets": ["A", "A"]}, "jobs.lint.secrets.1", InvalidRunFile),
        ({"outputs": {"w": "../up"}}, "jobs.lint.outputs.w", InvalidRunFile),
        ({"outputs": {"w": "a/../../up"}}, "jobs.lint.outputs.w", InvalidRunFile),
        ({"outputs": {"w": "/etc/passwd"}}, "jobs.lint.outputs.w", InvalidRunFile),
        ({"outputs": {"w": "C:/x"}}, "jobs.lint.outputs.w", InvalidRunFile),
        ({"outputs": {"w": "..\\x"}}, "jobs.lint.outputs.w", InvalidRunFile),
        ({"outputs": {"w": "~/x"}}, "jobs.lint.outputs.w", InvalidRunFile),
        ({"outputs": [{"name": "w", "path": ".."}]}, "jobs.lint.outputs.0.path", InvalidRunFile),
        (
            {"outputs": [{"name": "w", "path": "a"}, {"name": "w", "path": "b"}]},
            "jobs.lint.outputs.1",
            InvalidRunFile,
        ),
        ({"steps": []}, "jobs.lint.steps", InvalidRunFile),
        ({"steps": [{"run": "  "}]}, "jobs.lint.steps.0.run", InvalidRunFile),
        ({"steps": [{"run": "é" * 40_000}]}, "jobs.lint.steps.0.run", InvalidRunFile),
        ({"steps": [{"run": "x", "shell": "zsh"}]}, "jobs.lint.steps.0.shell", InvalidRunFile),
        ({"steps": ["make"]}, "jobs.lint.steps.0", InvalidRunFile),
        ({"if": "sometimes"}, "jobs.lint.if", InvalidRunFile),
        ({"continue-on-error": "yes"}, "jobs.lint.continue-on-error", InvalidRunFile),
    ],
)
def test_a_wrong_value_is_named(
    parts: dict[str, object], field: str, kind: type[ForgeyardError] | None
) -> None:
    error = complaint(**parts)
    assert error.field == field
    assert isinstance(error, kind or InvalidRequirements)
    assert error.exit_code == 2
    assert error.allowed


def test_a_cycle_is_printed_whole() -> None:
    jobs = {name: {"steps": STEPS, "needs": need} for name, need in (("a", "b"), ("b", "a"))}
    with pytest.raises(InvalidRequirements, match="a → b → a") as caught:
        compile_run({"jobs": jobs}, fallback_name="run")
    assert caught.value.field == "jobs.a.needs"


def test_an_unknown_key_comes_with_the_one_that_was_meant() -> None:
    error = complaint(step=STEPS)
    assert error.field == "jobs.lint.step"
    assert "did you mean 'steps'?" in error.message
    assert error.allowed is not None
    assert "continue-on-error" in error.allowed


@pytest.mark.parametrize(
    ("parts", "meant"),
    [
        ({"outputs": [{"name": "w", "pth": "x"}]}, "path"),
        ({"requires": {"platfrom": "linux"}}, "platform"),
        ({"retry": {"max_attempts": 3}}, "max-attempts"),
        ({"timeouts": {"exec": "1s"}}, "execution"),
        ({"steps": [{"run": "x", "shel": "sh"}]}, "shell"),
        ({"resources": {"mem": "1Gi"}}, "memory"),
    ],
)
def test_every_part_knows_its_own_keys(parts: dict[str, object], meant: str) -> None:
    assert f"did you mean {meant!r}?" in complaint(**parts).message


def test_an_unknown_key_explains_more_than_the_missing_one_it_causes() -> None:
    with pytest.raises(
        InvalidRunFile, match=r"job: unknown key; did you mean 'jobs'\? \(and 1 more"
    ):
        compile_run({"job": {}}, fallback_name="run")


def test_a_number_where_text_belongs_says_to_quote_it() -> None:
    error = complaint(requires={"toolchains": {"python": 3.10}})
    assert "write it in quotes" in error.message
    assert error.allowed == '"3.1"'


@pytest.mark.parametrize("document", [None, [], "text", 3, {3: 4}, {"jobs": None}, {"jobs": {}}])
def test_anything_that_is_no_run_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(InvalidRunFile):
        compile_run(document, fallback_name="run")


def test_a_megabyte_of_labels_is_refused_by_count() -> None:
    error = complaint(requires={"labels": {f"label-{n}": "x" * 16 for n in range(40_000)}})
    assert error.field == "jobs.lint.requires.labels"
    assert "40000 entries" in error.message
    assert error.value == "a mapping", "the megabyte itself does not come back"


def test_a_label_of_a_megabyte_comes_back_shortened() -> None:
    error = complaint(requires={"labels": {"a": "x" * 2**20}})
    assert len(error.message) + len(error.value or "") < 600


def test_too_many_jobs_and_too_many_needs_are_refused() -> None:
    many = {f"j{n}": {"steps": STEPS} for n in range(1_001)}
    with pytest.raises(InvalidRunFile, match="1001 entries"):
        compile_run({"jobs": many}, fallback_name="run")
    names = [f"j{n}" for n in range(150)]
    web = {name: {"steps": STEPS, "needs": names[:n]} for n, name in enumerate(names)}
    with pytest.raises(InvalidRunFile, match="too many needs"):
        compile_run({"jobs": web}, fallback_name="run")


def test_a_complaint_never_carries_what_a_terminal_would_obey() -> None:
    error = complaint(priority="\x1b[31mhigh\x9b0m")
    assert "\x1b" not in f"{error.message}{error.value}"
