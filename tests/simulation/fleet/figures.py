"""Bad days of a fleet, measured: how many calls, machines and minutes each of them costs.

`python -m tests.simulation.fleet.figures` prints the figures of the documentation; with `--small`
those that the tests look at.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from forgeyard.fleet.plan import decide
from forgeyard.fleet.view import FleetView, InstanceView
from forgeyard.model.capacity import CapacityInstanceState
from forgeyard.model.fleet import FleetSpec, ScaleDown, ScaleUp, Scaling
from forgeyard.model.units import GIB
from tests.builders import some_resources
from tests.fleets import CHEAP, a_class, a_demand, wanting
from tests.simulation.database import Database, on_sqlite
from tests.simulation.fleet.scene import Scene, a_spec
from tests.simulation.fleet.story import SCALING, alone

MINUTE = 60_000
TICK = 20_000
S = CapacityInstanceState
Figures = Mapping[str, float]
QUICK = ScaleUp(per_minute=1_000, burst=1_000)
LASTING = ScaleDown(idle_grace=60 * MINUTE, window=5 * MINUTE, at_once=50, drain_within=MINUTE)


class Toy:
    """A fleet whose machines come up after a minute and do a job a minute in each of four slots.

    Only the planner is the product's: ten thousand jobs are too many for anything else here.
    """

    def __init__(self, scaling: Scaling) -> None:
        self._spec = FleetSpec(
            name="burst", capacity=a_class(image=""), offerings=(CHEAP,), scaling=scaling
        )
        self.now = 0
        self.waiting = 0
        self.most = 0
        self.asked: list[int] = []
        self.turns: list[tuple[int, int]] = []
        """When it grew (1) or shrank (-1)."""
        self._machines: dict[str, InstanceView] = {}
        self._wanted: list[tuple[int, int]] = []
        self._done: dict[str, int] = {}

    def tick(self) -> None:
        """Decide once, and let a tick pass."""
        view = FleetView(
            fleet_id="flt_burst",
            spec=self._spec,
            instances=tuple(self._machines.values()),
            launches=tuple(at for at in self.asked if at > self.now - MINUTE),
            wanted=tuple(self._wanted[-30:]),
        )
        classes = (wanting(self.waiting, resources=some_resources(cpu=1_000, memory=GIB)),)
        share = {"small": self.waiting} if self.waiting else {}
        demand = a_demand(*(classes if self.waiting else ()))
        decision = decide(view, share, demand=demand, now=self.now)
        self._wanted.append((self.now, decision.wanted))
        for _ in decision.launch:
            name = f"cin_{len(self.asked):06}"
            self._machines[name] = _coming(name, self.now)
            self.asked.append(self.now)
        for release in decision.drain:
            self._machines.pop(release.instance_id)
        if decision.launch or decision.drain:
            self.turns.append((self.now, 1 if decision.launch else -1))
        self.most = max(self.most, len(self._machines))
        self._pass()

    def _pass(self) -> None:
        self.now += TICK
        for name, machine in self._machines.items():
            if machine.state is S.PROVISIONING and self.now - machine.requested_at >= MINUTE:
                machine = replace(machine, state=S.HEALTHY, healthy_at=self.now)
            if machine.state is S.HEALTHY and self._done.get(name, 0) <= self.now:
                count = min(4, self.waiting)
                self.waiting -= count
                if count:
                    self._done[name] = self.now + MINUTE
                idle = None if count else machine.idle_since or self.now
                machine = replace(machine, leases=count, idle_since=idle)
            self._machines[name] = machine

    @property
    def size(self) -> int:
        """Tell how many machines there are."""
        return len(self._machines)

    def changes_within(self, window: int) -> int:
        """Tell how often it turned from growing to shrinking or back within a window, at most."""
        flips = [
            late
            for (_, before), (late, after) in zip(self.turns, self.turns[1:], strict=False)
            if before != after
        ]
        return max((sum(at <= one < at + window for one in flips) for at in flips), default=0)


def _coming(name: str, now: int) -> InstanceView:
    return InstanceView(
        instance_id=name,
        state=S.PROVISIONING,
        offering="cheap",
        runner_id=f"rnr_{name}",
        requested_at=now,
    )


def burst(jobs: int = 10_000, cycles: int = 6) -> Figures:
    """Let so many jobs come at once, then none, again and again."""
    scaling = Scaling(max=400, up=ScaleUp(per_minute=100, burst=100), down=replace(LASTING))
    scaling = replace(scaling, down=replace(LASTING, idle_grace=3 * MINUTE))
    toy = Toy(scaling)
    served = 0
    for _ in range(cycles):
        toy.waiting, began = jobs, toy.now
        while toy.waiting:
            toy.tick()
        served = max(served, toy.now - began)
        while toy.size:
            toy.tick()
    fastest = max(sum(at <= one < at + MINUTE for one in toy.asked) for at in set(toy.asked))
    return {
        "jobs": jobs,
        "cycles": cycles,
        "machines at most": toy.most,
        "machines made": len(toy.asked),
        "asked for within a minute, at most": fastest,
        "minutes until the last job had a machine, at most": served / MINUTE,
        "turns within five minutes, at most": toy.changes_within(5 * MINUTE),
    }


def thrash(minutes: int = 120) -> Figures:
    """Let four jobs come every two minutes, which take one: the fleet must not follow each."""
    toy = Toy(Scaling(max=20, up=QUICK, down=replace(LASTING, idle_grace=3 * MINUTE)))
    while toy.now < minutes * MINUTE:
        if toy.now % (2 * MINUTE) == 0:
            toy.waiting += 4
        toy.tick()
    return {
        "minutes": minutes,
        "waves": minutes // 2,
        "machines made": len(toy.asked),
        "turns within five minutes, at most": toy.changes_within(5 * MINUTE),
    }


def _fleet(count: int, name: str = "beta", provider: str = "two") -> FleetSpec:
    up, most = ScaleUp(per_minute=10_000, burst=10_000), 2 * count
    scaling = Scaling(min=count, max=most, up=up, down=LASTING)
    return replace(a_spec(name, scaling=scaling), provider=provider)


def interruption(database: Database, count: int = 500) -> Figures:
    """Let a provider take 60 % of the machines of a fleet away within ten seconds."""
    taken = count * 6 // 10
    scene = Scene(database, _fleet(count))
    scene.run_until(lambda: scene.healthy(count), within=60)
    scene.submit(count)
    busy = ("preparing", "running")
    scene.run_until(lambda: sum(state in busy for state in scene.jobs()) >= count // 2)
    began, made = scene.world.now_ms, len(scene.cloud.made)
    victims = [one.thing.ref for one in scene.cloud.living()][:taken]
    for place, ref in enumerate(victims):
        scene.world.after(place * 10_000 / taken, "two", lambda ref=ref: scene.fake.kill(ref))
    scene.run_until(lambda: set(scene.jobs()) == {"succeeded"}, within=60)
    served = (scene.world.now_ms - began) / MINUTE
    scene.run_until(lambda: scene.healthy(count), within=60)
    return {
        "machines": count,
        "taken away": taken,
        "jobs": count,
        "jobs that failed": sum(state != "succeeded" for state in scene.jobs()),
        "attempts": scene.attempts(),
        "machines made instead": len(scene.cloud.made) - made,
        "minutes until every job had succeeded": served,
        "minutes until as many were healthy": (scene.world.now_ms - began) / MINUTE,
    }


def errors(database: Database, count: int = 20, minutes: int = 15) -> Figures:
    """Let a provider answer 500 to everything, with another fleet for the same class beside it."""
    other = replace(a_spec("alpha", scaling=replace(SCALING, min=0, max=8)), provider="one")
    scene = Scene(database, _fleet(count), other)
    scene.run_until(lambda: scene.healthy(count), within=60)
    scene.fake.knobs.calls = "down"
    before = scene.fake.calls.total()
    for ref in [one.thing.ref for one in scene.cloud.living()][: count // 2]:
        scene.fake.kill(ref)
    scene.submit(4 * count)
    scene.run(minutes)
    calls = scene.fake.calls.total() - before
    done = sum(state == "succeeded" for state in scene.jobs())
    elsewhere = len(scene.story.clouds["one"].made)
    scene.fake.knobs.calls = ""
    began = scene.world.now_ms
    rest = lambda: set(scene.jobs()) == {"succeeded"} and scene.healthy(count)  # noqa: E731
    scene.run_until(rest, within=90)
    return {
        "machines": count,
        "died meanwhile": count // 2,
        "minutes of 500s": minutes,
        "calls within a minute": calls / minutes,
        "jobs": 4 * count,
        "jobs done meanwhile": done,
        "machines of the other fleet": elsewhere,
        "machines ended without need": _ended(scene) - count // 2,
        "minutes until all was as before": (scene.world.now_ms - began) / MINUTE,
    }


def outage(database: Database, count: int = 20, minutes: int = 15) -> Figures:
    """Let a region list nothing, with success, and make nothing, while its machines run on."""
    other = replace(a_spec("alpha", scaling=replace(SCALING, min=0, max=8)), provider="one")
    scene = Scene(database, _fleet(count), other)
    scene.run_until(lambda: scene.healthy(count), within=60)
    knobs = scene.fake.knobs
    knobs.is_empty = True
    knobs.offerings.update(dict.fromkeys(("spot", "cheap", "dear"), "ice"))
    scene.submit(4 * count)
    scene.run(minutes)
    kept, done = scene.healthy(count), sum(state == "succeeded" for state in scene.jobs())
    return {
        "machines": count,
        "minutes of empty listings": minutes,
        "machines kept": count if kept else scene.states().count("healthy"),
        "ends asked for": scene.fake.calls["terminate"],
        "jobs": 4 * count,
        "jobs done meanwhile": done,
        "machines of the other fleet": len(scene.story.clouds["one"].made),
    }


def _ended(scene: Scene) -> int:
    return sum(row["ended_at"] is not None for row in scene.rows() if row["provider"] == "two")


IN_SQL: Mapping[str, Callable[[Database, int], Figures]] = {
    "mass interruption": interruption,
    "provider 500s": errors,
    "region outage": outage,
}


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="the sizes of the tests")
    parser.add_argument("--only", choices=sorted(IN_SQL), help="one of those that take minutes")
    options = parser.parse_args()
    if not options.only:
        for name, figures in (("thrash", thrash()), ("burst", burst())):
            _print(name, figures)
    with tempfile.TemporaryDirectory() as folder, alone(1):
        database = on_sqlite(Path(folder))
        for name, scenario in IN_SQL.items():
            if options.only in (None, name):
                size = 500 if name == "mass interruption" else 20
                _print(name, scenario(database, 6 if options.small else size))
    return 0


def _print(name: str, figures: Figures) -> None:
    print(f"{name}:", flush=True)
    for what, number in figures.items():
        print(f"  {number:10.4g} {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
