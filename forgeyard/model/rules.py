"""Requirements that a policy adds to the jobs that a rule is about (ELG-040, DEV-011, DEV-012).

Every key of a rule may name several values: a condition holds if the job has one of them, and a
requirement lets the job choose among them. A rule only ever narrows what a job may get.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import MaxLen

from forgeyard.model.capability import MAX_LABELS, Platform, TrustClass
from forgeyard.model.equipment import IsolationClass, NetworkMode, SandboxKind, Word
from forgeyard.model.job import JobSpec, Priority
from forgeyard.model.wishes import Purpose, SchedulingClass

MAX_RULES = 50
MAX_VALUES = 32
Words = Annotated[tuple[Word, ...], MaxLen(MAX_VALUES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Which jobs a rule is about; what is left out holds for every job."""

    purpose: Annotated[tuple[Purpose, ...], MaxLen(MAX_VALUES)] = ()
    proposal: bool | None = None
    queue: Words = ()
    scheduling_class: Annotated[tuple[SchedulingClass, ...], MaxLen(MAX_VALUES)] = ()
    priority: Annotated[tuple[Priority, ...], MaxLen(MAX_VALUES)] = ()

    def hold(self, spec: JobSpec, *, queue: str, scheduling_class: SchedulingClass) -> bool:
        """Tell whether they are met by a job in the queue of this path; its name will do too."""
        name = queue.rpartition("/")[2]
        return (
            (not self.purpose or spec.purpose in self.purpose)
            and self.proposal in (None, spec.proposal)
            and (not self.queue or not {queue, name}.isdisjoint(self.queue))
            and (not self.scheduling_class or scheduling_class in self.scheduling_class)
            and (not self.priority or spec.priority in self.priority)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """What a rule wants of the runner, in the words of a run file."""

    trust: Annotated[tuple[TrustClass, ...], MaxLen(MAX_VALUES)] = ()
    """The first is taken where the job names none."""
    pools: Words = ()
    regions: Words = ()
    labels: Annotated[Mapping[Word, Word], MaxLen(MAX_LABELS)] = field(
        default_factory=dict[str, str]
    )
    platform: Platform | None = None
    sandbox: SandboxKind | None = None
    network: NetworkMode | None = None
    isolation: IsolationClass | None = None

    def choices(self) -> Mapping[str, tuple[str, ...]]:
        """List what may stand at each path of a job's requirements."""
        single = {
            "platform": self.platform,
            "sandbox": self.sandbox,
            "network": self.network,
            "isolation": self.isolation,
            **{f"labels.{name}": value for name, value in self.labels.items()},
        }
        several = {"trust": self.trust, "pools": self.pools, "regions": self.regions}
        return {
            **{path: values for path, values in several.items() if values},
            **{path: (value,) for path, value in single.items() if value is not None},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRule:
    """What some jobs must have, whatever their authors say."""

    name: Word
    when: Conditions = field(default_factory=Conditions)
    requires: Demands = field(default_factory=Demands)


BUILT_IN_RULES = (
    PolicyRule(
        name="deploy jobs",
        when=Conditions(purpose=(Purpose.DEPLOY,)),
        requires=Demands(
            trust=(
                TrustClass.TRUSTED_INTERNAL,
                TrustClass.SIGNING_RESTRICTED,
                TrustClass.CONFIDENTIAL,
            )
        ),
    ),
    PolicyRule(
        name="signing jobs",
        when=Conditions(purpose=(Purpose.SIGNING,)),
        requires=Demands(trust=(TrustClass.SIGNING_RESTRICTED,)),
    ),
    PolicyRule(
        name="untrusted proposals",
        when=Conditions(proposal=True),
        requires=Demands(trust=(TrustClass.UNTRUSTED_GENERAL,)),
    ),
)
"""The rules of a policy that names none."""
