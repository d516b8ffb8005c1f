from collections import Counter

import pytest
from hypothesis import given

from forgeyard.model.capability import Capabilities
from forgeyard.scheduler.eligibility import can_ever_run, is_eligible, rejections
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner
from tests.property.worlds import (
    capabilities,
    crumbs,
    demand_hits,
    fixed,
    jobs,
    naive_capable,
    naive_match,
    requirements,
    runners,
)
from dataclasses import replace


def test_the_fast_path_agrees_with_the_full_list_of_rejections() -> None:
    hits: Counter[str] = Counter()

    @fixed
    @given(job=jobs, runner=runners)
    def check(job: SchedulingJob, runner: SchedulingRunner) -> None:
        found = rejections(job, runner)
        assert is_eligible(job, runner) is (not found)
        assert can_ever_run(job, runner) is (not any(it.permanent for it in found))
        hits["eligible" if not found else "rejected"] += 1

    check()
    demand_hits(hits, "eligible", "rejected")
