"""Where a job is not tried again, after runners failed it through their own fault (RTY-001).

Avoided is a hard preference: such a runner comes after all others whatever its score, and is taken
where there is no other, so that no job gets stuck (RTY-003).
"""

from forgeyard.model.policy import AvoidancePolicy
from forgeyard.model.wishes import Domain
from forgeyard.scheduler.bounds import place_in
from forgeyard.scheduler.scene import Scene
from forgeyard.scheduler.snapshot import SchedulingJob, SchedulingRunner

NEARER = (Domain.REGION, Domain.SITE, Domain.HOST, Domain.RUNNER)
"""From what is given up first to what is given up last."""


def avoided_domains(job: SchedulingJob, policy: AvoidancePolicy) -> tuple[Domain, ...]:
    """List the domains that its losses are enough to avoid, from far to near (RTY-005)."""
    after = {domain: getattr(policy, domain.value) for domain in NEARER}
    return tuple(domain for domain in NEARER if 0 < after[domain] <= len(job.losses))


def nearness_to_losses(job: SchedulingJob, runner: SchedulingRunner, scene: Scene) -> int:
    """Tell how near a runner is to one that failed the job; 0 is far enough."""
    lost = [scene.runners[name] for name in job.losses if name in scene.runners]
    near = 0
    for domain in avoided_domains(job, scene.policy.avoid_after):
        place = place_in(domain, runner)
        if place is not None and any(place_in(domain, it) == place for it in lost):
            near = 1 + NEARER.index(domain)
    return near


def avoided_text(nearness: int) -> str | None:
    """Say why a runner is avoided."""
    if not nearness:
        return None
    domain = NEARER[nearness - 1]
    if domain is Domain.RUNNER:
        return "avoided: it failed this job before"
    return f"avoided: it shares its {domain} with a runner that failed this job"
