"""Whatever a run file says, it becomes a run or one of our own errors, and nothing else."""

import json
from collections.abc import Mapping
from typing import cast

import jsonschema
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forgeyard.errors import ForgeyardError, InvalidRunFile
from forgeyard.model.job import FailureClass, Priority
from forgeyard.model.run import RunSpec, check_graph
from forgeyard.runfile.compile import compile_run
from forgeyard.runfile.load import check, parse
from forgeyard.runfile.publish import schema
from forgeyard.runfile.schema import PARTS, keys_at

SCHEMA = schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

names = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9_.-]{0,5}\Z", alphabet="abAB01_.-")
variables = st.sampled_from(["A", "_b", "PATH", "FORGEYARD_X", "forgeyard_y", "TOKEN"])
words = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=8)
usual = st.sampled_from(["500m", "0.5Gi", "512K", "1h30m", "90s", "2", 60, 1.5])
quantities = st.one_of(
    *[usual] * 7,
    st.sampled_from(["lots", "", "-1", "1e9", "9" * 60, "0"])
    | st.integers(-(2**63), 2**63)
    | st.floats(),
)
ranges = st.sampled_from(
    [">=3.11,<4", "==20.*", "3.11", "*", "===x", "sha256:1", f"sha256:{'0' * 64}"]
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


def part(
    always: Mapping[str, object], /, **optional: object
) -> st.SearchStrategy[dict[str, object]]:
    """Draw a mapping with these keys; an underscore stands for a dash."""
    dashed = {key.strip("_").replace("_", "-"): drawn for key, drawn in optional.items()}
    return cast(
        "st.SearchStrategy[dict[str, object]]", st.fixed_dictionaries(always, optional=dashed)
    )


steps = st.lists(
    part(
        {"run": st.sampled_from(["true", "make\nmake test", "é" * 10, "a", "b", "c", " "])},
        name=words,
        shell=st.sampled_from(["sh", "bash"]),
    ),
    min_size=1,
    max_size=3,
)
paths = st.sampled_from(["dist", "a/*.whl", "../up", "/abs", "a\\b", ".", "~", "C:x", "a/./b"])
outputs = st.one_of(
    st.dictionaries(names, paths, max_size=2),
    st.lists(part({"name": names, "path": paths}, required=st.booleans()), max_size=3),
)
requires = part(
    {},
    platform=st.sampled_from(["linux", "macos", "windows"]),
    os_version=ranges,
    arch=st.sampled_from(["x86_64", "aarch64"]),
    toolchains=st.lists(names, max_size=3) | st.dictionaries(names, ranges, max_size=3),
    labels=st.dictionaries(words, words, max_size=3),
    trust=st.sampled_from(["trusted_internal", "confidential"]),
)
retry = part(
    {},
    max_attempts=st.integers(1, 20),
    on=st.lists(st.sampled_from([kind.value for kind in FailureClass]), max_size=4),
    delay=quantities,
    max_delay=quantities,
)


matrix_values = st.sampled_from([*["a", "b c", "3.11", 8, True] * 4, 3.1, "${{"])
entries = st.lists(
    st.dictionaries(st.sampled_from(["os", "db", "extra"]), matrix_values, min_size=1, max_size=2),
    max_size=2,
)
strategies = part(
    {
        "matrix": part(
            {"os": st.lists(matrix_values, min_size=1, max_size=3, unique_by=str)},
            db=st.lists(matrix_values, min_size=1, max_size=2, unique_by=str),
            include=entries,
        )
    },
    fail_fast=st.booleans(),
    max_parallel=st.integers(1, 3),
)


def jobs(known: list[str]) -> st.SearchStrategy[dict[str, object]]:
    """Draw a job that may need the known ones, itself, or one that is not there."""
    need = st.sampled_from([*known, "absent"])
    return part(
        {"steps": steps},
        needs=need | st.lists(need, max_size=3),
        if_=st.sampled_from(["success", "failure", "always"]),
        continue_on_error=st.booleans(),
        env=st.dictionaries(variables, words, max_size=2),
        secrets=st.lists(variables, max_size=2),
        resources=part({}, cpu=quantities, memory=quantities, disk=quantities),
        requires=requires,
        priority=st.sampled_from([one.value for one in Priority]),
        timeouts=part({}, queue=quantities, execution=quantities),
        retry=retry,
        outputs=outputs,
    )


@st.composite
def run_files(draw: st.DrawFn) -> dict[str, object]:
    """Draw a document of the published shape; what its values mean may still be wrong."""
    known = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    drawn = {name: draw(jobs(known)) for name in known}
    document: dict[str, object] = {"jobs": drawn}
    if draw(st.booleans()):
        drawn[known[0]] |= {"strategy": draw(strategies), "steps": [{"run": "${{ matrix.os }}"}]}
    if draw(st.booleans()):
        document["name"] = draw(words)
    if draw(st.booleans()):
        document["timeout"] = draw(quantities)
    if draw(st.booleans()):
        document["concurrency"] = draw(part({"group": words}, cancel_in_progress=st.booleans()))
    return document


@st.composite
def spoiled(draw: st.DrawFn) -> object:
    """Draw a document of the published shape with anything at all in one place of it."""
    document = draw(run_files())
    place: object = document
    for _ in range(draw(st.integers(0, 5))):
        inner = [one for one in _children(place) if isinstance(one, dict | list) and one]
        if not inner:
            break
        place = draw(st.sampled_from(inner))
    junk = draw(anything)
    if isinstance(place, list):
        place[draw(st.integers(0, len(place) - 1))] = junk
    elif isinstance(place, dict):
        place[draw(st.sampled_from(list(place)) | st.text(max_size=8))] = junk
    return document


def _children(place: object) -> list[object]:
    return list(place.values()) if isinstance(place, dict) else list(cast("list[object]", place))


def outcome(document: object) -> RunSpec | ForgeyardError:
    """Compile; only our own errors are caught."""
    try:
        return compile_run(cast("Mapping[str, object]", document), fallback_name="run")
    except ForgeyardError as error:
        return error


def check_outcome(found: RunSpec | ForgeyardError) -> None:
    """A run holds its promises; a complaint can be printed and says what would be right."""
    if isinstance(found, RunSpec):
        check_graph(found.jobs)
        assert all(job.steps and job.resources.cpu > 0 for job in found.jobs)
        assert all(job.retry.delay <= job.retry.max_delay for job in found.jobs)
        return
    assert found.exit_code == 2
    assert len(json.dumps([found.message, found.field, found.value, found.allowed])) < 5_000
    f"{found.message}{found.field}{found.value}{found.allowed}".encode()


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(run_files())
def test_a_document_of_the_published_shape_compiles_or_is_refused(
    document: dict[str, object],
) -> None:
    found = outcome(document)
    check_outcome(found)
    if isinstance(found, RunSpec):
        assert VALIDATOR.is_valid(document), "the editor would mark what we accept"


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spoiled())
def test_a_document_with_anything_in_it_compiles_or_is_refused(document: object) -> None:
    check_outcome(outcome(document))


@settings(max_examples=100, deadline=None)
@given(anything)
def test_anything_at_all_is_refused(document: object) -> None:
    found = outcome(document)
    assert isinstance(found, ForgeyardError)
    check_outcome(found)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(run_files())
def test_a_file_means_what_its_document_means_and_complaints_have_a_place(
    document: dict[str, object],
) -> None:
    try:
        text = json.dumps(document, allow_nan=False)
    except ValueError:
        return
    found = read(text)
    if isinstance(found, InvalidRunFile):
        assert (found.line or 0) >= 1
        assert found.file == "run.yaml"
    assert isinstance(found, RunSpec) == isinstance(outcome(document), RunSpec)


def read(text: str) -> RunSpec | InvalidRunFile:
    """Read and check a file's text; a complaint is the only error it may raise."""
    try:
        return check(parse(text, file="run.yaml"), "run")
    except InvalidRunFile as error:
        return error


@settings(max_examples=150, deadline=None)
@given(st.text(st.sampled_from("ab:-[]{}&*!|>#'\"\n\t ,?%@`~<") | st.characters(), max_size=60))
def test_any_text_is_a_document_or_a_complaint(text: str) -> None:
    check_outcome(read(text))


def test_every_part_of_the_schema_can_be_found_by_its_path() -> None:
    for pattern, model in PARTS:
        path = tuple("0" if step == "*" else step for step in pattern)
        assert len(keys_at(path)) == len(model.model_fields)
    assert keys_at(("jobs", "a", "nothing")) == ()
