"""The page of metrics and the alerts say what the code publishes."""

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests import metrics_page

PROMETHEUS = Path(__file__).parents[2] / "deploy" / "prometheus"


def test_the_page_lists_every_metric_with_its_meaning() -> None:
    assert metrics_page.main(["--check"]) == 0, "run python -m tests.metrics_page"
    for family, labels in (*metrics_page.counted(), *metrics_page.read()):
        assert family.name.startswith("forgeyard_")
        assert family.documentation.endswith("."), family.name
        assert len(labels) <= (3 if family.name.startswith("forgeyard_fleet_") else 1), family.name


@pytest.mark.requirement("MET-021")
def test_no_metric_has_a_label_without_bounds() -> None:
    families = (*metrics_page.counted(), *metrics_page.read())
    named = {label for _, labels in families for label in labels}
    bounded = {"state", "code", "priority", "how", "step", "verdict", "reason", "answer", "doubt"}
    # Fleets are few, and so are their providers and classes (S1 201).
    of_fleets = {"fleet", "provider", "provider_kind", "capacity_class"}
    assert named == bounded | of_fleets | {"kind", "result", "signal", "where", "what"}


def test_every_alert_watches_series_that_exist_and_says_what_to_do() -> None:
    (group,) = YAML(typ="safe").load(PROMETHEUS / "alerts.yaml")["groups"]
    rules = group["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 8
    for rule in rules:
        expression = rule["expr"]
        watched = set(re.findall(r"forgeyard_[a-z_]+", expression))
        assert watched, rule["alert"]
        assert watched <= metrics_page.samples(), watched - metrics_page.samples()
        assert expression.count("(") == expression.count(")")
        assert rule["labels"]["severity"] in {"page", "warn"}
        assert re.fullmatch(r"\d+m", rule["for"])
        assert {"summary", "action"} == rule["annotations"].keys()


def test_the_scrape_configuration_asks_for_what_the_processes_answer() -> None:
    found = YAML(typ="safe").load(PROMETHEUS / "prometheus.yaml")
    assert found["rule_files"] == ["alerts.yaml"]
    jobs = {job["job_name"]: job for job in found["scrape_configs"]}
    assert jobs.keys() == {"forgeyard-api", "forgeyard-worker", "forgeyard-worker-temporal"}
    assert jobs["forgeyard-api"]["authorization"]["type"] == "Bearer"
    monitors = list(YAML(typ="safe").load_all(PROMETHEUS / "servicemonitor.yaml"))
    assert [one["kind"] for one in monitors] == ["ServiceMonitor"] * 2
