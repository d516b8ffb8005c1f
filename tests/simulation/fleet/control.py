"""What tends fleets: reconcilers, tenders of machines, a scheduler and a sweep.

They call the product's activities as its workflows do, with the same pauses and retries.
"""

import random
from collections.abc import Mapping
from unittest.mock import patch

from temporalio import activity

from activities import contracts
from activities.fleets import FleetActivities, Rhythm
from activities.provisioning import Home, Infrastructure, ProvisioningActivities
from forgeyard.errors import ForgeyardError, StoreUnavailable
from forgeyard.fleet.lifecycle import Pace
from forgeyard.store.engine import read
from forgeyard.store.sweep import sweep
from tests.builders import PARTITION
from tests.simulation.fleet.agents import Tokens
from tests.simulation.fleet.cloud import Cloud, Crashed
from tests.simulation.plane import Scheduler
from tests.simulation.world import World

TICK = 20_000
SWEEP = 20_000
NOTICED = 40_000
"""So long it takes until a dead worker is noticed: the heartbeat of an activity."""
FORGOTTEN = "the workflow of a machine was terminated"
DOUBLE = "two workers tended one machine"
RIVAL = "two workers decided about one fleet"
PACE = Pace(look=15_000)


def unheard() -> object:
    """Let activities run outside of Temporal, where nobody hears their heartbeats."""
    return patch.object(activity, "heartbeat", lambda *_details: None)


class Control:
    """All that tends the fleets of one store."""

    def __init__(self, world: World, clouds: Mapping[str, Cloud]) -> None:
        self.world = world
        kinds = {name: Infrastructure(provider=cloud, pace=PACE) for name, cloud in clouds.items()}
        rng = random.Random(f"{world.seed}/control")
        home = Home(url="https://forgeyard.test", invitations=Tokens())
        self.machines = ProvisioningActivities(
            world.engine, world.built_in, kinds, home, rng=world.ids
        )
        self.fleets = FleetActivities(
            world.engine, world.built_in, kinds, Rhythm(look=TICK, observe=30_000), rng=rng
        )
        self.tenders: dict[str, Tender] = {}
        self._scheduler = Scheduler(world, "scheduler", PARTITION)

    def begin(self) -> None:
        """Schedule and sweep from now on."""
        self._schedule()
        self._sweep()

    def reconcile(self, fleet_id: str, name: str) -> None:
        """Tend a fleet from now on, until nothing is left of it."""
        Reconciler(self, contracts.Fleet(fleet_id=fleet_id, partition=PARTITION, name=name)).round()

    def tend(self, machine: contracts.Machine) -> None:
        """Tend a machine from now on, or look at once if somebody does."""
        tender = self.tenders.get(machine.instance_id)
        if tender is None:
            tender = self.tenders[machine.instance_id] = Tender(self, machine)
        tender.step()

    def _schedule(self) -> None:
        self.world.after(8_000, "scheduler", self._schedule)
        try:
            if self._scheduler.is_pending():
                self._scheduler.commit_until_heard(self._scheduler.plan().cycle_id)
        except StoreUnavailable as error:
            self.world.tell("scheduler", error.message)

    def _sweep(self) -> None:
        world = self.world
        world.after(SWEEP, "sweep", self._sweep)
        try:
            with read(world.engine) as connection:
                policy = world.policy(connection)
            swept = sweep(world.engine, PARTITION, policy)
        except StoreUnavailable as error:
            world.tell("sweep", error.message)
            return
        if swept.expired or swept.settled:
            world.tell("sweep", f"{swept.expired} expired, {swept.settled} settled")


class Reconciler:
    """Does what `FleetReconcile` does."""

    def __init__(self, control: Control, fleet: contracts.Fleet) -> None:
        self.fleet = fleet
        self._control, self._world = control, control.world

    def round(self) -> None:
        """Look, decide, see to it that every machine is tended, rest."""
        world, is_over = self._world, False
        try:
            self._observe()
            is_over = self._tick()
            if world.weather.strikes(RIVAL, 0.15):
                world.after(world.between(0, 500), f"rival of {self.fleet.name}", self._rival)
        except Crashed:
            pass
        except ForgeyardError as error:
            world.tell(self.fleet.name, f"could not decide: {error.message}")
        if not is_over:
            world.after(TICK, self.fleet.name, self.round)

    def _rival(self) -> None:
        try:
            self._tick()
        except ForgeyardError as error:
            self._world.tell(self.fleet.name, f"rival could not decide: {error.message}")

    def _observe(self) -> None:
        try:
            self._control.fleets.observe_fleet(self.fleet)
        except ForgeyardError as error:
            self._world.tell(self.fleet.name, f"could not look: {error.message}")

    def _tick(self) -> bool:
        tick = self._control.fleets.tick_fleet(self.fleet)
        if tick.launched or tick.drained:
            self._world.tell(self.fleet.name, tick.line)
        for machine in tick.untended:
            self._control.tend(machine)
        return tick.gone


class Tender:
    """Does what `CapacityInstance` does, dies with its worker, and is forgotten at times."""

    def __init__(self, control: Control, machine: contracts.Machine) -> None:
        self._control, self._world = control, control.world
        self._machine = machine
        self._turns = 0
        self._is_stepping = False

    def step(self) -> None:
        """Take a step, and another when it is worth it."""
        world = self._world
        if self._is_stepping:
            return
        self._turns += 1
        turn = self._turns
        wait = 10_000
        self._is_stepping = True
        try:
            done = self._control.machines.advance_instance(self._machine)
            if done.ended:
                self._control.tenders.pop(self._machine.instance_id, None)
                return
            wait = max(200, done.wait_ms)
            if world.weather.strikes(DOUBLE, 0.04):
                world.after(world.between(0, 2_000), f"second {self._name}", self._double)
        except Crashed:
            if world.weather.strikes(FORGOTTEN, 0.3):
                self._control.tenders.pop(self._machine.instance_id, None)
                return
            wait = NOTICED
        except ForgeyardError as error:
            world.tell(self._name, f"could not be tended: {error.message}")
        finally:
            self._is_stepping = False
        world.after(wait, self._name, self.step, unless=lambda: self._turns != turn)

    @property
    def _name(self) -> str:
        return self._machine.runner_name

    def _double(self) -> None:
        """Tend the same machine once more, as a worker does that was thought dead."""
        try:
            self._control.machines.advance_instance(self._machine)
        except (Crashed, ForgeyardError):
            return
