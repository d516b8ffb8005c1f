"""Which repositories and refs a run file may name, and what of them is submitted."""

import pytest

from forgeyard.errors import ForgeyardError, InvalidRequest, shortened, without_credentials
from forgeyard.model.run import GitRef, GitSource
from forgeyard.runfile.compile import compile_run
from forgeyard.runfile.source import check_ref, check_repository, resolved, written

COMMIT = "0123456789abcdef0123456789abcdef01234567"
URL = "https://example.org/app.git"


def compiled(**source: object) -> GitRef | None:
    """Compile a run of one job with this source."""
    document = {"source": source, "jobs": {"lint": {"steps": [{"run": "true"}]}}}
    return compile_run(document, fallback_name="run").git


def test_a_source_reaches_the_model_with_its_defaults() -> None:
    assert compiled(git=URL) == GitRef(repository=URL, ref="HEAD", commit=None)
    assert compiled(git=URL, ref="main", commit=COMMIT) == GitRef(
        repository=URL, ref="main", commit=COMMIT
    )


@pytest.mark.parametrize(
    "text",
    [
        "https://example.org/app.git",
        "http://ann:secret@example.org:8080/app",
        "http://[::1]:8080/app",
        "ssh://git@example.org:2222/~ann/app.git",
        "git://example.org/app",
        "file:///srv/git/app with spaces.git",
        "git@example.org:ann/app.git",
        "git@example.org:~ann/app.git",
        "/srv/git/äpp.git",
    ],
)
def test_the_usual_ways_to_name_a_repository_are_allowed(text: str) -> None:
    check_repository(text, field="--git")


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "app", "../app", "-u", "--upload-pack=x", "ext::sh -c x", "fd::17", "ext://x"),
        *("ftp://example.org/a", "https://", "https:///a", "https://-x/a", "file://host/a"),
        *("ssh://-oProxyCommand=x/a", "ssh://git@-oProxyCommand=x/a", "git@-oProxyCommand=x:a"),
        *("git@host:-x", "git@host::x", "git@host:", "/a\nb", "/a\0b", "/a\x1b[2J", "/\udcff"),
        *("https://example.org/a b", "https://example.org/a?b=c", "https://example.org/a#b"),
        "/" + "x" * 2_000,
    ],
)
def test_anything_else_is_no_repository(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_repository(text, field="--git")
    assert caught.value.field == "--git"
    assert caught.value.value is not None
    assert caught.value.value.isprintable()


@pytest.mark.parametrize("ref", ["main", "feature/x-1", "v1.2", "refs/pull/7/head", COMMIT, "é"])
def test_plain_names_are_refs(ref: str) -> None:
    check_ref(ref, field="--ref")


@pytest.mark.parametrize(
    "ref",
    [
        *("", "-d", "--upload-pack=x", "+main", "^main", "a:b", "a b", "a..b", "main~1", "main^"),
        *("main@{1}", "a*", "a?", "[a", "a\\b", "a\nb", "a\0", "/a", "a//b", "a/", "a.lock", "a."),
        "x" * 251,
    ],
)
def test_anything_else_is_no_ref(ref: str) -> None:
    with pytest.raises(InvalidRequest):
        check_ref(ref, field="--ref")


@pytest.mark.parametrize(
    ("source", "field"),
    [
        ({}, "source.git"),
        ({"git": 7}, "source.git"),
        ({"git": "../app"}, "source.git"),
        ({"git": URL, "ref": "-d"}, "source.ref"),
        ({"git": URL, "ref": 1.0}, "source.ref"),
        ({"git": URL, "commit": "abc1234"}, "source.commit"),
        ({"git": URL, "commit": COMMIT.upper()}, "source.commit"),
        ({"git": URL, "branch": "main"}, "source.branch"),
    ],
)
def test_a_wrong_source_names_its_field(source: dict[str, object], field: str) -> None:
    with pytest.raises(ForgeyardError) as caught:
        compiled(**source)
    assert (caught.value.field, caught.value.exit_code) == (field, 2)


@pytest.mark.parametrize(
    ("url", "clean"),
    [
        ("https://ann:secret@example.org/a", "https://example.org/a"),
        ("https://token@example.org/a", "https://example.org/a"),
        ("https://ann:se@cret@example.org/a", "https://example.org/a"),
        ("https://ann:@example.org/a", "https://example.org/a"),
        ("ssh://git:secret@example.org/a", "ssh://git@example.org/a"),
        ("ssh://git@example.org/a", "ssh://git@example.org/a"),
        ("git@example.org:a", "git@example.org:a"),
        ("https://example.org/a@b", "https://example.org/a@b"),
        ("/srv/a@b:c", "/srv/a@b:c"),
    ],
)
def test_credentials_never_stand_in_what_is_submitted_or_printed(url: str, clean: str) -> None:
    assert without_credentials(url) == clean
    assert written(GitRef(repository=url)) == {"git": clean, "ref": "HEAD"}
    assert shortened(f"in {url} there") == f"in {clean} there"
    assert "secret" not in repr(GitRef(repository=url))


def test_what_is_submitted_names_its_commit_and_comes_with_its_files() -> None:
    found = GitRef(repository=URL, ref="main", commit=COMMIT)
    assert resolved(None, digest="sha256:s") is None
    assert resolved(found, digest="sha256:s") == GitSource(
        repository=URL, ref="main", commit=COMMIT
    )
    wrong = (
        (GitRef(repository=URL), "sha256:s", "source.commit"),
        (found, None, "source_digest"),
        (GitRef(repository="https://t@h/a", commit=COMMIT), "sha256:s", "source.git"),
    )
    for ref, digest, field in wrong:
        with pytest.raises(InvalidRequest) as caught:
            resolved(ref, digest=digest)
        assert caught.value.field == field
