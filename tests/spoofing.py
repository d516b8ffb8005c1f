"""Machines that claim more than they were granted, jobs of every trust, and who may meet whom (S4).

What may happen is judged here from grants alone: nothing of a report is looked at.
"""

from dataclasses import replace
from enum import StrEnum
from random import Random

from forgeyard.model.capability import Requirements, Toolchain, TrustClass
from forgeyard.model.enrolment import TRUSTED, Grant
from forgeyard.model.equipment import Device, Equipment
from forgeyard.model.injection import BUILT_IN_INJECTION
from forgeyard.model.job import JobSpec
from forgeyard.model.protocol import Register, Report
from forgeyard.model.wishes import Purpose, SchedulingClass, Wishes
from tests.builders import a_job_spec, a_registration, some_capabilities

QUEUE = "default/default/default/default"
VAULT = "vault"
"""A pool whose runners have to be trusted with signing."""
ZONE = f"{TRUSTED}zone"
NAMES = ("trust", "trusted", "tier", "pool", "zone", ZONE, "trusted.signing", "runner", "os")
VALUES = (*(str(one) for one in TrustClass), VAULT, "true", "a", "a", "a", "b")


class Sort(StrEnum):
    """Sorts of jobs, by what they may be trusted with."""

    PROPOSAL = "proposal"
    """From outside: the untrusted tier."""
    PLAIN = "plain"
    DEPLOY = "deploy"
    SIGNING = "signing"


MAY = {
    Sort.PROPOSAL: {TrustClass.UNTRUSTED_GENERAL},
    Sort.PLAIN: {TrustClass.UNTRUSTED_GENERAL, TrustClass.TRUSTED_INTERNAL},
    Sort.DEPLOY: {TrustClass.TRUSTED_INTERNAL},
    Sort.SIGNING: {TrustClass.SIGNING_RESTRICTED},
}


def some_labels(rng: Random) -> dict[str, str]:
    """Make labels as a machine might spoof them, among others that mean nothing."""
    spoofed = {rng.choice(NAMES): rng.choice(VALUES) for _ in range(rng.randint(0, 5))}
    return {f"own-{rng.randint(0, 99)}": f"{rng.random()}", **spoofed}


def some_grant(rng: Random) -> Grant:
    """Make what an operator gives to a machine; one in three gets the label of a zone."""
    trust = rng.choice(list(TrustClass))
    signs = trust is TrustClass.SIGNING_RESTRICTED
    return Grant(
        trust=trust,
        pool=VAULT if rng.random() < (0.5 if signs else 0.1) else "",
        labels={ZONE: "a"} if rng.random() < 0.3 else {},
    )


def some_claim(rng: Random, name: str) -> Register:
    """Make a registration that claims any trust, labels, and now and then a tool or a device."""
    tools = (Toolchain(name="trusted.signer"),) if rng.random() < 0.1 else ()
    devices = (Device(kind="trusted.hsm"),) if rng.random() < 0.1 else ()
    claimed = some_capabilities(
        trust=rng.choice(list(TrustClass)),
        labels=some_labels(rng),
        toolchains=tools,
        equipment=Equipment(devices=devices),
    )
    return a_registration(name, capabilities=claimed, pool=rng.choice(("", VAULT)))


def without_trusted(claim: Register) -> Register:
    """Leave out of a claim what gets a machine turned away at once."""
    has = claim.capabilities
    labels = {name: value for name, value in has.labels.items() if not name.startswith(TRUSTED)}
    honest = replace(has, labels=labels, toolchains=(), equipment=Equipment())
    return replace(claim, capabilities=honest)


def report_of(claim: Register) -> Report:
    """Say in a later report what a registration says."""
    return Report(capabilities=claim.capabilities, total=claim.total, headroom=claim.headroom)


def some_job(rng: Random, name: str, sort: Sort) -> JobSpec:
    """Make a job as it stands in the store: policy has said its part."""
    purpose = {Sort.DEPLOY: Purpose.DEPLOY, Sort.SIGNING: Purpose.SIGNING}.get(sort, Purpose.BUILD)
    zoned = {ZONE: "a"} if rng.random() < 0.3 else {}
    spec = a_job_spec(
        name,
        wishes=Wishes(purpose=purpose),
        requires=Requirements(labels=zoned),
        proposal=sort is Sort.PROPOSAL,
    )
    return BUILT_IN_INJECTION.into(spec, queue=QUEUE, scheduling_class=SchedulingClass.NORMAL)


def wrongs(sort: Sort, job: Requirements, grant: Grant, pool: str) -> list[str]:
    """Say what is wrong with a job on a runner, by what its operator granted."""
    found = list[str]()
    if grant.trust not in MAY[sort]:
        found.append(f"a {sort} job on a runner for {grant.trust}")
    if pool == VAULT and sort is not Sort.SIGNING:
        found.append(f"a {sort} job in the pool for signing")
    if pool == VAULT and grant.trust is not TrustClass.SIGNING_RESTRICTED:
        found.append(f"a runner for {grant.trust} works in the pool for signing")
    if ZONE in job.labels and grant.labels.get(ZONE) != job.labels[ZONE]:
        found.append(f"{ZONE} was never granted")
    return found
