"""The fleet of `forgeyard demo`: no machine to begin with, none in the end, and why in between."""

import time
from collections.abc import Iterator
from typing import Final

from forgeyard import clock
from forgeyard.cli import output
from forgeyard.cli.client import Client, path_of, shaped
from forgeyard.cli.fleet_shapes import Decision, Plan, Standing
from forgeyard.cli.following import Patience

NAME: Final = "demo"
MOST: Final = 2
GONE_WITHIN_S: Final = 120.0
PAUSE_S: Final = 0.5
COLUMNS: Final = ("after", "needs", "has", "decision", "because")


def document(toolchain: str, version: str) -> dict[str, object]:
    """Describe a fleet of small machines that come for the run and go soon after it."""
    return {
        "name": NAME,
        "provider": "local",
        "capacity": {
            "resources": {"cpu": 1, "memory": "2Gi", "disk": "4Gi", "slots": 2},
            "toolchains": [{"name": toolchain, "version": version}],
            "trust": "trusted_internal",
        },
        "scaling": {
            "max": MOST,
            "down": {"idle_grace": "4s", "window": "4s", "drain_within": "1m"},
        },
    }


def make(client: Client, wanted: dict[str, object]) -> None:
    """Make the fleet; nothing runs until somebody needs it."""
    client.put(
        path_of("v1", "fleets", NAME), {"document": wanted, "reason": "the demo", "actor": "demo"}
    )


def wait_until_gone(client: Client) -> bool:
    """Wait until no machine is left; tell whether that came about in time."""
    deadline = clock.monotonic() + GONE_WITHIN_S
    while clock.monotonic() < deadline:
        answer = Patience().ask(lambda: client.get(path_of("v1", "fleets", NAME)))
        if not shaped(Standing, answer).machines:
            return True
        time.sleep(PAUSE_S)
    return False


def sum_up(client: Client, *, is_gone: bool) -> None:
    """Show each decision that changed anything, with its reason."""
    answer = client.get(path_of("v1", "fleets", NAME, "decisions"), limit=200)
    found = sorted(shaped(tuple[Decision, ...], answer), key=lambda one: one.number)
    output.put()
    output.put("What the fleet decided (`forgeyard fleet explain`):", style="bold")
    rows = [
        (
            f"{(one.at - found[0].at) / 1000:.0f} s",
            str(one.decision.needed),
            str(one.decision.usable),
            ", ".join(_acts(one.decision)),
            "; ".join(_reasons(one.decision)),
        )
        for one in found
        if one.decision.launch or one.decision.drain or one.decision.keep
    ]
    output.put_table(COLUMNS, rows, empty="nothing")
    left = "no machine is left" if is_gone else "some machines are still ending"
    output.put(f"It began with no machine; {left}.")


def _acts(plan: Plan) -> Iterator[str]:
    if plan.launch:
        yield f"makes {len(plan.launch)}"
    if plan.drain:
        yield f"lets {len(plan.drain)} go"
    if plan.keep:
        yield f"takes {len(plan.keep)} back"


def _reasons(plan: Plan) -> Iterator[str]:
    why = [one.reason for one in plan.launch] + [one.reason for one in plan.drain]
    yield from dict.fromkeys(map(output.words, why))
    yield from (clamp.text for clamp in plan.clamps)
