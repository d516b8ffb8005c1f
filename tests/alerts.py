"""Asks an alert of deploy/prometheus of scrapes, as Prometheus would: the part of PromQL it uses.

What an expression says beyond that part is an error, so that no rule passes for not being read.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML

from tests.scraping import Scrape

RULES = Path(__file__).parents[1] / "deploy" / "prometheus" / "alerts.yaml"
COMPARED: Mapping[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    ">=": operator.ge,
    ">": operator.gt,
}
MINUTES = {"m": 1, "h": 60}
SERIES = r"(?P<name>\w+)(?:\{(?P<where>[^}]*)\})?(?:\[(?P<span>\d+[mh])\])?"
AGGREGATE = re.compile(
    rf"(?P<how>sum|max) by \((?P<by>\w+)\) \((?P<increase>increase\()?{SERIES}\)?\)"
    r"(?: / (?P<divisor>\d+))?"
)
Vector = dict[str, float]
"""Values by that of the one label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What was scraped so many minutes ago, the oldest first; the last one is of now."""

    scrapes: Sequence[tuple[int, Scrape]]

    def value(self, name: str, labels: Mapping[str, str], span: int | None) -> float:
        """Read a series, or by how much it grew: from its first sample in the span, as it is."""
        samples = [
            found
            for ago, scrape in self.scrapes
            if span is None or ago <= span
            if (found := _sample(scrape, name, labels)) is not None
        ]
        return samples[-1] if span is None else samples[-1] - samples[0]

    def series(self, name: str, where: Mapping[str, str]) -> list[Mapping[str, str]]:
        """List the series that are there now."""
        return [
            one.labels
            for family in self.scrapes[-1][1].families.values()
            for one in family.samples
            if one.name == name and where.items() <= one.labels.items()
        ]


def _sample(scrape: Scrape, name: str, labels: Mapping[str, str]) -> float | None:
    for family in scrape.families.values():
        for one in family.samples:
            if one.name == name and one.labels == labels:
                return one.value
    return None


def firing(alert: str, *scrapes: tuple[int, Scrape]) -> set[str]:
    """Name for what an alert would fire, if it went on: fleets, or kinds of providers."""
    (group,) = YAML(typ="safe").load(RULES)["groups"]
    (rule,) = (one for one in group["rules"] if one["alert"] == alert)
    past = Past(scrapes=scrapes)
    return set.intersection(*(_true(part, past) for part in rule["expr"].split(" and ")))


def _true(comparison: str, past: Past) -> set[str]:
    left, sign, right = re.split(r" (==|>=|>) ", comparison)
    values = _vector(left, past)
    others = dict.fromkeys(values, float(right)) if right.isdigit() else _vector(right, past)
    return {key for key in values if key in others and COMPARED[sign](values[key], others[key])}


def _vector(text: str, past: Past) -> Vector:
    read = AGGREGATE.fullmatch(text)
    assert read is not None, f"not read: {text}"
    where = dict(re.findall(r'(\w+)="(\w+)"', read["where"] or ""))
    span = None if read["span"] is None else int(read["span"][:-1]) * MINUTES[read["span"][-1]]
    assert (span is None) == (read["increase"] is None), text
    found: dict[str, list[float]] = {}
    for labels in past.series(read["name"], where):
        value = past.value(read["name"], labels, span)
        found.setdefault(labels[read["by"]], []).append(value)
    together = {"sum": sum, "max": max}[read["how"]]
    return {key: together(each) / int(read["divisor"] or 1) for key, each in found.items()}
