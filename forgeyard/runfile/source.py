"""Which repositories and refs a run may name, and what of them may be submitted.

Judges what people write; fetches nothing. A URL that carries credentials may be written, for git is
asked for it where it was written; it is never submitted, stored or shown.
"""

import re
from dataclasses import replace
from typing import Final

from forgeyard.errors import InvalidRequest, shortened, without_credentials
from forgeyard.model.run import HEAD, GitRef, GitSource
from forgeyard.runfile.schema import SourcePart
from forgeyard.runfile.values import COMMIT

MAX_REPOSITORY: Final = 2_000
MAX_REF: Final = 250
REPOSITORIES: Final = "an https, http, ssh, git or file URL, user@host:path, or an absolute path"
REFS: Final = "a branch, a tag or a full commit id"

_REPOSITORY: Final = re.compile(
    r"(https?|git)://[^\s/?#-][^\s?#]*"
    r"|ssh://(?!-|[^\s/]*@-)[^\s/]\S*"
    r"|file:///.+"
    r"|[\w.~][\w.~-]*@[\w.][\w.-]*:[^:\s-]\S*"
    r"|/.*",
    re.ASCII,
)
_NO_REF: Final = re.compile(r"^[-+/]|[\s~^:?*\[\\]|\.\.|@\{|//|[./]$|\.lock$")
"""What git refuses in the name of a ref, or would take for more than a name."""
_COMMIT: Final = re.compile(COMMIT)


def compile_source(part: SourcePart) -> GitRef:
    """Check a run file's source.

    Raises:
        InvalidRequest: git must not be asked for such a repository or ref.
    """
    check_repository(part.git, field="source.git")
    ref = HEAD if part.ref is None else part.ref
    check_ref(ref, field="source.ref")
    return GitRef(repository=part.git, ref=ref, commit=part.commit)


def check_repository(text: str, *, field: str) -> None:
    """Refuse everything but the usual ways to name a repository: no options, no other transports.

    Raises:
        InvalidRequest: naming only what stands behind credentials.
    """
    if text.isprintable() and len(text) <= MAX_REPOSITORY and _REPOSITORY.fullmatch(text):
        return
    before, at, rest = text.rpartition("@")
    shown = rest.partition("?")[0]
    raise InvalidRequest(
        f"{field}: this names no repository that git may be asked for",
        field=field,
        value=ascii(shortened(f"...@{shown}" if at and before else shown)),
        allowed=REPOSITORIES,
    )


def check_ref(text: str, *, field: str) -> None:
    """Refuse what is no plain name: options, ranges, patterns.

    Raises:
        InvalidRequest: it is none.
    """
    if text.isprintable() and 0 < len(text) <= MAX_REF and not _NO_REF.search(text):
        return
    raise InvalidRequest(
        f"{field}: this is no name of a ref", field=field, value=ascii(text), allowed=REFS
    )


def is_commit(ref: str) -> bool:
    """Tell whether a ref is a full commit id."""
    return _COMMIT.fullmatch(ref) is not None


def written(git: GitRef) -> dict[str, str]:
    """Write a source as it stands in a document to submit: without credentials."""
    named = {"git": without_credentials(git.repository), "ref": git.ref}
    return named if git.commit is None else {**named, "commit": git.commit}


def resolved(git: GitRef | None, *, digest: str | None) -> GitSource | None:
    """Give the commit of a document that is submitted; its files must have been uploaded.

    Raises:
        InvalidRequest: no commit or no files, or credentials in the URL.
    """
    if git is None:
        return None
    if git.commit is None or digest is None:
        missing = "source.commit" if git.commit is None else "source_digest"
        raise InvalidRequest(
            f"{missing} is missing: the server fetches no repositories",
            field=missing,
            allowed="use `forgeyard run submit`, or upload the commit's files and name the commit",
        )
    if replace(git, repository=without_credentials(git.repository)) != git:
        raise InvalidRequest(
            "source.git carries credentials, which would be stored",
            field="source.git",
            value=git.repository,
            allowed="the URL without user and password",
        )
    return GitSource(repository=git.repository, ref=git.ref, commit=git.commit)
