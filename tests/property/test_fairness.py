"""Fair shares: the heaps serve as the plain description does, and service follows the weights.

Start-time fair queueing bounds what two scopes that always wait may differ by: service by weight,
never more than one job of each. Mutants of the tags show that the test would notice.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from random import Random

import pytest

from benchmarks.naive import NaiveTurns
from forgeyard.model.job import Priority
from forgeyard.model.policy import ClassPolicy, SchedulingPolicy
from forgeyard.model.units import GIB, Bytes, MilliCpu
from forgeyard.scheduler import queue, scopes
from forgeyard.scheduler.queue import FairQueue
from forgeyard.scheduler.scopes import ROOT, Charge, SchedulingScope, Tags, service
from forgeyard.scheduler.snapshot import SchedulingJob, Snapshot
from tests.scheduling import MINUTE, NOW, POLICY, a_job, a_snapshot, amounts
from tests.tree import KINDS, Path, in_turn, some_tree
from tests.worlds import demand_hits

TREES = 300
SEEDS = 8


def a_crowd(seed: int) -> Snapshot:
    """Make up to 40 jobs of all priorities in the queues of a small tree with a past."""
    rng = Random(seed)
    tree, paths = some_tree(rng)
    jobs = [
        in_queue(
            a_job(
                f"{place}",
                priority=rng.choice(list(Priority)),
                adjustment=rng.choice((0, 0, 60, -60)),
                eligible_at=NOW - rng.randint(0, 90) * MINUTE,
                resources=some_service(rng),
            ),
            rng.choice(paths),
        )
        for place in range(rng.randint(1, 40))
    ]
    return a_snapshot(jobs, [], scopes=tree)


def in_queue(job: SchedulingJob, path: Path) -> SchedulingJob:
    tenant, organization, project, name = path
    return replace(
        job,
        tenant_id=tenant,
        organization_id=organization,
        project_id=project,
        queue_id=name,
    )


def test_rows_that_disagree_about_the_parent_of_a_scope_stop_nobody() -> None:
    """A tenant, an organization and a queue stand in two places, as damage could leave them."""
    hits: Counter[str] = Counter()
    for seed in range(40):
        rng = Random(seed)
        paths: list[Path] = [
            (rng.choice(("t1", "t2")), rng.choice(("o1", "o2")), "p", rng.choice(("q1", "q2")))
            for _ in range(12)
        ]
        jobs = [in_queue(a_job(f"{n}"), path) for n, path in enumerate(paths)]
        seen = a_snapshot(jobs, [])
        fast, naive = FairQueue(seen, POLICY), NaiveTurns(seen, POLICY)
        for mine, theirs in zip(fast, naive, strict=True):
            assert mine.job_id == theirs.job_id, f"seed {seed}"
            fast.charge(mine)
            naive.charge(theirs)
            hits["turns"] += 1
    demand_hits(hits, "turns")


def some_service(rng: Random) -> object:
    return replace(
        amounts(cpu=rng.choice((50, 500, 1_000, 4_000))),
        memory=Bytes(rng.choice((1, 8)) * GIB // 2),
    )


@pytest.mark.requirement("FAR-003", "FAR-018", "FAR-009")
def test_turns_are_those_of_the_plain_description_whatever_is_placed() -> None:
    hits: Counter[str] = Counter()
    for seed in range(TREES):
        seen = a_crowd(seed)
        policy = SchedulingPolicy(classes=ClassPolicy(batch=-seed % 100))
        fast, naive = FairQueue(seen, policy), NaiveTurns(seen, policy)
        luck = Random(seed)
        served: set[str] = set()
        for mine, theirs in zip(fast, naive, strict=True):
            assert mine.job_id == theirs.job_id, f"seed {seed}"
            served.add(mine.job_id)
            if luck.random() < 0.7:
                fast.charge(mine)
                naive.charge(theirs)
                hits["charged"] += 1
            else:
                hits["found no runner"] += 1
        assert served == {job.job_id for job in seen.jobs}
        hits["more than one queue"] += len({job.queue_id for job in seen.jobs}) > 1
    demand_hits(hits, *hits)


@pytest.mark.case("SP-071")
def test_a_hundred_jobs_of_one_instant_always_come_in_the_same_order() -> None:
    jobs = [a_job(f"{number:03}") for number in range(100)]
    orders = set()
    for seed in range(5):
        Random(seed).shuffle(jobs)
        orders.add(tuple(job.job_id for job in in_turn(a_snapshot(jobs, []), POLICY)))
    assert orders == {tuple(sorted(job.job_id for job in jobs))}


class Economy:
    """A tree of scopes through many cycles: what is charged in one is where the next begins."""

    def __init__(self, weights: Mapping[str, int], *, depth: int = 0) -> None:
        self.tree = {ROOT: SchedulingScope(scope_id=ROOT, name="everything", kind="root")}
        self.paths: dict[str, Path] = {}
        for name, weight in weights.items():
            # The scopes compete at one level; above it all share, below it each has its own.
            path = tuple(
                f"{name if level >= depth else 'shared'}-{kind}" for level, kind in enumerate(KINDS)
            )
            self.paths[name] = path
            for level, scope_id in enumerate(path):
                wanted = weight if level == depth else 1
                self.tree[scope_id] = SchedulingScope(
                    scope_id=scope_id, name=scope_id, kind=KINDS[level], weight=wanted
                )
        self.weights = weights
        self.served: Counter[str] = Counter()
        self._made = 0

    def cycle(self, rng: Random, names: Iterable[str], *, room: int) -> list[str]:
        """Let `names` have more than enough work, and serve so many jobs; tell whose they were."""
        jobs, owners = [], {}
        for name in names:
            for _ in range(room):
                self._made += 1
                job = a_job(f"{self._made:06}", resources=some_service(rng))
                jobs.append(in_queue(job, self.paths[name]))
                owners[job.job_id] = name
        turns = FairQueue(a_snapshot(jobs, [], scopes=self.tree), POLICY)
        tags = scopes.Tags(self.tree)
        order: list[str] = []
        for job in turns:
            if len(order) == room:
                break
            turns.charge(job)
            tags.charge(job.scopes, service(job.resources))
            self._count(owners[job.job_id], service(job.resources))
            order.append(owners[job.job_id])
        self.tree = {
            name: replace(scope, finish_tag=tags.finish[name], clock=tags.clock[name])
            for name, scope in self.tree.items()
        }
        return order

    def _count(self, name: str, amount: int) -> None:
        self.served[name] += amount

    def too_far_apart(self) -> list[str]:
        """List the pairs that are further apart than start-time fair queueing allows."""
        return [
            f"{one} and {other}"
            for one, other in combinations(self.weights, 2)
            if abs(self._share(one) - self._share(other)) > self._bound(one) + self._bound(other)
        ]

    def _share(self, name: str) -> Fraction:
        return Fraction(self.served[name], self.weights[name])

    def _bound(self, name: str) -> Fraction:
        # Tags are whole numbers; what rounding loses is a thousandth for each job.
        return Fraction(4_000, self.weights[name]) + Fraction(self._made, 1_000)


def compete(depth: int) -> list[str]:
    """Let three scopes of one level have work for ever; list where service left its bounds."""
    apart: list[str] = []
    for seed in range(SEEDS):
        rng = Random(seed)
        economy = Economy({name: rng.randint(1, 9) for name in "abc"}, depth=depth)
        for _ in range(12):
            economy.cycle(rng, "abc", room=rng.randint(1, 12))
            apart += economy.too_far_apart()
    return apart


def come_back() -> list[str]:
    """Let one tenant do nothing for long; list where service left its bounds once it is back."""
    apart: list[str] = []
    for seed in range(SEEDS):
        rng = Random(seed)
        economy = Economy({name: rng.randint(1, 9) for name in "abc"})
        for _ in range(8):
            economy.cycle(rng, "ab", room=20)
        economy.served.clear()
        for _ in range(8):
            economy.cycle(rng, "abc", room=rng.randint(1, 12))
            apart += economy.too_far_apart()
    return apart


@pytest.mark.requirement("FAR-002", "FAR-003", "FAR-004", "FAR-019")
@pytest.mark.parametrize("depth", range(4))
@pytest.mark.requirement("RES-018")
def test_permanent_backlogs_are_served_by_weight_within_one_job_at_every_level(depth: int) -> None:
    assert compete(depth) == []


@pytest.mark.requirement("FAR-003", "FAR-004")
def test_idleness_earns_no_credit() -> None:
    assert come_back() == []


class NothingIsCharged(Tags):
    """A mutant: service does not move the tags."""

    def charge(self, path: object, amount: int) -> tuple[Charge, ...]:
        return ()


class WeightsAreForgotten(Tags):
    """A mutant: everybody has one share."""

    def __init__(self, tree: Mapping[str, SchedulingScope]) -> None:
        super().__init__({name: replace(scope, weight=1) for name, scope in tree.items()})


class ClocksStandStill(Tags):
    """A mutant: who was idle begins where it had stopped."""

    def start(self, scope_id: str, parent_id: str) -> int:
        return self.finish.get(scope_id, 0)


@pytest.mark.parametrize("mutant", [NothingIsCharged, WeightsAreForgotten])
def test_the_bound_refutes_tags_that_do_not_count_or_weigh(
    mutant: type[Tags], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "Tags", mutant)
    monkeypatch.setattr(scopes, "Tags", mutant)
    assert compete(0)


def test_the_bound_refutes_clocks_that_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "Tags", ClocksStandStill)
    monkeypatch.setattr(scopes, "Tags", ClocksStandStill)
    assert come_back()


def jain(shares: Iterable[Fraction]) -> Fraction:
    """Say how even shares are: 1 if they are equal, 1/n if one has all."""
    listed = list(shares)
    return Fraction(sum(listed)) ** 2 / (len(listed) * sum(one**2 for one in listed))


@pytest.mark.requirement("FAR-001", "ACC-017")
def test_a_flood_of_ten_thousand_jobs_takes_no_more_than_its_share() -> None:
    rng = Random(4)
    economy = Economy({f"t{place:02}": rng.randint(1, 5) for place in range(21)})
    flood = [in_queue(a_job(f"a{number:05}"), economy.paths["t00"]) for number in range(10_000)]
    others = [
        in_queue(a_job(f"b{name}{number:03}", eligible_at=NOW + 1), path)
        for name, path in economy.paths.items()
        if name != "t00"
        for number in range(100)
    ]
    turns = FairQueue(a_snapshot([*flood, *others], [], scopes=economy.tree), POLICY)
    owners = {path: name for name, path in economy.paths.items()}
    for _, job in zip(range(500), turns, strict=False):
        turns.charge(job)
        economy.served[owners[job.scopes]] += service(job.resources)
    index = jain(Fraction(economy.served[name], economy.weights[name]) for name in economy.paths)
    by_age = jain([Fraction(500), *[Fraction(0)] * 20])
    print(f"Jain index {float(index):.4f}; in order of age it would be {float(by_age):.4f}")
    assert index >= Fraction(95, 100)


@pytest.mark.requirement("FAR-008", "FAR-022")
def test_a_job_of_low_priority_waits_only_for_its_own_queue_not_for_the_flood_of_others() -> None:
    economy = Economy({"a": 1, "b": 1})
    flood = [
        in_queue(a_job(f"a{n:03}", priority=Priority.RELEASE_CRITICAL), economy.paths["a"])
        for n in range(300)
    ]
    low = in_queue(a_job("low", priority=Priority.LOW), economy.paths["b"])
    turns = in_turn(a_snapshot([*flood, low], [], scopes=economy.tree), POLICY)
    assert turns.index(low) <= 1


def test_an_emergency_comes_first_and_its_scope_pays_for_it() -> None:
    economy = Economy({"a": 1, "b": 1})
    fire = in_queue(
        a_job("fire", priority=Priority.EMERGENCY, resources=amounts(cpu=3_000)),
        economy.paths["b"],
    )
    jobs = [fire] + [
        in_queue(a_job(f"{name}{n}", resources=amounts(cpu=MilliCpu(1_000))), economy.paths[name])
        for name in "ab"
        for n in range(4)
    ]
    turns = [job.name for job in in_turn(a_snapshot(jobs, [], scopes=economy.tree), POLICY)]
    assert turns[0] == "fire"
    assert turns[1:4] == ["a0", "a1", "a2"]
