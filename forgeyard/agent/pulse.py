"""What this agent says with each heartbeat, and what of it the server has heard already.

Pressure and health are said every time. A report of the whole host is said when it was looked at
anew, and what is at hand when that has changed, but not with every heartbeat.
"""

import asyncio
from dataclasses import replace

from forgeyard.agent import host, probe
from forgeyard.agent.shelf import Shelf
from forgeyard.agent.work import Shop
from forgeyard.model.ids import LeaseId
from forgeyard.model.protocol import Heartbeat, Register, Report
from forgeyard.model.runner import ResourcePressure
from forgeyard.model.units import Resources

HOLDINGS_EVERY = 3
"""What is at hand is said with every third heartbeat at most."""
SIGNIFICANT = 20
"""A disk that has changed by less than a twentieth is as large as before."""


def is_significant(before: Resources, after: Resources) -> bool:
    """Tell whether a host has changed in size; what is free of a disk always does a little."""
    if replace(before, disk=after.disk) != after:
        return True
    return abs(after.disk - before.disk) * SIGNIFICANT > before.disk


class Pulse:
    """The state of this host as its heartbeats tell it."""

    def __init__(self, shop: Shop, registration: Register) -> None:
        self._shop = shop
        self._told = registration.holdings
        self._unsaid: Report | None = None
        self._until_holdings = HOLDINGS_EVERY
        self.report: Report = registration
        """What this host can do, as it was last found."""
        self.pressure = ResourcePressure.NORMAL

    async def look_again(self, *, is_idle: bool) -> None:
        """Look at the host anew, and say what was found with the next heartbeat.

        What is free of a disk tells its size only while no job fills it.
        """
        config, kept = self._shop.config, await asyncio.to_thread(lambda: self._shop.shelf.size)
        found = await probe.report(
            config, self._shop.work_dir, kept=kept, isolation=self._shop.isolation
        )
        total = self.report.total
        if is_idle and is_significant(total, found.total):
            total = found.total
        self.report = self._unsaid = Report(
            capabilities=found.capabilities, total=total, headroom=found.headroom
        )

    async def message(self, held: tuple[LeaseId, ...], *, draining: bool) -> Heartbeat:
        """Make the next heartbeat from how the host does now."""
        self.pressure = await asyncio.to_thread(self._pressure, self._shop.shelf)
        self._until_holdings -= 1
        holdings = None
        if self._until_holdings <= 0:
            holdings = await asyncio.to_thread(self._shop.shelf.summary)
        health, reason = self._shop.health.now()
        return Heartbeat(
            pressure=self.pressure,
            draining=draining,
            held=held,
            health=health,
            health_reason=reason,
            unclean=bool(self._shop.health.quarantined),
            report=self._unsaid,
            holdings=None if holdings == self._told else holdings,
        )

    def tell_holdings(self) -> None:
        """Say with the next heartbeat what is at hand, if that has changed."""
        self._until_holdings = 0

    def heard(self, message: Heartbeat) -> None:
        """Note that the server has taken a heartbeat in."""
        if message.report is self._unsaid:
            self._unsaid = None
        if message.holdings is not None:
            self._told = message.holdings
            self._until_holdings = HOLDINGS_EVERY

    def _pressure(self, shelf: Shelf) -> ResourcePressure:
        """Look at the host; archives that are kept for speed make room before jobs have to wait."""
        pressure = self._load()
        if pressure is ResourcePressure.DISK and shelf.size > 0:
            shelf.clear()
            pressure = self._load()
        return pressure

    def _load(self) -> ResourcePressure:
        headroom = probe.headroom(self._shop.config).disk
        return host.load(self._shop.work_dir, disk_headroom=headroom).pressure()
