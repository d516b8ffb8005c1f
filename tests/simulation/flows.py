"""What the workflow of an attempt does: hear of the end, settle; ask the store when in doubt.

The rules are those of `workflows.attempt_lease`; settling is the product's.
"""

from dataclasses import dataclass

from forgeyard.errors import StoreUnavailable
from forgeyard.store import leases, settle
from forgeyard.store.engine import write
from tests.simulation.weather import Fault
from tests.simulation.world import World

SHORTEST = 1_000


@dataclass(kw_only=True)
class Flow:
    """One workflow: running, completed, or terminated."""

    is_told: bool = False
    is_done: bool = False
    rounds: int = 0


class Flows:
    """The workflows of all attempts."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._known: dict[str, Flow] = {}

    def start(self, attempt_id: str, *, ended: bool) -> bool:
        """Start or signal the workflow of an attempt; False if it has completed."""
        flow = self._known.get(attempt_id)
        if flow is not None and flow.is_done:
            return False
        if flow is None:
            flow = self._known[attempt_id] = Flow()
            self._wait(attempt_id, flow, self._world.between(10_000, 40_000))
            if self._world.weather.strikes(Fault.FLOW_ENDED, self._world.weather.flows / 4):
                delay = self._world.between(0, 15_000)
                self._world.after(delay, "operator", lambda: self._terminate(attempt_id, flow))
        if ended and not flow.is_told:
            flow.is_told = True
            delay = self._world.between(10, 300)
            if self._world.weather.strikes(Fault.FLOW_LATE, self._world.weather.flows):
                delay = self._world.between(2_000, 25_000)
            self._world.after(delay, "flow", lambda: self._settle(attempt_id, flow))
        return True

    def _terminate(self, attempt_id: str, flow: Flow) -> None:
        """End a workflow; a later event may start another one."""
        if self._known.get(attempt_id) is flow and not flow.is_done:
            self._world.tell("operator", f"terminates the workflow of {attempt_id[-6:]}")
            del self._known[attempt_id]
            flow.is_done = True

    def _wait(self, attempt_id: str, flow: Flow, delay_ms: int) -> None:
        flow.rounds += 1
        rounds = flow.rounds
        self._world.after(
            max(SHORTEST, delay_ms),
            "flow",
            lambda: self._ask(attempt_id, flow),
            unless=lambda: flow.is_done or flow.is_told or flow.rounds != rounds,
        )

    def _ask(self, attempt_id: str, flow: Flow) -> None:
        """Look at the attempt when every deadline it can have should have passed."""
        world = self._world
        try:
            with write(world.engine) as connection:
                view = leases.attempt_view(connection, attempt_id, world.policy(connection))
        except StoreUnavailable:
            self._wait(attempt_id, flow, SHORTEST)
            return
        if view.ended:
            self._settle(attempt_id, flow)
        else:
            self._wait(attempt_id, flow, view.backstop_ms)

    def _settle(self, attempt_id: str, flow: Flow) -> None:
        world = self._world
        if flow.is_done:
            return
        try:
            with write(world.engine) as connection:
                policy = world.policy(connection).lease
                settled = settle.settle(connection, attempt_id, policy=policy)
        except StoreUnavailable:
            world.after(SHORTEST, "flow", lambda: self._settle(attempt_id, flow))
            return
        world.tell("flow", f"{attempt_id[-6:]} settled: {settled.decision}")
        flow.is_done = True
