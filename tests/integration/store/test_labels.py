"""Labels that look alike are alike, however the two sides typed them."""

from dataclasses import replace

import pytest
import sqlalchemy as sa

from forgeyard.model.capability import Requirements
from forgeyard.runfile.compile import compile_run
from tests.builders import a_job_spec, some_capabilities
from tests.leasing import Desk

COMPOSED, SPELT_OUT = "Xcod\u00e9", "Xcode\u0301"


@pytest.mark.case("SP-083")
@pytest.mark.parametrize(("said", "asked"), [(COMPOSED, SPELT_OUT), (SPELT_OUT, COMPOSED)])
def test_a_label_matches_its_other_spelling(engine: sa.Engine, said: str, asked: str) -> None:
    desk = Desk(engine)
    desk.register(capabilities=replace(some_capabilities(), labels={"ide": said}))
    run = compile_run(
        {
            "name": "r",
            "jobs": {"a": {"requires": {"labels": {"ide": asked}}, "steps": [{"run": "true"}]}},
        },
        fallback_name="r",
    )
    assert run.jobs[0].requires == Requirements(labels={"ide": COMPOSED})
    desk.submit(a_job_spec(requires=run.jobs[0].requires))
    assert desk.cycle().granted == 1
