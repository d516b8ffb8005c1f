"""Fetches one commit of a repository into a temporary directory that goes away again.

No templates and no submodules; whatever else git does is the user's own configuration.
"""

import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forgeyard import clock
from forgeyard.cli import output
from forgeyard.cli.git import Git
from forgeyard.errors import without_credentials
from forgeyard.model.run import GitRef, GitSource
from forgeyard.runfile.source import is_commit

FETCH_S: Final = 600.0
_EVERYTHING: Final = ("+refs/heads/*:refs/all/heads/*", "+refs/tags/*:refs/all/tags/*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """The files of a commit, for as long as the directory is there."""

    source: GitSource
    directory: Path


@contextmanager
def checked_out(wanted: GitRef, *, quiet: bool, within_s: float = FETCH_S) -> Generator[Checkout]:
    """Lay out the files of a commit for as long as the block runs.

    Raises:
        NotFound: there is no such repository or ref, or no git here.
        Forbidden: the repository does not let the user in.
        InvalidRequest: the ref is no commit, or git refuses the repository's transport.
        Unavailable: anything else that git says, or it takes longer than `within_s`.
    """
    name = without_credentials(wanted.repository)
    if not quiet:
        output.say(f"fetching {wanted.commit or wanted.ref} of {name}")
    with tempfile.TemporaryDirectory(prefix="forgeyard-git-", ignore_cleanup_errors=True) as made:
        git = Git(Path(made), wanted, quiet=quiet, until=clock.monotonic() + within_s)
        commit = _fetch(git, wanted.repository, wanted.commit or wanted.ref)
        if wanted.commit not in (None, commit):
            raise git.failure("the commit wanted is not a commit but something that leads to one")
        git.run("checkout", "--quiet", "--force", "--detach", commit)
        if not quiet and (Path(made) / ".gitmodules").exists():
            output.say("submodules are not fetched: their directories stay empty", style="yellow")
        source = GitSource(repository=name, ref=wanted.ref, commit=commit)
        yield Checkout(source=source, directory=Path(made))


def _fetch(git: Git, repository: str, ref: str) -> str:
    """Fetch as little as the server knows how to give; return the commit's id."""
    git.run("init", "--quiet", "--template=", *_object_format(ref))
    tried = git.attempt("fetch", "--depth=1", *git.quietly, "--", repository, ref)
    if "mismatched algorithms" in tried.said:
        shutil.rmtree(git.directory / ".git")
        git.run("init", "--quiet", "--template=", "--object-format=sha256")
        tried = git.attempt("fetch", "--depth=1", *git.quietly, "--", repository, ref)
    if tried.code == 0:
        return git.run("rev-parse", "--verify", "FETCH_HEAD^{commit}")
    if is_commit(ref):
        # Not every server gives out a commit by its id: then it must be in what branches hold.
        git.run("fetch", *git.quietly, "--", repository, *_EVERYTHING)
        if git.attempt("cat-file", "-e", f"{ref}^{{commit}}").code != 0:
            raise git.failure(f"no such commit: {ref}")
        return ref
    if "shallow" not in tried.said:
        raise git.failure(tried.said)
    git.run("fetch", *git.quietly, "--", repository, ref)
    return git.run("rev-parse", "--verify", "FETCH_HEAD^{commit}")


def _object_format(ref: str) -> tuple[str, ...]:
    return ("--object-format=sha256",) if is_commit(ref) and len(ref) == 64 else ()
