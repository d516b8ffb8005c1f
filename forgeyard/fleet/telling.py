"""A decision in one sentence, for the Temporal UI and the demo; `fleet explain` says more."""

from collections import Counter
from collections.abc import Mapping

from forgeyard.fleet.view import FleetDecision, FleetView


def told(view: FleetView, decision: FleetDecision) -> str:
    """Say what is wanted, what follows, and which bounds had a say in it."""
    parts = [f"wants {decision.wanted}, has {decision.usable} there or coming"]
    launches = Counter(one.reason.value for one in decision.launch)
    parts += [f"makes {count} for {_plain(reason)}" for reason, count in launches.items()]
    releases = Counter(one.reason.value for one in decision.drain)
    parts += [f"lets {count} go: {_plain(reason)}" for reason, count in releases.items()]
    if decision.keep:
        parts.append(f"takes {len(decision.keep)} back that were draining")
    bounds = "".join(f"; {clamp.text}" for clamp in decision.clamps)
    return f"{', '.join(parts)}{bounds}"


def told_of_job(reasons: Mapping[str, str]) -> str:
    """Say which fleets could make a machine for a job, and why the others could not (DEM-016).

    The reasons are those of `matching.why_not`, by the name of the fleet.
    """
    able = any(not reason for reason in reasons.values())
    title = "fleets" if able else "no fleet can make a machine for it"
    lines = (
        f"  {fleet}: {reason or 'could make a machine for it'}"
        for fleet, reason in sorted(reasons.items())
    )
    return "\n".join((title, *lines))


def _plain(word: str) -> str:
    return word.replace("_", " ")
