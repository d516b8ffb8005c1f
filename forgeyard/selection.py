"""Which files of a directory go into an archive: a checkout's own, or what a glob names.

Decides by names only and never follows a link. What may be packed is the archive's business.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from forgeyard.errors import InvalidRequest, shortened

NEVER = frozenset({".git", ".forgeyard"})
"""Directories that are never part of a source: version control, and our own data with its token."""
FOREIGN_GIT = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR"),
    *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE"),
    *("GIT_SHALLOW_FILE", "GIT_TEMPLATE_DIR"),
)
"""Variables about another repository: whoever calls us from a git hook has them set."""
IGNORE_FILE = ".forgeyardignore"
_ANY_DEPTH = "**"
_GIT_SECONDS = 60
_NO_CHECKOUT = "not a git repository"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """A path pattern; `**` stands for any number of directories, `*` stays within one."""

    segments: tuple[str, ...]

    @classmethod
    def read(cls, text: str) -> "Pattern":
        """Split a pattern into its segments."""
        segments: list[str] = []
        for part in text.split("/"):
            if part not in ("", ".") and not (part == _ANY_DEPTH and segments[-1:] == [_ANY_DEPTH]):
                segments.append(part)
        return cls(segments=tuple(segments))

    def start(self) -> frozenset[int]:
        """Give the places in the pattern before any name was seen."""
        return self._closure({0})

    def step(self, places: frozenset[int], name: str) -> frozenset[int]:
        """Give the places in the pattern after one more name."""
        after: set[int] = set()
        for place in places:
            if place == len(self.segments):
                continue
            if self.segments[place] == _ANY_DEPTH:
                after.add(place)
            elif fnmatchcase(name, self.segments[place]):
                after.add(place + 1)
        return self._closure(after)

    def is_end(self, places: frozenset[int]) -> bool:
        """Tell whether the names seen so far match."""
        return len(self.segments) in places

    def matches(self, path: str) -> bool:
        """Tell whether a whole path matches."""
        places = self.start()
        for name in path.split("/"):
            places = self.step(places, name)
        return self.is_end(places)

    def _closure(self, places: set[int]) -> frozenset[int]:
        beyond = {
            place + 1
            for place in places
            if place < len(self.segments) and self.segments[place] == _ANY_DEPTH
        }
        return frozenset(places | beyond)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One line of an ignore file."""

    pattern: Pattern
    keeps: bool
    directories_only: bool


def read_rules(text: str) -> tuple[Rule, ...]:
    """Read an ignore file: the last rule that matches decides, `!` keeps, `/` at the end means
    directories, a `/` elsewhere ties the pattern to the root.
    """
    rules: list[Rule] = []
    for line in text.splitlines():
        written = line.strip()
        if not written or written.startswith("#"):
            continue
        keeps = written.startswith("!")
        body = written.removeprefix("!")
        tied = "/" in body.rstrip("/")
        rules.append(
            Rule(
                pattern=Pattern.read(body if tied else f"{_ANY_DEPTH}/{body}"),
                keeps=keeps,
                directories_only=body.endswith("/"),
            )
        )
    return tuple(rules)


def is_ignored(rules: tuple[Rule, ...], path: str, *, directory: bool) -> bool:
    """Tell whether the rules leave out this very path, its parents aside."""
    verdict = False
    for rule in rules:
        if (directory or not rule.directories_only) and rule.pattern.matches(path):
            verdict = not rule.keeps
    return verdict


def source_files(root: Path) -> list[str]:
    """List a source's files: what git would track, else all; less `.forgeyardignore`."""
    rules = _rules_of(root)
    listed = _git_files(root)
    if not listed:
        return sorted(_walked(root, "", rules))
    return sorted(name for name in listed if not _is_left_out(rules, name))


def matching(root: Path, pattern: str) -> list[str]:
    """List the files a glob names; a directory that matches stands for everything in it."""
    glob = Pattern.read(pattern)
    return sorted(_matching(root, "", glob, glob.start()))


def _rules_of(root: Path) -> tuple[Rule, ...]:
    try:
        return read_rules((root / IGNORE_FILE).read_text(encoding="utf-8", errors="replace"))
    except (FileNotFoundError, IsADirectoryError):
        return ()


def _is_left_out(rules: tuple[Rule, ...], path: str) -> bool:
    parts = path.split("/")
    if not NEVER.isdisjoint(parts):
        return True
    parents = ("/".join(parts[:depth]) for depth in range(1, len(parts)))
    return is_ignored(rules, path, directory=False) or any(
        is_ignored(rules, parent, directory=True) for parent in parents
    )


def _git_files(root: Path) -> list[str]:
    """Ask git for tracked and untracked files; nothing if it is no checkout, or ignored itself.

    Raises:
        InvalidRequest: git fails in a checkout; to pack everything would include what it ignores.
    """
    git = shutil.which("git")
    if git is None:
        return []
    # A checkout's own configuration must not start a monitor.
    here = [word for name in FOREIGN_GIT for word in ("-u", name)]
    command = ["env", *here, git, "-c", "core.fsmonitor=false", "-C", str(root), "ls-files", "-z"]
    try:
        done = subprocess.run(
            [*command, "--cached", "--others", "--exclude-standard"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except OSError as error:
        raise _git_fails(root, str(error)) from error
    except subprocess.TimeoutExpired as error:
        raise _git_fails(root, f"no answer in {_GIT_SECONDS} seconds") from error
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        if _NO_CHECKOUT in said or not _is_in_checkout(root):
            return []
        raise _git_fails(root, said)
    names = (os.fsdecode(name) for name in done.stdout.split(b"\0") if name)
    return [file for name in names for file in _with_nested(root, name.rstrip("/"))]


def _is_in_checkout(root: Path) -> bool:
    here = root.resolve()
    return any((folder / ".git").exists() for folder in (here, *here.parents))


def _git_fails(root: Path, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"git cannot tell which files of {root} it ignores: {shortened(why, 500)}",
        field="source",
        value=root,
        allowed="a checkout that git can read, or a directory that is none",
    )


def _with_nested(root: Path, name: str) -> list[str]:
    """Give a file as it is, and for a checkout within the checkout its own files."""
    path = root / name
    if path.is_symlink() or not path.is_dir():
        return [name]
    inner = _git_files(path) if (path / ".git").exists() else []
    return [f"{name}/{file}" for file in inner] or list(_walked(root, name, ()))


def _walked(root: Path, directory: str, rules: tuple[Rule, ...]) -> Iterator[str]:
    """List files below a directory, leaving out what the rules name."""
    pending = [directory]
    while pending:
        for path, entry in _entries(root, pending.pop()):
            is_directory = entry.is_dir(follow_symlinks=False)
            if entry.name in NEVER or is_ignored(rules, path, directory=is_directory):
                continue
            if is_directory:
                pending.append(path)
            else:
                yield path


def _matching(root: Path, directory: str, glob: Pattern, places: frozenset[int]) -> Iterator[str]:
    pending = [(directory, places)]
    while pending:
        here, before = pending.pop()
        for path, entry in _entries(root, here):
            after = glob.step(before, entry.name)
            if not entry.is_dir(follow_symlinks=False):
                if glob.is_end(after):
                    yield path
            elif glob.is_end(after):
                yield from _walked_whole(root, path)
            elif after:
                pending.append((path, after))


def _walked_whole(root: Path, directory: str) -> Iterator[str]:
    pending = [directory]
    while pending:
        for path, entry in _entries(root, pending.pop()):
            if entry.is_dir(follow_symlinks=False):
                pending.append(path)
            else:
                yield path


def _entries(root: Path, directory: str) -> list[tuple[str, os.DirEntry[str]]]:
    """List a directory; one that vanished has no entries.

    Raises:
        InvalidRequest: it may not be read, so nobody can tell what would be missing.
    """
    try:
        with os.scandir(root / directory) as entries:
            prefix = f"{directory}/" if directory else ""
            return [(prefix + entry.name, entry) for entry in entries]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except PermissionError as error:
        raise InvalidRequest(
            f"{directory or root} cannot be read", field="path", value=directory or root
        ) from error
