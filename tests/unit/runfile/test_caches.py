"""Caches and test reports of a run file become the model's, or are refused by name."""

from pathlib import Path

import pytest

from forgeyard.errors import InvalidRunFile
from forgeyard.model.job import CacheSpec, JobSpec
from forgeyard.runfile.compile import compile_run
from forgeyard.runfile.load import load_run

STEPS = [{"run": "true"}]
FOLDER = Path(__file__).parents[3] / "examples"
EXAMPLES = sorted(path for path in FOLDER.glob("*.yaml") if path.stem != "fleet")


def a_job(**parts: object) -> JobSpec:
    """Compile a run of one job."""
    document = {"jobs": {"test": {"steps": STEPS, **parts}}}
    return compile_run(document, fallback_name="run").jobs[0]


def test_a_key_is_one_pattern_or_several() -> None:
    pip = {"path": ".cache/pip", "key": "requirements.lock"}
    npm = {"path": "node_modules", "key": ["package-lock.json", "**/package.json"]}
    assert a_job(caches={"pip": pip, "npm": npm}).caches == (
        CacheSpec(name="pip", path=".cache/pip", key=("requirements.lock",)),
        CacheSpec(name="npm", path="node_modules", key=("package-lock.json", "**/package.json")),
    )


def test_reports_are_one_pattern_or_several_or_none() -> None:
    assert a_job().test_reports == ()
    assert a_job(**{"test-reports": "r/*.xml"}).test_reports == ("r/*.xml",)
    assert a_job(**{"test-reports": ["a.xml", "b.xml"]}).test_reports == ("a.xml", "b.xml")


def a_cache(**changed: object) -> dict[str, object]:
    """Declare one cache."""
    return {"caches": {"pip": {"path": ".cache", "key": "a.lock", **changed}}}


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        (a_cache(path="/root/.cache"), "jobs.test.caches.pip.path"),
        (a_cache(path="../.cache"), "jobs.test.caches.pip.path"),
        (a_cache(path=""), "jobs.test.caches.pip.path"),
        (a_cache(key=[]), "jobs.test.caches.pip.key"),
        (a_cache(key="/etc/passwd"), "jobs.test.caches.pip.key"),
        (a_cache(key=["a", "../b"]), "jobs.test.caches.pip.key.1"),
        (a_cache(key=["a", "a"]), "jobs.test.caches.pip.key.1"),
        (a_cache(key=[f"{n}" for n in range(21)]), "jobs.test.caches.pip.key"),
        (a_cache(kye="a"), "jobs.test.caches.pip.kye"),
        ({"caches": {"a/b": {"path": "x", "key": "y"}}}, "jobs.test.caches.a/b"),
        ({"caches": {f"c{n}": {"path": "x", "key": "y"} for n in range(11)}}, "jobs.test.caches"),
        ({"caches": {"pip": {"path": "x"}}}, "jobs.test.caches.pip.key"),
        ({"test-reports": "../r.xml"}, "jobs.test.test-reports"),
        ({"test-reports": ["a", "/b"]}, "jobs.test.test-reports.1"),
        ({"test-reports": [f"{n}" for n in range(21)]}, "jobs.test.test-reports"),
    ],
)
def test_what_is_wrong_is_refused_by_its_place(parts: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidRunFile) as caught:
        a_job(**parts)
    assert caught.value.field == field


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_valid(path: Path) -> None:
    run, _ = load_run(path)
    assert run.jobs


def test_the_example_of_caches_shows_both() -> None:
    run, _ = load_run(EXAMPLES[0].with_name("cached-tests.yaml"))
    assert any(job.caches for job in run.jobs)
    assert any(job.test_reports for job in run.jobs)
