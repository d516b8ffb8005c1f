"""The published schema agrees with the code, and with what the code accepts."""

import json
from pathlib import Path

import jsonschema
import pytest

from forgeyard.runfile import publish
from forgeyard.runfile.load import check, load_run, parse
from forgeyard.runfile.template import run_file


def test_the_schema_on_disk_has_not_drifted() -> None:
    assert publish.main(["--check"]) == 0


def test_drift_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "schema.json"
    target.write_text("{}")
    assert publish.main(["--check"], target) == 1
    assert "drifted" in capsys.readouterr().err
    assert publish.main([], target) == 0
    assert json.loads(target.read_text()) == publish.schema()
    assert publish.main(["--check"], target) == 0


def test_the_template_passes_the_schema_and_the_compiler() -> None:
    loaded = parse(run_file("demo", file="forgeyard.yaml"), file="forgeyard.yaml")
    jsonschema.validate(loaded.document, publish.schema())
    run = check(loaded, "unused")
    assert [job.name for job in run.jobs] == ["check", "build", "report"]


FOLDER = Path(__file__).parents[3] / "examples"
EXAMPLES = sorted(path for path in FOLDER.glob("*.yaml") if path.stem != "fleet")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_pass_the_schema_and_the_compiler(path: Path) -> None:
    run, document = load_run(path)
    jsonschema.validate(document, publish.schema())
    assert run.name == path.stem


def test_the_example_of_a_matrix_has_the_cells_that_its_comments_name() -> None:
    run, _ = load_run(next(path for path in EXAMPLES if path.name == "matrix.yaml"))
    cells = ["test-3.11-1", "test-3.11-2", "test-3.12-1"]
    assert [job.name for job in run.jobs] == [*cells, "report"]
    assert run.jobs[-1].needs == tuple(cells)
    assert run.jobs[2].steps[0].run.endswith('on Python 3.12 --slow"')
    assert run.concurrency is not None


def test_the_commented_keys_of_the_template_are_keys() -> None:
    text = run_file("demo", file="forgeyard.yaml")
    live, comments = text.split("# More that a job may say:\n")
    extra = "".join(f"  {line[2:].split('  #')[0]}\n" for line in comments.splitlines())
    job = check(parse(live + extra, file="x"), "x").jobs[-1]
    assert job.secrets == ("NPM_TOKEN",)
    assert job.requires.labels == {"zone": "a"}
    assert job.test_reports == ("reports/*.xml",)
    assert job.caches[0].key == ("requirements.lock",)


@pytest.mark.parametrize(
    "document",
    [
        {"jobs": {}},
        {"jobs": {"a": {}}},
        {"jobs": {"a": {"steps": [{"run": "x"}], "step": 1}}},
        {"jobs": {"a b": {"steps": [{"run": "x"}]}}},
        {"jobs": {"a": {"steps": [{"run": "x"}], "needs": 3}}},
        {"jobs": {"a": {"steps": [{"run": "x"}], "if": "never"}}},
        {"jobs": {"a": {"steps": [{"run": "x"}], "resources": {"cpu": True}}}},
    ],
)
def test_an_editor_with_the_schema_marks_these_too(document: dict[str, object]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, publish.schema())
