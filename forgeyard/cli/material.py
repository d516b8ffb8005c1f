"""What a run is submitted with: its document, and the directory or commit that its jobs get."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from forgeyard import archive
from forgeyard.cli.checkout import Checkout, checked_out
from forgeyard.errors import InvalidRequest, NotFound, UnsafePath
from forgeyard.model.run import HEAD, GitRef
from forgeyard.runfile.load import load_run
from forgeyard.runfile.source import check_ref, check_repository, written


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Where the command line says that the source comes from."""

    source: Path | None = None
    no_source: bool = False
    git: str | None = None
    ref: str | None = None

    @property
    def local(self) -> str | None:
        """Name the option that speaks of local files, if one was given."""
        if self.no_source:
            return "--no-source"
        return None if self.source is None else "--source"


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """A document and the directory to pack, if any; `called` is what people know it by."""

    document: Mapping[str, object]
    directory: Path | None
    called: str


@contextmanager
def gathered(file: Path, choice: Choice, *, quiet: bool) -> Generator[Material]:
    """Read the run file and have its source at hand for as long as the block runs.

    Raises:
        InvalidRequest: two sources are named.
        NotFound: there is no such file, repository or ref.
        InvalidRunFile: with its place.
    """
    if choice.git is not None:
        with checked_out(_typed(choice.git, choice), quiet=quiet) as checkout:
            yield _of_commit(_read_within(checkout, file), checkout)
        return
    if choice.ref is not None:
        raise InvalidRequest("--ref goes with --git", field="--ref", value=choice.ref)
    run, document = load_run(file)
    if run.git is None:
        source = None if choice.no_source else choice.source or Path()
        yield Material(document=document, directory=source, called=str(source))
        return
    if choice.local is not None:
        raise _twice(choice.local, f"the source that {file} names")
    with checked_out(run.git, quiet=quiet) as checkout:
        yield _of_commit(document, checkout)


def _typed(git: str, choice: Choice) -> GitRef:
    """Take a repository from the command line; a directory here is one, too."""
    if choice.local is not None:
        raise _twice(choice.local, "--git")
    repository = str(Path(git).resolve()) if git and Path(git).is_dir() else git
    check_repository(repository, field="--git")
    ref = HEAD if choice.ref is None else choice.ref
    check_ref(ref, field="--ref")
    return GitRef(repository=repository, ref=ref)


def _twice(option: str, other: str) -> InvalidRequest:
    return InvalidRequest(
        f"{option} and {other} exclude each other", field=option, allowed="one source"
    )


def _read_within(checkout: Checkout, file: Path) -> Mapping[str, object]:
    """Read the run file of a commit; no link may lead out of it."""
    path = Path(archive.safe_relative(str(file), "FILE"))
    target, commit = checkout.directory / path, checkout.source
    if not target.resolve().is_relative_to(checkout.directory.resolve()):
        raise UnsafePath(f"{path} leads out of the commit", field="FILE", value=path)
    if not target.exists():
        raise NotFound(
            f"there is no file {path} in {commit.commit} of {commit.repository}",
            field="FILE",
            value=path,
        )
    run, document = load_run(path, checkout.directory)
    if run.git is not None:
        raise _twice("--git", f"the source that {path} names")
    return document


def _of_commit(document: Mapping[str, object], checkout: Checkout) -> Material:
    found = checkout.source
    named = GitRef(repository=found.repository, ref=found.ref, commit=found.commit)
    return Material(
        document={**document, "source": written(named)},
        directory=checkout.directory,
        called=f"{found.repository} at {found.commit[:10]}",
    )
