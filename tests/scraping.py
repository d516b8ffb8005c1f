"""Reads what a process publishes for Prometheus, with Prometheus's own parser."""

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import httpx
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from forgeyard import telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """What one scrape found."""

    families: Mapping[str, Metric]

    def value(self, sample: str, **labels: str) -> float:
        """Read one sample; 0 where it has not been counted yet."""
        return sum(
            one.value
            for family in self.families.values()
            for one in family.samples
            if one.name == sample and one.labels == labels
        )

    def labels(self) -> set[str]:
        """Name every label of ours, but for the bounds of histograms."""
        return {
            label
            for family in self.families.values()
            for one in family.samples
            for label in one.labels
        } - {"le"}


def scraped(text: str) -> Scrape:
    """Read a page."""
    return Scrape(families={family.name: family for family in text_string_to_metric_families(text)})


def scrape_here() -> Scrape:
    """Read what this very process publishes."""
    return scraped(telemetry.text(telemetry.published()).decode())


def growth(before: Scrape, after: Scrape) -> Callable[..., float]:
    """Tell by how much a sample grew."""
    return lambda sample, **labels: after.value(sample, **labels) - before.value(sample, **labels)


def scrape(port: int) -> Scrape:
    """Scrape a port of this host, without a token."""
    answer = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False, timeout=10)
    assert answer.status_code == 200, answer.text
    return scraped(answer.text)


def a_free_port() -> int:
    """Find a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
