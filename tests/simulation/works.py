"""The work on one offer, by the rules of `forgeyard.agent.work`, `reports` and `attempt`.

Whether the lease holds, and why to stop, the agent's own `HeldLease` says.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

from forgeyard.agent import ending
from forgeyard.agent.backoff import BackOff
from forgeyard.agent.ending import Ending
from forgeyard.agent.lease import FOREVER, HeldLease, StopReason
from forgeyard.errors import Forbidden, ForgeyardError, NotFound, StaleRejected, Unavailable
from forgeyard.model.ids import SessionId
from forgeyard.model.job import FailureClass
from forgeyard.model.policy import LeasePolicy
from forgeyard.model.protocol import (
    Accepted,
    Complete,
    CompletionVerdict,
    Offer,
    Outcome,
    Phase,
    Progress,
)
from forgeyard.store import leases
from forgeyard.store.engine import write
from forgeyard.store.leases import Refused
from tests.simulation.world import Process, World, never

T = TypeVar("T")
_GONE = (StaleRejected, NotFound, Forbidden)
_ENDINGS = (
    (Outcome.SUCCEEDED, None),
    (Outcome.SUCCEEDED, None),
    (Outcome.SUCCEEDED, None),
    (Outcome.FAILED, FailureClass.USER_COMMAND),
    (Outcome.FAILED, FailureClass.INFRASTRUCTURE),
)


class Floor(Protocol):
    """What work needs of the host it is on."""

    world: World
    name: str
    longest_back_off_s: float

    def clock(self) -> float:
        """Tell the host's own time in seconds."""
        ...

    def after(
        self, delay_ms: float, act: Callable[[], None], *, unless: Callable[[], bool] = never
    ) -> None:
        """Do something later, if the host is there by then."""
        ...

    def ask(
        self, what: str, call: Callable[[], T], heard: Callable[[T | ForgeyardError], None]
    ) -> None:
        """Ask the server."""
        ...

    def over(self, lease_id: str) -> None:
        """Forget work that is over."""
        ...


class Work:
    """One lease, from taking the offer to reporting the end."""

    def __init__(self, host: Floor, offer: Offer, *, session_id: SessionId) -> None:
        self.held = HeldLease(offer, session_id=session_id, clock=host.clock)
        self.is_active = False
        self.runs: Process | None = None
        """The process that was started and not killed, though its host may be frozen."""
        self.slots = max(1, offer.spec.resources.slots)
        self._host = host
        self._world = host.world
        self._offer = offer
        self._phase = "acceptance"
        self._until = FOREVER
        self._is_reporting = False
        self._is_over = False
        self._watched = FOREVER
        self._told_at = 0.0
        """When the request was sent that told the present phase."""

    def begin(self) -> None:
        """Accept the offer, asking until it has certainly lapsed."""
        offer = self._offer
        until = self._host.clock() + (offer.ttl + offer.grace) / 1000
        self._accept(until, self._back_off())

    def _accept(self, until: float, back_off: BackOff) -> None:
        held = self.held
        if held.is_stopping:
            self._end("stopped before it was accepted")
            return
        sent_at = self._host.clock()

        def heard(answer: Accepted | ForgeyardError) -> None:
            if self._is_over:
                return
            if isinstance(answer, Unavailable):
                if held.clock() >= until:
                    self._end("offer not taken")
                else:
                    self._later(back_off.delay(), lambda: self._accept(until, back_off))
            elif isinstance(answer, ForgeyardError):
                self._end(f"offer gone: {answer.message}")
            else:
                held.acknowledged(sent_at=sent_at, ttl=answer.ttl, grace=answer.grace)
                self.is_active = True
                self._prepare()

        self._host.ask(f"accept {self._name}", self._call(self._accepted), heard)

    def _accepted(self, policy: LeasePolicy) -> Callable[..., object]:
        return lambda c: leases.accept(c, self.held.lease_id, self.held.holder, policy=policy)

    def _prepare(self) -> None:
        self._enter("preparation", self._offer.spec.timeouts.preparation)
        self._later(self._lasts(0.05, 1.5), self._report_running)

    def _report_running(self) -> None:
        self._progress(Phase.RUNNING, self._start)

    def _start(self) -> None:
        self._enter("execution", self._offer.spec.timeouts.execution, since=self._told_at)
        if not self._goes_on():
            return
        offer, world = self._offer, self._world
        self.runs = Process(
            lease_id=offer.lease_id,
            job_id=offer.job_id,
            host=self._host.name,
            since_ms=world.now_ms,
        )
        world.running[offer.lease_id] = self.runs
        world.tell(self._host.name, f"process of {self._name} runs")
        self._later(self._lasts(0.2, 8.0), self._finish)

    def _finish(self) -> None:
        self.kill()
        outcome, blame = self._world.rng.choice(_ENDINGS[: 1 if self._is_calm else None])
        end = Ending(outcome=outcome, failure_class=blame)
        if outcome is not Outcome.SUCCEEDED or self._world.rng.random() < 0.5:
            self._report(end)
            return
        self._enter("upload", self._offer.spec.timeouts.upload)
        upload = self._lasts(0.05, 1.0)
        self._progress(
            Phase.UPLOADING_OUTPUTS, lambda: self._later(upload, lambda: self._report(end))
        )

    def _progress(self, phase: Phase, then: Callable[[], None]) -> None:
        """Report a phase until that is heard; then go on."""
        back_off, held = self._back_off(), self.held
        message = Progress(session_id=held.holder.session_id, epoch=held.holder.epoch, phase=phase)

        def say() -> None:
            sent_at = held.clock()
            call = self._call(
                lambda policy: lambda c: leases.progress(c, held.lease_id, message, policy=policy)
            )
            self._host.ask(
                f"progress {self._name} {phase.value}", call, lambda it: heard(it, sent_at)
            )

        def heard(answer: object, sent_at: float) -> None:
            if isinstance(answer, Unavailable):
                self._later(back_off.delay(), say)
            elif isinstance(answer, ForgeyardError):
                self.stop(StopReason.LOST)
            elif self._goes_on():
                self._told_at = sent_at
                then()

        say()

    def _report(self, end: Ending) -> None:
        """Report the end for as long as the lease holds."""
        if self._is_reporting:
            return
        self._is_reporting = True
        self._until = FOREVER
        back_off, held = self._back_off(), self.held
        message = Complete(
            session_id=held.holder.session_id,
            epoch=held.holder.epoch,
            outcome=end.outcome,
            failure_class=end.failure_class,
            message=end.message,
        )

        def say() -> None:
            call = self._call(
                lambda policy: lambda c: leases.complete(c, held.lease_id, message, policy=policy)
            )
            self._host.ask(f"complete {self._name} {end.outcome.value}", call, heard)

        def heard(answer: object) -> None:
            if isinstance(answer, Unavailable):
                self._later(back_off.delay(), say, reporting=True)
                return
            if answer in (CompletionVerdict.ACCEPTED, CompletionVerdict.DUPLICATE_ACCEPTED):
                self._world.acknowledged(self._offer.attempt_id, end.outcome)
            self._end(f"reported: {answer}")

        say()

    def stop(self, reason: StopReason) -> None:
        """Ask the work to end."""
        self.held.stop(reason)
        self.look()

    def look(self) -> bool:
        """Stop if there is a reason to; tell whether work may go on as before."""
        if self._is_over or not self.is_active:
            return not self._is_over
        reason = self.held.stop_reason(until=self._until)
        if reason is None:
            self._watch()
            return True
        if reason.is_fenced:
            self.kill()
            self._end(f"lease lost ({reason.value})")
        elif not self._is_reporting:
            self.kill()
            self._report(ending.interrupted(reason, phase=self._phase))
        else:
            self._watch()
        return False

    def kill(self) -> None:
        """End the process, if one runs."""
        if self.runs is not None:
            self._world.running.pop(self.runs.lease_id, None)
            self._world.tell(self._host.name, f"process of {self._name} ended")
        self.runs = None

    def _watch(self) -> None:
        """Look again when the lease lapses or the phase is over, unless that moves."""
        at = min(self.held._deadline, self._until)
        if at != self._watched:
            self._watched = at
            delay = (at - self._host.clock()) * 1000 + 1  # never a hair too early
            self._host.after(
                delay,
                lambda: void(self.look()),
                unless=lambda: self._is_over or at != self._watched,
            )

    def _enter(self, phase: str, timeout_ms: int, *, since: float | None = None) -> None:
        begun = self._host.clock() if since is None else since
        self._phase, self._until = phase, begun + timeout_ms / 1000
        self.look()

    def _goes_on(self) -> bool:
        return self.look() and not self._is_reporting

    def _later(self, seconds: float, act: Callable[[], None], *, reporting: bool = False) -> None:
        def then() -> None:
            if self._is_over:
                return
            if reporting:
                goes_on = self.held.fenced() is None
            else:
                goes_on = not self.is_active or self._goes_on()
            if goes_on:
                act()

        self._host.after(seconds * 1000, then)

    def _call(self, what: Callable[[LeasePolicy], Callable[..., T]]) -> Callable[[], T]:
        """Make what an API process does with a request: one transaction, a refusal is an error."""

        def call() -> T:
            with write(self._world.engine) as connection:
                answer = what(self._world.policy(connection).lease)(connection)
            if isinstance(answer, Refused):
                raise StaleRejected(answer.reason)
            return answer

        return call

    def _end(self, why: str) -> None:
        if not self._is_over:
            self.kill()
            self._is_over, self.is_active = True, False
            self._world.tell(self._host.name, f"work on {self._name} is over: {why}")
            self._host.over(self._offer.lease_id)

    def _back_off(self) -> BackOff:
        return BackOff(longest=self._host.longest_back_off_s, rng=self._world.rng)

    def _lasts(self, least: float, most: float) -> float:
        """Draw how long something takes; little when all is to come to rest."""
        return self._world.rng.uniform(least, least + (most - least) / (8 if self._is_calm else 1))

    @property
    def _is_calm(self) -> bool:
        return self._world.weather.is_calm

    @property
    def _name(self) -> str:
        return f"{self._offer.lease_id[-6:]} {self._offer.spec.name}"


def void(_: object) -> None:
    """Forget an answer."""
