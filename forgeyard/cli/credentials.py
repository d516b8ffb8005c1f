"""Tokens that `forgeyard login` keeps, one for each system, in a file for its owner only."""

import json
import os
import stat
from pathlib import Path
from typing import Final, cast

from forgeyard.errors import Forbidden, InvalidFile

PRIVATE: Final = 0o600
CURRENT: Final = "current"
TOKENS: Final = "tokens"


class Credentials:
    """The file of one person's logins; use `read` and `write` to get and keep them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def current(self) -> str | None:
        """Tell which system was logged in to last."""
        found = self._read().get(CURRENT)
        return found if isinstance(found, str) else None

    def token(self, url: str) -> str | None:
        """Give the token for a system, if there is one."""
        return self._tokens(self._read()).get(url)

    def keep(self, url: str, token: str) -> None:
        """Keep the token for a system, which is the one to talk to from now on.

        Raises:
            Forbidden: others may read the file that is there.
        """
        tokens = {**self._tokens(self._read()), url: token}
        self._write({CURRENT: url, TOKENS: tokens})

    def forget(self, url: str) -> bool:
        """Forget the token for a system; tell whether there was one."""
        tokens = self._tokens(self._read())
        if tokens.pop(url, None) is None:
            return False
        self._write({CURRENT: next(iter(tokens), None), TOKENS: tokens})
        return True

    def _read(self) -> dict[str, object]:
        try:
            mode = stat.S_IMODE(self.path.stat().st_mode)
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        if mode & 0o077:
            raise Forbidden(
                f"{self.path}: others may read it, and it holds tokens",
                field="login",
                value=f"{mode:o}",
                allowed="0600: run chmod 600 on it",
            )
        try:
            found: object = json.loads(text)
        except ValueError as error:
            raise InvalidFile(f"{self.path}: {error}", file=str(self.path)) from None
        return cast("dict[str, object]", found) if isinstance(found, dict) else {}

    @staticmethod
    def _tokens(read: dict[str, object]) -> dict[str, str]:
        found = read.get(TOKENS)
        entries = cast("dict[str, object]", found) if isinstance(found, dict) else {}
        return {url: token for url, token in entries.items() if isinstance(token, str)}

    def _write(self, content: dict[str, object]) -> None:
        """Let the new file appear whole; it is private before anything is in it."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f"{json.dumps(content, indent=2)}\n")
        draft.replace(self.path)
