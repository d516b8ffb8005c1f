"""What the local provider writes down of a machine, one file each, before and after it starts."""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

from annotated_types import Ge, Le, MaxLen
from pydantic import TypeAdapter, ValidationError

from forgeyard.errors import Corrupt, InvalidSpec
from forgeyard.fleet.ports import ProvisionRequest
from forgeyard.model.capacity import MachineState
from forgeyard.model.units import LARGEST

KEY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")
"""What an operation key looks like; it names a directory here."""
LARGEST_FILE: Final = 64 * 1024
INTERRUPTION: Final = "interruption"
LONGEST_INSTANT: Final = 12
"""Seconds for the next 30,000 years."""
Text = Annotated[str, MaxLen(4 * 1024)]
Time = Annotated[int, Ge(0), Le(LARGEST)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A machine of this host: what was asked for, and what has become of it."""

    key: Text
    digest: Text
    """Of the whole request: the same key means the same request."""
    tags: Annotated[Mapping[Text, Text], MaxLen(64)]
    image: Text = ""
    machine: Text = ""
    region: Text = ""
    zone: Text = ""
    created_at: Time
    pid: Time = 0
    """Zero until it is known to have started."""
    started: Time = 0
    """When, as the kernel counts: process numbers are used again."""
    boot: Text = ""
    stopping_at: Time = 0
    signals: Annotated[int, Ge(0), Le(3)] = 0
    """How many it was sent, the kindest first."""
    ended_at: Time = 0
    detail: str = field(default="")

    @property
    def state(self) -> MachineState:
        """Tell how it was when it was last looked at."""
        if self.ended_at:
            return MachineState.GONE
        if self.stopping_at:
            return MachineState.STOPPING
        return MachineState.RUNNING if self.pid else MachineState.PENDING


_RECORD = TypeAdapter(Record)
_REQUEST = TypeAdapter(ProvisionRequest)


def digest_of(request: ProvisionRequest) -> str:
    """Name a request by all that it asks for; what it may know of an answer is not part of it."""
    wish = _REQUEST.dump_python(request, mode="json", exclude={"ref"})
    canonical = json.dumps(wish, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def parse(text: bytes) -> Record:
    """Read a record.

    Raises:
        Corrupt: it is not one.
    """
    try:
        return _RECORD.validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise Corrupt(f"the record of a machine cannot be read: {first['msg']}") from error


class Shelf:
    """A directory with one directory for each machine."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def folder(self, key: str) -> Path:
        """Tell where everything of a machine lies.

        Raises:
            InvalidSpec: the key would lead elsewhere.
        """
        if not KEY.fullmatch(key):
            raise InvalidSpec(
                "an operation key cannot name a directory",
                field="operation_key",
                value=key,
                allowed="1 to 64 letters, digits and hyphens",
            )
        return self._root / key

    def known(self) -> Iterator[str]:
        """List the machines there may be a record of."""
        for entry in sorted(self._root.iterdir()):
            if entry.is_dir() and KEY.fullmatch(entry.name):
                yield entry.name

    def read(self, key: str) -> Record | None:
        """Find the record of a machine.

        Raises:
            Corrupt: there is one, and it cannot be read.
        """
        file = self.folder(key) / "record.json"
        try:
            with file.open("rb") as stream:
                text = stream.read(LARGEST_FILE)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Corrupt(f"{file}: {error.strerror}") from error
        found = parse(text)
        if found.key != key:
            raise Corrupt(f"{file}: it is the record of another machine")
        return found

    def announced_end(self, key: str) -> int:
        """Tell when an operator has a machine taken away, in epoch milliseconds; 0 is never.

        He writes that instant into a file, in seconds as `date +%s` has them.
        """
        try:
            with (self.folder(key) / INTERRUPTION).open("rb") as stream:
                said = stream.read(LONGEST_INSTANT).strip()
        except FileNotFoundError:
            return 0
        return int(said) * 1000 if said.isdigit() else 0

    def write(self, record: Record) -> None:
        """Write a record down so that it is there after a crash, whole, old or new."""
        folder = self.folder(record.key)
        folder.mkdir(mode=0o700, exist_ok=True)
        draft = folder / "record.new"
        with draft.open("wb") as stream:
            stream.write(_RECORD.dump_json(record, indent=2))
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(folder / "record.json")
