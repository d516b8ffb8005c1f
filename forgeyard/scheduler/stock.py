"""The devices that are left while a cycle places its jobs.

Runners that have the same devices and hold the same of them are looked at once, however many they
are. Fleets without devices pay nothing: no question is asked before a job wants one.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TypeVar

import numpy as np

from forgeyard.model.devices import device_ids
from forgeyard.model.equipment import Equipment, EquipmentRequirement
from forgeyard.scheduler.columns import Columns, Mask, Places
from forgeyard.scheduler.devices import ALL_FREE, Held, allocate, plus
from forgeyard.scheduler.eligibility import busy_devices
from forgeyard.scheduler.rejection import RejectionCode

Answer = TypeVar("Answer")
Judge = Callable[[Equipment, Held], Answer]
State = tuple[int, tuple[tuple[int, int], ...]]
"""A profile, and what is held of its devices by their place in the report."""


class Stock:
    """What leases and placed jobs hold of every runner's devices."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._held: dict[int, Held] = {
            place: runner.held_devices
            for place, runner in enumerate(columns.runners)
            if runner.held_devices
        }
        self._numbers: dict[State, int] = {}

    def held(self) -> Mapping[str, Held]:
        """Tell what is held of the devices of the runners of whose any is."""
        runners = self._columns.runners
        return {runners[place].runner_id: held for place, held in self._held.items()}

    def held_at(self, place: int) -> Held:
        """Tell what is held of one runner's devices."""
        return self._held.get(place, ALL_FREE)

    def take(self, place: int, wanted: EquipmentRequirement) -> None:
        """Give a job its devices on a runner that has them free."""
        held = self.held_at(place)
        shares = allocate(wanted, self._equipment(place), held) or ()
        if shares:
            self._held[place] = plus(held, shares)
            self._states[place] = self._number(place)

    def fitting(self, wanted: EquipmentRequirement, places: Places) -> Mask:
        """Tell which of some runners have what a job wants free, one by one."""
        if not wanted.wants_devices:
            return np.ones(len(places), dtype=np.bool_)
        answers = self._asked(
            wanted, places, lambda has, held: allocate(wanted, has, held) is not None
        )
        return np.array(answers, dtype=np.bool_)

    def busy(self, wanted: EquipmentRequirement) -> list[tuple[RejectionCode, ...]]:
        """List for every runner the sorts of device that it has, but not free now."""
        if not wanted.wants_devices:
            return []
        everywhere: Places = np.arange(len(self._columns.runners))
        return self._asked(
            wanted,
            everywhere,
            lambda has, held: tuple(it.code for it in busy_devices(wanted, has, held)),
        )

    def _asked(
        self, wanted: EquipmentRequirement, places: Places, judge: Judge[Answer]
    ) -> list[Answer]:
        """Put a question to each of some runners, and only once to those that are alike."""
        if wanted.names_devices:
            return [self._judged(place, judge) for place in places.tolist()]
        _, first, which = np.unique(self._states[places], return_index=True, return_inverse=True)
        answers = [self._judged(place, judge) for place in places[first].tolist()]
        return [answers[number] for number in which.tolist()]

    def _judged(self, place: int, judge: Judge[Answer]) -> Answer:
        return judge(self._equipment(place), self.held_at(place))

    @cached_property
    def _states(self) -> Places:
        """Number what runners have and hold; made when the first job asks."""
        states = self._columns.profile_of.copy()
        self._numbers = {(int(state), ()): int(state) for state in np.unique(states)}
        for place in self._held:
            states[place] = self._number(place)
        return states

    def _number(self, place: int) -> int:
        held = self._held[place]
        ids = device_ids(self._equipment(place))
        shares = tuple((number, held[name]) for number, name in enumerate(ids) if name in held)
        state = (int(self._columns.profile_of[place]), shares)
        return self._numbers.setdefault(state, len(self._numbers))

    def _equipment(self, place: int) -> Equipment:
        return self._columns.runners[place].capabilities.equipment
