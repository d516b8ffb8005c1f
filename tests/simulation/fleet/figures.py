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

from forgeyard.model.capacity import CapacityInstanceState
from forgeyard.model.fleet import FleetSpec, ScaleDown, ScaleUp, Scaling
from tests.simulation.database import Database, on_sqlite
from tests.simulation.fleet.scene import Scene, a_spec
from tests.simulation.fleet.story import SCALING, alone

MINUTE = 60_000
S = CapacityInstanceState
Figures = Mapping[str, float]
LASTING = ScaleDown(idle_grace=60 * MINUTE, window=5 * MINUTE, at_once=50, drain_within=MINUTE)


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
    scene.run_until(lambda: set(scene.jobs()) == {"succeeded"} and scene.healthy(count), within=90)
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
        "machines ended": _ended(scene),
        "jobs": 4 * count,
        "jobs done meanwhile": done,
        "machines of the other fleet": len(scene.story.clouds["one"].made),
    }


def _ended(scene: Scene) -> int:
    """Count the machines that were there and are not; what was never made is none."""
    rows = [row for row in scene.rows() if row["provider"] == "two" and row["running_at"]]
    return sum(row["ended_at"] is not None for row in rows)


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
