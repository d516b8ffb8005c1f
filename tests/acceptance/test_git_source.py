"""A commit of a git repository becomes the source of jobs that run for real."""

import json
from pathlib import Path

import pytest

from tests.acceptance.conftest import Forgeyard
from tests.repositories import Repository, git_environment

pytestmark = pytest.mark.integration

RUN = """
name: of a commit
jobs:
  tell:
    steps:
      - run: printf 'told %s %s %s\\n' "$FORGEYARD_COMMIT" "$FORGEYARD_REF" "$FORGEYARD_REPOSITORY"
      - run: cat word.txt; test ! -e .git
"""


@pytest.mark.requirement("RUN-008")
def test_a_job_works_on_the_files_of_the_commit_and_is_told_its_id(
    system: Forgeyard, tmp_path: Path
) -> None:
    app = Repository.new(tmp_path / "app")
    tagged = app.commit({"forgeyard.yaml": RUN, "word.txt": "tagged\n"})
    app.git("tag", "v1")
    app.commit({"word.txt": "later\n"})
    (app.root / "word.txt").write_text("dirty\n")
    words = ("run", "submit", "--git", app.url, "--ref", "v1", "--json", "--watch")
    run = system.type(*words, "--timeout", "60s", **git_environment(tmp_path)).ok().json()
    assert run["git"] == {"repository": app.url, "ref": "v1", "commit": tagged}
    log = system.type("run", "logs", run["run_id"], "--job", "tell").ok().out
    assert f"told {tagged} v1 {app.url}\n" in log
    assert "\ntagged\n" in log
    listed = system.type("run", "list", "--json").ok().json()["runs"]
    assert json.dumps(run["git"]) in json.dumps(listed)
