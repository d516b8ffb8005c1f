"""Where a requirement comes from, so that an explanation can say who wants it (ELG-035)."""

from dataclasses import dataclass
from enum import StrEnum

from forgeyard.model.equipment import Word


class OriginKind(StrEnum):
    """Who added a requirement; a run file may say neither policy nor security of its own."""

    PIPELINE = "pipeline"
    """Whoever wrote the run file; what says nothing else comes from there."""
    ECOSYSTEM = "ecosystem"
    """A build plan, from the tools that a language's own files ask for."""
    PLATFORM = "platform"
    """What a choice of platform brings with it."""
    POLICY = "policy"
    DEVICE = "device"
    """What a physical device needs beside it."""
    SECURITY = "security"
    """What the scheduler asks for of its own accord."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Who added one requirement, and what for."""

    kind: OriginKind = OriginKind.PIPELINE
    detail: Word = ""
    """The rule of a policy, or whatever a run file says."""
    policy_version: int | None = None

    @property
    def text(self) -> str:
        """Print it: `policy 3: deploy jobs`."""
        number = "" if self.policy_version is None else f" {self.policy_version}"
        return f"{self.kind}{number}: {self.detail}" if self.detail else f"{self.kind}{number}"


WRITTEN = Origin()
"""Where a requirement comes from of which nothing else is known."""
