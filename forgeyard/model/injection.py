"""Adding to a run's requirements what policy demands, once, when the run is submitted.

Nothing that a job asks for is ever given up for a rule, and no rule for a job: where both cannot
be had the run is refused (ELG-040).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from forgeyard.errors import InvalidRequirements
from forgeyard.model.capability import Platform, Requirements, TrustClass
from forgeyard.model.equipment import IsolationClass, NetworkMode, SandboxKind
from forgeyard.model.job import JobSpec
from forgeyard.model.origin import Origin, OriginKind
from forgeyard.model.rules import BUILT_IN_RULES, PolicyRule
from forgeyard.model.units import Millis, duration_text
from forgeyard.model.wishes import SchedulingClass

ANY_POOL = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """The part of a policy that adds to what jobs require."""

    rules: Sequence[PolicyRule]
    nameable_pools: Sequence[str]
    longest_offline: Millis
    version: int

    def into(self, spec: JobSpec, *, queue: str, scheduling_class: SchedulingClass) -> JobSpec:
        """Add what the rules demand of a job's runner; asking again changes nothing.

        Raises:
            InvalidRequirements: the job asks for what a rule forbids, or names a pool that it may
                not name, or would run on offline for too long, or two rules forbid each other.
        """
        asked = spec.requires if spec.written is None else spec.written
        job = f"jobs.{spec.matrix.of if spec.matrix else spec.name}"
        self._check_offline(spec.wishes.offline, f"{job}.connectivity.offline")
        where = f"{job}.requires"
        self._check_pools(asked, where)
        own = _own(asked)
        choices, origins = dict(own), dict(asked.origins)
        for rule in self.rules:
            if rule.when.hold(spec, queue=queue, scheduling_class=scheduling_class):
                _narrow(choices, origins, rule, version=self.version, where=where)
        if choices == own:
            return replace(spec, requires=asked, written=None)
        return replace(spec, requires=_chosen(asked, choices, origins), written=asked)

    def _check_offline(self, asked: Millis | None, where: str) -> None:
        """Refuse a job that would run on without the server for longer than the policy grants."""
        if asked is not None and asked > self.longest_offline:
            raise InvalidRequirements(
                f"{where}: policy grants no job {duration_text(asked)} without the server",
                field=where,
                value=duration_text(asked),
                allowed=f"at most {duration_text(self.longest_offline)};"
                " `lease.offline_at_most` of the policy says so",
            )

    def _check_pools(self, asked: Requirements, where: str) -> None:
        """Refuse pools that the policy does not let jobs name (ELG-030)."""
        if ANY_POOL in self.nameable_pools:
            return
        for pool in asked.pools:
            if pool not in self.nameable_pools:
                names = ", ".join(self.nameable_pools)
                raise InvalidRequirements(
                    f"{where}.pools: policy does not let jobs name the pool {pool}",
                    field=f"{where}.pools",
                    value=pool,
                    allowed=names or "no pool; `nameable_pools` of the policy lists them",
                )


BUILT_IN_INJECTION = Injection(
    rules=BUILT_IN_RULES, nameable_pools=(), longest_offline=Millis(60_000), version=0
)
"""What the policy says that is in force while nobody has set one."""


def _own(asked: Requirements) -> dict[str, tuple[str, ...]]:
    """List what a job asks for itself, by path."""
    single: dict[str, str | None] = {
        "trust": asked.trust,
        "platform": asked.platform,
        "sandbox": asked.equipment.sandbox,
        "network": asked.equipment.network,
        "isolation": asked.equipment.isolation,
        **{f"labels.{name}": value for name, value in asked.labels.items()},
    }
    several = {"pools": asked.pools, "regions": asked.regions}
    return {
        **{path: (value,) for path, value in single.items() if value is not None},
        **{path: values for path, values in several.items() if values},
    }


def _narrow(
    choices: dict[str, tuple[str, ...]],
    origins: dict[str, Origin],
    rule: PolicyRule,
    *,
    version: int,
    where: str,
) -> None:
    """Leave only what a rule allows as well."""
    for path, allowed in rule.requires.choices().items():
        before = choices.get(path, ())
        after = tuple(choice for choice in before if choice in allowed) if before else allowed
        if not after:
            asker = origins.get(path, Origin(detail="the run file"))
            raise InvalidRequirements(
                f"{where}.{path}: {' or '.join(before)} ({asker.text}) is not what the rule"
                f" {rule.name!r} of policy {version} allows",
                field=f"{where}.{path}",
                value=", ".join(before),
                allowed=" or ".join(allowed),
            )
        if after != before:
            origins[path] = Origin(kind=OriginKind.POLICY, detail=rule.name, policy_version=version)
        choices[path] = after


def _chosen(
    asked: Requirements, choices: Mapping[str, tuple[str, ...]], origins: Mapping[str, Origin]
) -> Requirements:
    """Write requirements with the first of every choice; pools and regions keep them all."""

    def first(path: str) -> str | None:
        return choices[path][0] if path in choices else None

    trust, platform = first("trust"), first("platform")
    sandbox, network, isolation = first("sandbox"), first("network"), first("isolation")
    return replace(
        asked,
        trust=None if trust is None else TrustClass(trust),
        platform=None if platform is None else Platform(platform),
        pools=choices.get("pools", ()),
        regions=choices.get("regions", ()),
        labels={
            path.removeprefix("labels."): values[0]
            for path, values in choices.items()
            if path.startswith("labels.")
        },
        equipment=replace(
            asked.equipment,
            sandbox=None if sandbox is None else SandboxKind(sandbox),
            network=None if network is None else NetworkMode(network),
            isolation=None if isolation is None else IsolationClass(isolation),
        ),
        origins=origins,
    )
