"""What one attempt is shut in: its directories, its network and its control group."""

import os
from collections.abc import Callable
from dataclasses import dataclass

from forgeyard.agent.cgroup import JobGroup
from forgeyard.agent.confine import Confinement, started
from forgeyard.agent.process import Command
from forgeyard.agent.workspace import Folders
from forgeyard.model.equipment import NetworkMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One attempt's share of the confinement of this host."""

    confinement: Confinement
    folders: Folders
    network: NetworkMode = NetworkMode.HOST
    group: JobGroup | None = None
    memory: int = 0
    """How many bytes its processes may use together; 0 is no limit."""

    def open(self) -> None:
        """Hand its directories over to the job and make its control group; blocking.

        Raises:
            OSError: the system refuses.
        """
        self.confinement.take_over(self.folders)
        if self.group is not None:
            self.group.make(memory=self.memory, processes=self.confinement.processes)

    def around(self, step: Command) -> Command:
        """Shut a step's command in."""
        doors = () if self.group is None else self.group.doors
        return self.confinement.shut_in(step, self.folders, network=self.network, groups=doors)

    def hand_over(self, descriptor: int) -> None:
        """Let the job open a pipe by its name, as its own."""
        account = self.confinement.account
        if account is not None:
            os.fchown(descriptor, account.uid, account.gid)

    @property
    def was_reached(self) -> bool:
        """Tell whether the latest step began; if not, it was the confinement that failed."""
        return started(self.folders).exists()

    def watch_memory(self) -> Callable[[], bool]:
        """Count from now on: tell later whether a process was killed for want of memory."""
        before = self._kills()
        return lambda: self._kills() > before

    def _kills(self) -> int:
        return 0 if self.group is None else self.group.kills()

    def close(self) -> bool:
        """End whatever is left in the control group; tell whether that went well. Blocks."""
        return self.group is None or self.group.remove()
