"""What policy adds to jobs: recorded with its rule, applied once, and never a silent weakening."""

from dataclasses import replace

import pytest

from forgeyard.errors import InvalidRequirements
from forgeyard.model.capability import Requirements, TrustClass
from forgeyard.model.injection import BUILT_IN_INJECTION, Injection
from forgeyard.model.job import JobSpec, Priority
from forgeyard.model.origin import Origin, OriginKind
from forgeyard.model.policy import LeasePolicy
from forgeyard.model.policy_document import read
from forgeyard.model.units import Millis
from forgeyard.model.wishes import Purpose, SchedulingClass, Wishes
from tests.builders import a_job_spec

QUEUE = "default/default/default/releases"


def a_job(purpose: Purpose = Purpose.BUILD, **requires: object) -> JobSpec:
    return a_job_spec(wishes=Wishes(purpose=purpose), requires=Requirements(**requires))


def of_policy(*rules: dict[str, object], nameable: tuple[str, ...] = ()) -> Injection:
    policy = read({"rules": list(rules), "nameable_pools": list(nameable)})
    return Injection(
        rules=policy.rules,
        nameable_pools=policy.nameable_pools,
        longest_offline=policy.lease.longest_offline,
        version=3,
    )


def into(injection: Injection, spec: JobSpec) -> JobSpec:
    return injection.into(spec, queue=QUEUE, scheduling_class=SchedulingClass.NORMAL)


@pytest.mark.requirement("DEV-011", "ELG-035")
def test_deploy_and_signing_jobs_are_sent_to_trusted_runners() -> None:
    deploy = into(BUILT_IN_INJECTION, a_job(Purpose.DEPLOY))
    assert deploy.requires.trust is TrustClass.TRUSTED_INTERNAL
    assert deploy.requires.origin("trust") == Origin(
        kind=OriginKind.POLICY, detail="deploy jobs", policy_version=0
    )
    assert deploy.written == Requirements()
    signing = into(BUILT_IN_INJECTION, a_job(Purpose.SIGNING))
    assert signing.requires.trust is TrustClass.SIGNING_RESTRICTED


def test_a_job_that_asks_for_more_than_a_rule_keeps_what_it_asked_for() -> None:
    asked = a_job(Purpose.DEPLOY, trust=TrustClass.CONFIDENTIAL)
    assert into(BUILT_IN_INJECTION, asked) == asked


@pytest.mark.requirement("ELG-040")
def test_a_job_that_asks_for_what_a_rule_forbids_is_refused() -> None:
    with pytest.raises(InvalidRequirements) as caught:
        into(BUILT_IN_INJECTION, a_job(Purpose.DEPLOY, trust=TrustClass.UNTRUSTED_GENERAL))
    error = caught.value
    assert (error.field, error.value) == ("jobs.build.requires.trust", "untrusted_general")
    assert error.allowed == "trusted_internal or signing_restricted or confidential"
    assert "'deploy jobs' of policy 0" in error.message


@pytest.mark.requirement("DEV-012")
@pytest.mark.parametrize("trust", sorted(set(TrustClass) - {TrustClass.UNTRUSTED_GENERAL}))
def test_a_proposal_never_gets_a_privileged_runner(trust: TrustClass) -> None:
    spec = replace(a_job(), proposal=True)
    assert into(BUILT_IN_INJECTION, spec).requires.trust is TrustClass.UNTRUSTED_GENERAL
    with pytest.raises(InvalidRequirements):
        into(BUILT_IN_INJECTION, replace(spec, requires=Requirements(trust=trust)))


def test_two_rules_that_forbid_each_other_refuse_the_job_and_name_both() -> None:
    spec = replace(a_job(Purpose.DEPLOY), proposal=True)
    with pytest.raises(InvalidRequirements) as caught:
        into(BUILT_IN_INJECTION, spec)
    assert "policy 0: deploy jobs" in caught.value.message
    assert "'untrusted proposals'" in caught.value.message


def test_rules_narrow_one_after_the_other() -> None:
    injection = of_policy(
        {"name": "a", "requires": {"trust": ["trusted_internal", "confidential"]}},
        {"name": "b", "requires": {"trust": ["confidential", "signing_restricted"]}},
        {"name": "c", "requires": {"pools": ["x", "y"], "regions": ["eu"], "sandbox": "vm"}},
    )
    wanted = into(injection, a_job(labels={"zone": "a"})).requires
    assert wanted.trust is TrustClass.CONFIDENTIAL
    assert (wanted.pools, wanted.regions, wanted.equipment.sandbox) == (("x", "y"), ("eu",), "vm")
    assert wanted.labels == {"zone": "a"}
    assert {path: origin.text for path, origin in wanted.origins.items()} == {
        "trust": "policy 3: b",
        "pools": "policy 3: c",
        "regions": "policy 3: c",
        "sandbox": "policy 3: c",
    }


@pytest.mark.parametrize(
    "when",
    [
        {"purpose": "deploy"},
        {"proposal": True},
        {"queue": "nightly"},
        {"scheduling_class": "batch"},
        {"priority": ["low", "high"]},
    ],
)
def test_a_rule_is_about_the_jobs_that_it_names_and_no_others(when: dict[str, object]) -> None:
    injection = of_policy({"name": "a", "when": when, "requires": {"pools": "x"}})
    assert into(injection, a_job()) == a_job()


@pytest.mark.parametrize(
    "when", [{}, {"queue": "releases"}, {"queue": QUEUE}, {"proposal": False, "purpose": "build"}]
)
def test_a_rule_whose_every_condition_holds_applies(when: dict[str, object]) -> None:
    injection = of_policy({"name": "a", "when": when, "requires": {"labels": {"hsm": "yes"}}})
    assert into(injection, a_job()).requires.labels == {"hsm": "yes"}


def test_a_label_that_a_rule_wants_otherwise_is_a_conflict() -> None:
    injection = of_policy({"name": "a", "requires": {"labels": {"zone": "b"}}})
    with pytest.raises(InvalidRequirements) as caught:
        into(injection, a_job(labels={"zone": "a"}))
    assert caught.value.field == "jobs.build.requires.labels.zone"


def test_asking_again_under_another_policy_begins_with_what_was_written() -> None:
    first = into(of_policy({"name": "a", "requires": {"pools": "x"}}), a_job())
    again = into(of_policy({"name": "b", "requires": {"pools": "y"}}), first)
    assert again.requires.pools == ("y",)
    assert into(of_policy(), again) == a_job()


@pytest.mark.requirement("ELG-030")
def test_a_job_names_only_the_pools_that_policy_lets_it_name() -> None:
    spec = a_job(pools=("ios",))
    with pytest.raises(InvalidRequirements) as caught:
        into(BUILT_IN_INJECTION, spec)
    assert caught.value.field == "jobs.build.requires.pools"
    assert into(of_policy(nameable=("ios", "mac")), spec) == spec
    assert into(of_policy(nameable=("*",)), spec) == spec


def test_the_priority_of_a_job_is_a_condition() -> None:
    injection = of_policy({"name": "a", "when": {"priority": "low"}, "requires": {"pools": "x"}})
    assert into(injection, replace(a_job(), priority=Priority.LOW)).requires.pools == ("x",)


def test_a_job_may_run_offline_only_for_as_long_as_policy_grants() -> None:
    def injection(**lease: str) -> Injection:
        policy = read({"lease": lease})
        return replace(BUILT_IN_INJECTION, longest_offline=policy.lease.longest_offline)

    hours = a_job_spec(wishes=Wishes(offline=Millis(7_200_000)))
    with pytest.raises(InvalidRequirements) as caught:
        into(injection(), hours)
    error = caught.value
    assert (error.field, error.value) == ("jobs.build.connectivity.offline", "2h")
    assert error.allowed == "at most 1m; `lease.offline_at_most` of the policy says so"
    assert into(injection(offline_at_most="2h"), hours) == hours
    for asked in (0, 60_000):
        less = a_job_spec(wishes=Wishes(offline=Millis(asked)))
        assert into(injection(), less) == less
    assert BUILT_IN_INJECTION.longest_offline == LeasePolicy().longest_offline
