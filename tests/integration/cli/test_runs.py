"""`forgeyard run …` against a real API: what is printed, what is stored, how it ends."""

import json
import threading
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from forgeyard.model.job import FailureClass
from forgeyard.model.protocol import Outcome
from forgeyard.store import tables
from tests.integration.cli.house import UI, House

pytestmark = pytest.mark.integration

TWO = """\
name: ci
jobs:
  build:
    steps: [{run: make}]
    outputs: {wheel: dist}
  test:
    needs: build
    steps: [{run: make test}]
"""
BROKEN = TWO.replace("needs: build", "needs: absent")


def count(house: House, table: sa.Table) -> int:
    """Count rows."""
    return len(house.desk.rows(table))


def test_a_submitted_run_is_listed_and_shown_with_why_it_waits(house: House) -> None:
    run_id = house.submit(TWO)
    listed = house.run("run", "list").out
    assert run_id in listed
    assert "0/2" in listed
    shown = house.run("run", "show", run_id[:12])
    assert "waits for build" in shown.out
    assert "scheduling cycle" in shown.out or "runner" in shown.out
    assert house.run("run", "show", run_id, "--json").json()["run_id"] == run_id
    assert house.run("run", "list", "--json", "--state", "failed").json()["runs"] == []


def test_the_id_alone_goes_to_stdout(house: House) -> None:
    Path("ci.yaml").write_text(TWO)
    said = house.run("run", "submit", "ci.yaml", "--no-source")
    assert said.out.startswith("run_")
    assert len(said.out.splitlines()) == 1
    assert "forgeyard run watch" in said.err


def test_a_page_leads_to_the_next(house: House) -> None:
    first, second = house.submit(TWO), house.submit(TWO)
    said = house.run("run", "list", "-n", "1")
    assert second in said.out
    assert first not in said.out
    more = said.err.split("more: forgeyard ")[1].split()
    assert first in house.run(*more).out


def test_the_source_is_uploaded_once(house: House) -> None:
    Path("ci.yaml").write_text(TWO)
    Path("main.c").write_text("int main(){}")
    said = house.run("run", "submit", "ci.yaml")
    assert said.code == 0, said.err
    assert "2 files" in said.err
    (blob,) = house.desk.rows(tables.blobs)
    said = house.run("run", "submit", "ci.yaml", "--source", ".", "--json")
    assert said.json()["source_digest"] == blob["digest"]
    assert said.err == "", "a program sees JSON and nothing else"
    assert count(house, tables.blobs) == 1


def test_a_source_that_is_no_directory_stores_nothing(house: House) -> None:
    Path("ci.yaml").write_text(TWO)
    assert house.run("run", "submit", "ci.yaml", "--source", "absent").code == 3
    assert count(house, tables.runs) == 0


def test_a_source_past_the_limit_stores_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORGEYARD_LIMITS__SOURCE", "1000")
    Path("ci.yaml").write_text(TWO)
    Path("big").write_text("x" * 2_000)
    assert house.run("run", "submit", "ci.yaml").code == 2
    assert count(house, tables.runs) == count(house, tables.blobs) == 0


def test_a_broken_run_file_is_refused_with_its_place_and_nothing_is_stored(house: House) -> None:
    Path("ci.yaml").write_text(BROKEN)
    said = house.run("run", "submit", "ci.yaml")
    assert said.code == 2
    assert "ci.yaml:7:5" in said.err
    assert count(house, tables.runs) == count(house, tables.blobs) == 0


def test_the_server_can_be_asked_to_check_too(house: House) -> None:
    Path("ci.yaml").write_text(TWO)
    assert house.run("run", "check", "ci.yaml", "--server").code == 0
    assert count(house, tables.runs) == 0


def test_the_same_key_never_starts_a_second_run(house: House) -> None:
    first = house.submit(TWO, "--idempotency-key", "commit-1")
    assert house.submit(TWO, "--idempotency-key", "commit-1") == first
    Path("ci.yaml").write_text(TWO.replace("make test", "make check"))
    said = house.run(
        *("run", "submit", "ci.yaml", "--no-source", "--json", "--idempotency-key", "commit-1")
    )
    assert (said.code, said.problem()["code"]) == (2, "idempotency.mismatch")


def test_a_run_that_does_not_exist_is_3(house: House) -> None:
    for command in ("show", "watch", "logs", "cancel", "rerun", "artifacts", "download"):
        assert house.run("run", command, "run_0").code == 3, command


def test_an_id_never_becomes_another_path(house: House) -> None:
    for name in ("..", "", "../../readyz", "run_1/logs", "a?b=c", "%2e%2e"):
        assert house.run("run", "show", name).code in (2, 3), name


def test_another_token_is_5(house: House) -> None:
    Path("token").write_text("not-the-token")
    said = house.run("run", "list", "--token-file", "token", "--json")
    assert (said.code, said.problem()["code"]) == (5, "auth.unauthenticated")
    assert said.problem()["request_id"].startswith("req_")


def test_a_run_is_cancelled_with_a_reason_once(house: House) -> None:
    run_id = house.submit(TWO)
    said = house.run("run", "cancel", run_id, "--reason", "wrong branch")
    assert (said.code, "cancelled" in said.out) == (0, True)
    assert "wrong branch" in json.dumps(house.desk.rows(tables.audit))
    assert house.run("run", "cancel", run_id).code == 4
    assert house.run("run", "watch", run_id).code == 1


def test_one_job_is_cancelled_and_its_dependents_judged(house: House) -> None:
    run_id = house.submit(TWO)
    house.run("run", "cancel", run_id, "--job", "build")
    states = {job["name"]: job["state"] for job in _jobs(house, run_id)}
    assert states == {"build": "cancelled", "test": "skipped"}
    assert house.run("run", "cancel", run_id, "--job", "absent").code == 3


def _jobs(house: House, run_id: str) -> list[dict]:
    return list(house.run("run", "show", run_id, "--json").json()["jobs"])


def test_only_a_failed_run_is_run_again(house: House) -> None:
    run_id = house.submit(TWO)
    assert house.run("run", "rerun", run_id).code == 4, "it has not ended"
    house.run("run", "cancel", run_id)
    new = house.run("run", "rerun", run_id, "--json").json()
    assert new["rerun_of"] == run_id
    assert f"a rerun of {run_id}" in house.run("run", "show", new["run_id"]).out


def test_a_failure_is_watched_to_its_end_and_explained(house: House) -> None:
    run_id = house.submit(TWO)
    lease = house.lease()

    def fail() -> None:
        house.desk.complete(
            lease,
            Outcome.FAILED,
            failure_class=FailureClass.USER_COMMAND,
            exit_code=2,
            message="make exited 2",
        )
        house.desk.settle(lease)

    soon = threading.Timer(0.3, fail)
    soon.start()
    said = house.run("run", "watch", run_id)
    soon.join()
    assert said.code == 1
    assert "build: running on linux-1" in said.out
    assert "make exited 2" in said.out
    assert f"run {run_id} (ci): failed" in said.out.splitlines()[-1]
    shown = house.run("run", "show", run_id).out
    assert f"{UI}/namespaces/default/workflows/attempt%2F{lease.job_id}%2F1" in shown


def test_a_success_ends_with_0_and_prints_the_run_for_programs(house: House) -> None:
    run_id = house.submit(TWO.split("  test:")[0].replace("outputs: {wheel: dist}", ""))
    house.desk.complete(house.lease())
    said = house.run("run", "watch", run_id, "--json")
    assert (said.code, said.json()["state"]) == (0, "succeeded")


def test_watching_ends_when_the_time_is_up_and_the_run_goes_on(house: House) -> None:
    run_id = house.submit(TWO)
    started = time.monotonic()
    said = house.run("run", "watch", run_id, "--timeout", "1s")
    assert said.code == 6
    assert time.monotonic() - started < 10
    assert "the run goes on" in said.err


def test_logs_are_printed_by_line_and_for_programs_by_chunk(house: House) -> None:
    run_id = house.submit(TWO)
    lease = house.lease()
    house.log(lease, 0, "compiling ma")
    house.log(lease, 1, "in.c\ndone")
    said = house.run("run", "logs", run_id)
    assert said.out == "build | compiling main.c\nbuild | done\n"
    assert house.run("run", "logs", run_id, "--job", "build").out == "compiling main.c\ndone\n"
    assert house.run("run", "logs", run_id, "--job", "test").out == ""
    assert house.run("run", "logs", run_id, "--job", "absent").code == 3
    chunks = [
        json.loads(line)
        for line in house.run("run", "logs", run_id, "--json").out.split("\n")
        if line
    ]
    assert [chunk["text"] for chunk in chunks] == ["compiling ma", "in.c\ndone"]
    assert chunks[0]["attempt"] == 1


def test_logs_are_followed_until_the_run_ends(house: House) -> None:
    run_id = house.submit(TWO)
    lease = house.lease()

    def go_on() -> None:
        house.log(lease, 0, "late line\n")
        house.desk.complete(lease, Outcome.FAILED, failure_class=FailureClass.USER_COMMAND)
        house.desk.settle(lease)

    soon = threading.Timer(0.3, go_on)
    soon.start()
    said = house.run("run", "logs", run_id, "--follow")
    soon.join()
    assert (said.code, said.out) == (0, "build | late line\n")


def test_artifacts_are_listed_downloaded_and_unpacked(house: House) -> None:
    run_id = house.submit(TWO)
    assert "no artifacts" in house.run("run", "artifacts", run_id).err
    assert house.run("run", "download", run_id).code == 3
    lease = house.lease()
    packed = house.leave(lease, "wheel", {"dist/a.whl": "wheel", "dist/deep/b": "b"})
    house.desk.complete(lease)
    listed = house.run("run", "artifacts", run_id).out
    assert "wheel" in listed
    assert house.run("run", "artifacts", run_id, "--json").json()[0]["name"] == "wheel"
    said = house.run("run", "download", run_id, "--to", "out")
    assert said.code == 0, said.err
    assert Path("out/build/dist/a.whl").read_text() == "wheel"
    assert Path("out/build/dist/deep/b").read_text() == "b"
    said = house.run("run", "download", run_id, "--job", "build", "--packed", "--json")
    assert said.json() == ["artifacts/build/wheel.tar.gz"]
    assert Path("artifacts/build/wheel.tar.gz").read_bytes() == packed
    assert house.run("run", "download", run_id, "--name", "other").code == 3


def test_a_download_that_was_damaged_on_disk_is_not_kept(house: House) -> None:
    run_id = house.submit(TWO)
    lease = house.lease()
    house.leave(lease, "wheel", {"dist/a.whl": "wheel"})
    house.desk.complete(lease)
    for blob in house.config.blob_dir().rglob("*"):
        if blob.is_file():
            blob.write_bytes(b"x" * blob.stat().st_size)
    said = house.run("run", "download", run_id, "--packed")
    assert said.code in (2, 7, 70)
    assert not Path("artifacts/build/wheel.tar.gz").exists()


def test_a_place_that_cannot_be_written_is_2(house: House) -> None:
    run_id = house.submit(TWO)
    lease = house.lease()
    house.leave(lease, "wheel", {"dist/a.whl": "wheel"})
    house.desk.complete(lease)
    Path("file").write_text("")
    assert house.run("run", "download", run_id, "--to", "file").code == 2


MATRIX = """\
name: ci
jobs:
  test:
    strategy:
      matrix: {python: ["3.11", "3.12", "3.13"]}
      max-parallel: 1
    steps: [{run: "tox -e py${{ matrix.python }}"}]
  pack:
    needs: test
    steps: [{run: make}]
"""
DEPLOY = """\
name: deploy
concurrency: {group: deploy-prod}
jobs: {deploy: {steps: [{run: make}]}}
"""


def test_the_cells_of_a_matrix_are_shown_together_with_why_they_wait(house: House) -> None:
    run_id = house.submit(MATRIX)
    shown = house.run("run", "show", run_id).out
    assert "matrix of 3: python" in shown
    assert "0/3 over" in shown
    assert "waits for a free place among the 1 of matrix test" in shown
    assert "waits for test-3.11, test-3.12, test-3.13" in shown
    job = house.run("run", "show", run_id, "--json").json()["jobs"][1]
    assert (job["matrix"], job["matrix_values"]) == ("test", {"python": "3.12"})
    said = house.run("scheduler", "explain-job", f"{run_id}/test-3.12", "--json").json()
    assert said["sentence"] == "The job waits for a free place among the 1 of matrix test."


def test_a_matrix_that_is_wrong_is_refused_with_its_place(house: House) -> None:
    Path("ci.yaml").write_text(MATRIX.replace("matrix.python", "matrix.pyton"))
    said = house.run("run", "check", "ci.yaml", "--json")
    assert said.code == 2
    problem = said.problem()
    assert (problem["line"], problem["field"]) == (7, "jobs.test.steps.0.run")
    assert problem["allowed"] == "python"


def test_runs_of_a_concurrency_group_say_whom_they_wait_for_and_who_replaced_them(
    house: House,
) -> None:
    first, second = house.submit(DEPLOY), house.submit(DEPLOY)
    listed = house.run("run", "list").out
    assert f"{second} waits for {first}" in listed
    shown = house.run("run", "show", second).out
    assert f"waits for {first} of its concurrency group deploy-prod to end" in shown
    assert house.run("run", "show", second, "--json").json()["waits_for"] == first
    watched = house.run("run", "watch", second, "--timeout", "1s")
    assert watched.code == 6
    assert f"queued (waits for {first})" in watched.out
    third = house.submit(DEPLOY)
    assert f"{second} superseded by {third}" in house.run("run", "list").out
    ended = house.run("run", "watch", second)
    assert ended.code == 1
    assert f"superseded (superseded by {third})" in ended.out
    assert f"superseded by {third}" in house.run("run", "show", second).out
    assert (
        house.run("run", "list", "--state", "superseded", "--json").json()["runs"][0]["note"]
        == f"superseded by {third}"
    )
    assert house.run("run", "rerun", second).code == 0
