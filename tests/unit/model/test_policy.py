from dataclasses import replace

from forgeyard.model.policy import LeasePolicy, SchedulingPolicy
from forgeyard.model.units import Millis


def test_a_digest_names_the_policy_and_changes_with_every_number_in_it() -> None:
    policy = SchedulingPolicy()
    changed = [
        replace(policy, batch=1),
        replace(policy, aging_step=Millis(1)),
        replace(policy, weights=replace(policy.weights, load=9)),
        replace(policy, lease=LeasePolicy(offer_ttl=Millis(1))),
    ]
    assert policy.digest() == SchedulingPolicy().digest()
    assert len({policy.digest(), *(other.digest() for other in changed)}) == len(changed) + 1


def test_deadlines_leave_room_for_each_other() -> None:
    policy = SchedulingPolicy()
    assert 2 * policy.lease.renew_every < policy.lease.execution_ttl
    assert policy.sweep.period < policy.lease.settle_within
    assert policy.lease.longest_back_off < policy.lease.execution_ttl
