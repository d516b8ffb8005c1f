"""`forgeyard run submit --git`: a commit's files become the source, whoever serves them."""

import json
import socket
import tarfile
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from forgeyard.cli.checkout import checked_out
from forgeyard.config import LimitsConfig
from forgeyard.errors import Forbidden, NotFound, Unavailable
from forgeyard.model.run import GitRef
from forgeyard.store import tables
from forgeyard.store.blobs import FileBlobStore
from tests.integration.cli.house import House, Said
from tests.repositories import Repository, served, served_plainly, use_own_git

pytestmark = pytest.mark.integration

RUN = "name: ci\njobs:\n  build:\n    steps: [{run: make}]\n"
SECRET = "hunter2-é"
WRITTEN = "hunter2-%C3%A9"


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use nobody's git configuration but this test's."""
    return use_own_git(tmp_path, monkeypatch)


@pytest.fixture
def app(tmp_path: Path) -> Repository:
    """Make a repository with a run file and one more file."""
    made = Repository.new(tmp_path / "served" / "app")
    made.commit({"forgeyard.yaml": RUN, "main.c": "int main(){}"})
    return made


def submit(house: House, *words: str) -> dict:
    """Submit a run; return it."""
    said = house.run("run", "submit", *words, "--json")
    assert said.code == 0, said.err
    assert said.err == ""
    return said.json()


def files_of(house: House, run: dict) -> dict[str, str]:
    """Read the files that the jobs of a run get."""
    blobs = FileBlobStore(house.config.blob_dir())
    with (
        blobs.open(run["source_digest"]) as packed,
        tarfile.open(fileobj=packed, mode="r|gz") as tar,
    ):
        files = (entry for entry in tar if entry.isfile())
        return {entry.name: tar.extractfile(entry).read().decode() for entry in files}


def everything_stored(house: House) -> str:
    """Print every row of every table."""
    return repr([house.desk.rows(table) for table in tables.metadata.sorted_tables])


def count(house: House, table: sa.Table) -> int:
    return len(house.desk.rows(table))


def refused(house: House, *words: str) -> Said:
    """Submit what must be refused; nothing is stored."""
    said = house.run("run", "submit", *words, "--json")
    assert count(house, tables.runs) == count(house, tables.blobs) == 0
    return said


@pytest.mark.requirement("RUN-008")
def test_file_and_source_come_from_the_commit_not_from_the_disk(
    house: House, app: Repository
) -> None:
    Path("forgeyard.yaml").write_text(RUN.replace("build", "local"))
    head = app.git("rev-parse", "HEAD")
    run = submit(house, "--git", app.url, "--ref", "main")
    assert run["git"] == {"repository": app.url, "ref": "main", "commit": head}
    assert [job["name"] for job in run["jobs"]] == ["build"]
    assert files_of(house, run) == {"forgeyard.yaml": RUN, "main.c": "int main(){}"}
    (row,) = house.desk.rows(tables.runs)
    assert json.loads(row["document"])["source"] == {"git": app.url, "ref": "main", "commit": head}


def test_the_commit_is_shown_and_listed(house: House, app: Repository) -> None:
    head = app.git("rev-parse", "HEAD")
    run = submit(house, "--git", app.url)
    assert f"HEAD of {app.url}, commit {head}" in house.run("run", "show", run["run_id"]).out
    assert f" {head[:10]} " in house.run("run", "list").out
    local = house.submit(RUN)
    shown = house.run("run", "show", local, "--json").json()
    assert shown["git"] is None


def test_a_branch_a_tag_an_annotated_tag_and_a_commit_are_found(
    house: House, app: Repository
) -> None:
    first = app.git("rev-parse", "HEAD")
    app.git("tag", "light")
    app.git("tag", "--annotate", "heavy", "--message", "release")
    app.git("switch", "--quiet", "--create", "feature/x")
    second = app.commit({"main.c": "int main(){return 1;}"})
    app.git("switch", "--quiet", "main")
    last = app.commit({"main.c": "void main(){}"})
    found = {
        ref: submit(house, "--git", app.url, "--ref", ref)["git"]["commit"]
        for ref in ("light", "heavy", "feature/x", "refs/heads/feature/x", first, "main")
    }
    assert found == {
        **dict.fromkeys(("light", "heavy", first), first),
        **dict.fromkeys(("feature/x", "refs/heads/feature/x"), second),
        "main": last,
    }
    assert submit(house, "--git", app.url)["git"]["commit"] == last


def test_the_same_commit_is_uploaded_once(house: House, app: Repository) -> None:
    head = app.git("rev-parse", "HEAD")
    first = submit(house, "--git", app.url, "--ref", "main")
    again = submit(house, "--git", str(app.root), "--ref", head)
    assert first["source_digest"] == again["source_digest"]
    assert count(house, tables.blobs) == 1


def test_line_ends_do_not_depend_on_who_fetches(
    house: House, app: Repository, config: Path
) -> None:
    first = submit(house, "--git", app.url)
    config.write_text("[core]\n\tautocrlf = true\n")
    assert submit(house, "--git", app.url)["source_digest"] == first["source_digest"]


def test_a_directory_here_may_be_named_and_only_what_is_committed_counts(
    house: House, app: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    (app.root / "main.c").write_text("dirty")
    monkeypatch.chdir(app.root)
    run = submit(house, "--git", ".")
    assert run["git"]["repository"] == str(app.root)
    assert files_of(house, run)["main.c"] == "int main(){}"


def test_a_run_file_may_name_its_source(house: House, app: Repository) -> None:
    Path("ci.yaml").write_text(f"{RUN}source: {{git: '{app.url}', ref: main}}\n")
    assert house.run("run", "check", "ci.yaml").code == 0
    run = submit(house, "ci.yaml")
    assert run["git"]["commit"] == app.git("rev-parse", "HEAD")
    assert "main.c" in files_of(house, run)
    pinned = app.git("rev-parse", "HEAD")
    app.commit({"main.c": "later"})
    source = f"source: {{git: '{app.url}', ref: main, commit: {pinned}}}\n"
    Path("ci.yaml").write_text(f"{RUN}{source}")
    assert submit(house, "ci.yaml")["git"] == run["git"]


def test_a_checkout_of_our_own_records_no_commit(
    house: House, app: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(app.root)
    assert submit(house, "--source", ".")["git"] is None


def test_two_sources_exclude_each_other(house: House, app: Repository) -> None:
    Path("ci.yaml").write_text(f"{RUN}source: {{git: '{app.url}'}}\n")
    for words in (
        ("--git", app.url, "--source", "."),
        ("--git", app.url, "--no-source"),
        ("ci.yaml", "--source", "."),
        ("ci.yaml", "--no-source"),
        ("--ref", "main"),
    ):
        said = refused(house, *words)
        assert (said.code, said.problem()["code"]) == (2, "request.invalid"), words
    app.commit({"forgeyard.yaml": f"{RUN}source: {{git: '{app.url}'}}\n"})
    assert "exclude" in refused(house, "--git", app.url).err


def test_what_does_not_exist_is_3_and_named(house: House, app: Repository) -> None:
    absent = refused(house, "--git", app.url, "--ref", "absent")
    assert (absent.code, absent.problem()["value"]) == (3, "absent")
    assert "branch" in absent.problem()["allowed"]
    unknown = refused(house, "--git", app.url, "--ref", "a" * 40)
    assert (unknown.code, unknown.problem()["value"]) == (3, "a" * 40)
    nowhere = refused(house, "--git", f"{app.url}-not")
    assert (nowhere.code, nowhere.problem()["value"]) == (3, f"{app.url}-not")
    file = refused(house, "absent.yaml", "--git", app.url)
    assert file.code == 3
    assert app.git("rev-parse", "HEAD") in file.problem()["detail"]


@pytest.mark.parametrize(
    "words",
    [
        ("--git", "ext::sh -c 'touch ../pwned'"),
        ("--git", "--upload-pack=touch ../pwned"),
        ("--git", "-u"),
        ("--git", ""),
        ("--git", "ssh://-oProxyCommand=touch ../pwned/x"),
        ("--git", "file:///tmp/a\nb"),
        ("--git", "APP", "--ref", "--upload-pack=touch ../pwned"),
        ("--git", "APP", "--ref", "-d"),
        ("--git", "APP", "--ref", "main:refs/heads/x"),
        ("--git", "APP", "--ref", "a\nb"),
        ("--git", "APP", "--ref", ""),
    ],
)
def test_options_and_other_transports_are_refused(
    house: House, app: Repository, tmp_path: Path, words: tuple[str, ...]
) -> None:
    said = refused(house, *(word.replace("APP", app.url) for word in words))
    assert (said.code, said.problem()["code"]) == (2, "request.invalid")
    assert not (tmp_path / "pwned").exists()


def test_a_transport_that_only_the_users_settings_lead_to_is_refused(
    house: House, config: Path, tmp_path: Path
) -> None:
    command = f"ext::sh -c 'touch {tmp_path}/pwned'%S"
    config.write_text(
        f'[protocol "ext"]\n\tallow = always\n[url "{command}"]\n\tinsteadOf = https://short/\n'
    )
    said = refused(house, "--git", "https://short/app.git")
    assert (said.code, said.problem()["code"]) == (2, "request.invalid")
    assert not (tmp_path / "pwned").exists()


def test_no_hook_runs_and_no_other_repository_is_meant(
    house: House, app: Repository, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Repository.new(tmp_path / "other")
    other.commit({"forgeyard.yaml": RUN, "other.c": ""})
    other.commit({".gitignore": "other.c"})
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("post-checkout", "reference-transaction"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/hooked\n")
        (hooks / name).chmod(0o755)
    config.write_text(f"[core]\n\thooksPath = {hooks}\n")
    # As for whoever calls us from a hook.
    monkeypatch.setenv("GIT_DIR", str(app.root / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(app.root / ".git" / "index"))
    files = files_of(house, submit(house, "--git", other.url))
    assert set(files) == {".gitignore", "forgeyard.yaml", "other.c"}
    assert not (tmp_path / "hooked").exists()
    monkeypatch.undo()
    assert app.git("symbolic-ref", "HEAD") == "refs/heads/main"
    assert app.git("status", "--porcelain") == ""


def test_the_users_filters_apply_and_know_the_remote(
    house: House, app: Repository, config: Path
) -> None:
    config.write_text('[filter "ask"]\n\tsmudge = git config remote.origin.url\n')
    app.commit({".gitattributes": "asked filter=ask\n", "asked": "pointer\n"})
    assert files_of(house, submit(house, "--git", app.url))["asked"] == f"{app.url}\n"


def test_submodules_are_said_to_be_left_out(house: House, app: Repository, tmp_path: Path) -> None:
    inner = Repository.new(tmp_path / "inner")
    inner.commit({"inner.c": ""})
    app.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", inner.url, "inner")
    app.commit({})
    said = house.run("run", "submit", "--git", app.url)
    assert said.code == 0, said.err
    assert "submodules are not fetched" in said.err
    assert f"fetching HEAD of {app.url}" in said.err
    (row,) = house.desk.rows(tables.runs)
    assert "inner/inner.c" not in files_of(house, dict(row))


def test_a_run_file_that_leads_out_of_the_commit_is_refused(
    house: House, app: Repository, tmp_path: Path
) -> None:
    (tmp_path / "outside.yaml").write_text(RUN)
    (app.root / "link.yaml").symlink_to(tmp_path / "outside.yaml")
    app.commit({})
    for path in ("link.yaml", "../outside.yaml", str(tmp_path / "outside.yaml")):
        assert refused(house, path, "--git", app.url).problem()["code"] == "path.unsafe", path


def test_complaints_name_the_file_as_it_is_called_in_the_commit(
    house: House, app: Repository
) -> None:
    app.commit({"ci/run.yaml": RUN.replace("steps", "stepz")})
    problem = refused(house, "ci/run.yaml", "--git", app.url).problem()
    assert (problem["file"], problem["line"]) == ("ci/run.yaml", 4)


def test_a_repository_with_long_ids_works(house: House, tmp_path: Path) -> None:
    long = Repository.new(tmp_path / "long", "--object-format=sha256")
    head = long.commit({"forgeyard.yaml": RUN})
    assert len(head) == 64
    for ref in ("main", head):
        assert submit(house, "--git", long.url, "--ref", ref)["git"]["commit"] == head


def test_a_server_over_http_gives_branches_and_commits(house: House, app: Repository) -> None:
    first = app.git("rev-parse", "HEAD")
    last = app.commit({"main.c": "later"})
    with served(app.root.parent) as port:
        url = f"http://127.0.0.1:{port}/app/.git"
        assert submit(house, "--git", url, "--ref", "main")["git"]["commit"] == last
        assert submit(house, "--git", url, "--ref", first)["git"]["commit"] == first
        assert refused_again(house, "--git", url, "--ref", "absent").code == 3
        assert refused_again(house, "--git", f"http://127.0.0.1:{port}/absent").code == 3


def test_a_server_of_plain_files_gives_branches_and_commits(house: House, app: Repository) -> None:
    """It knows neither shallow fetches nor single commits, so that more is fetched."""
    first = app.git("rev-parse", "HEAD")
    last = app.commit({"main.c": "later"})
    app.git("update-server-info")
    with served_plainly(app.root.parent) as port:
        url = f"http://127.0.0.1:{port}/app/.git"
        assert submit(house, "--git", url, "--ref", "main")["git"]["commit"] == last
        assert submit(house, "--git", url, "--ref", first)["git"]["commit"] == first
        assert refused_again(house, "--git", url, "--ref", "absent").code == 3
        assert refused_again(house, "--git", url, "--ref", "b" * 40).code == 3


def refused_again(house: House, *words: str) -> Said:
    """Submit what must be refused, after others were not."""
    before = count(house, tables.runs)
    said = house.run("run", "submit", *words, "--json")
    assert count(house, tables.runs) == before
    return said


def test_a_password_in_a_url_is_used_and_never_shown_or_kept(house: House, app: Repository) -> None:
    with served(app.root.parent, user=f"marianne:{SECRET}") as port:
        place = f"127.0.0.1:{port}/app/.git"
        url = f"http://marianne:{WRITTEN}@{place}"
        said = house.run("run", "submit", "--git", url)
        assert said.code == 0, said.err
        run_id = said.out.strip()
        Path("ci.yaml").write_text(f"{RUN}source: {{git: '{url}'}}\n")
        filed = house.run("run", "submit", "ci.yaml")
        assert filed.code == 0, filed.err
        shown = house.run("run", "show", run_id, "--json")
        assert shown.json()["git"]["repository"] == f"http://{place}"
        listed = house.run("run", "list", "--json")
        absent = house.run("run", "submit", "--git", url, "--ref", "absent")
        checked = house.run("run", "check", "ci.yaml", "--server")
        assert (absent.code, checked.code) == (3, 0)
    heard = [one.out + one.err for one in (said, filed, shown, listed, absent, checked)]
    for text in (*heard, everything_stored(house)):
        assert "hunter2" not in text
        assert "marianne" not in text


def test_a_password_that_git_itself_prints_is_hidden(
    house: House, app: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_TRACE", "1")
    with served(app.root.parent, user=f"marianne:{SECRET}") as port:
        url = f"http://marianne:{WRITTEN}@127.0.0.1:{port}/app/.git"
        said = refused(house, "--git", url, "--ref", "absent")
    assert said.code == 3
    assert "trace" in said.err
    assert "hunter2" not in said.err


def test_whoever_is_not_let_in_is_5_and_is_not_told_the_password(
    house: House, app: Repository
) -> None:
    with served(app.root.parent, user="ann:right") as port:
        place = f"127.0.0.1:{port}/app/.git"
        wrong = refused(house, "--git", f"http://ann:{WRITTEN}@{place}")
        nobody = refused(house, "--git", f"http://{place}")
    assert (wrong.code, nobody.code) == (5, 5)
    assert wrong.problem()["code"] == "auth.forbidden"
    assert wrong.problem()["value"] == f"http://{place}"
    assert "hunter2" not in wrong.err


@pytest.mark.parametrize(
    "text",
    [
        "https://ann:hunter2@example.org/a b",
        "https://ann:hun ter2@example.org/a",
        "ext::ssh://ann:hunter2@example.org",
        "https://hunter2@example.org/?x",
        "https://example.org/?token=hunter2",
        "ann:hunter2@example.org:app",
    ],
)
def test_a_url_that_is_refused_keeps_its_secrets(house: House, text: str) -> None:
    Path("ci.yaml").write_text(f"{RUN}source:\n  git: {json.dumps(text)}\n")
    Path("odd.yaml").write_text(f"{RUN}source:\n  url: {json.dumps(text)}\n")
    for words in (("submit", "--git", text), ("submit", "ci.yaml"), ("check", "ci.yaml")):
        said = house.run("run", *words)
        assert said.code == 2
        assert "ter2" not in said.err


def test_a_key_that_does_not_exist_keeps_the_url_beside_it_secret(house: House) -> None:
    for source in ("{url: 'https://ann:hunter2@example.org/'}", "https://hunter2@example.org/"):
        Path("ci.yaml").write_text(f"{RUN}source: {source}\n")
        said = house.run("run", "check", "ci.yaml")
        assert said.code == 2
        assert "source" in said.err
        assert "hunter2" not in said.err


def test_a_server_that_does_not_answer_is_given_up() -> None:
    begun = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/app.git"
        with (
            pytest.raises(Unavailable, match="too long"),
            checked_out(GitRef(repository=url), quiet=True, within_s=1.0),
        ):
            pass
    assert time.monotonic() - begun < 20
    with (
        pytest.raises(Unavailable, match="Failed to connect"),
        checked_out(GitRef(repository=url), quiet=True),
    ):
        pass


def test_without_git_the_user_is_told(
    app: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        pytest.raises(NotFound, match="no git"),
        checked_out(GitRef(repository=app.url), quiet=True),
    ):
        pass


def test_a_repository_that_git_does_not_trust_is_5(
    app: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with (
        pytest.raises(Forbidden),
        checked_out(GitRef(repository=str(app.root)), quiet=True),
    ):
        pass


def test_the_files_are_gone_afterwards(app: Repository) -> None:
    with checked_out(GitRef(repository=app.url), quiet=True) as found:
        assert (found.directory / "main.c").is_file()
    assert not found.directory.exists()


def test_a_source_past_the_limit_stores_nothing(
    house: House, app: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LimitsConfig().source > 1_000
    monkeypatch.setenv("FORGEYARD_LIMITS__SOURCE", "1000")
    app.commit({"big": "x" * 2_000})
    assert refused(house, "--git", app.url).problem()["code"] == "request.too_large"
