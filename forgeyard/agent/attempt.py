"""Carries out one accepted attempt: prepare, run the steps, count tests, upload the outputs.

Each phase ends the attempt with an `Ending` or lets the next one begin; `Interrupted` passes
through. Refuses to know how leases are accepted and ends reported.
"""

from collections.abc import Callable, Coroutine
from pathlib import Path

from forgeyard.agent import counting, ending
from forgeyard.agent.caches import Caches
from forgeyard.agent.ending import Ending
from forgeyard.agent.lease import Interrupted
from forgeyard.agent.reports import Reports
from forgeyard.agent.steps import Bench, run_step
from forgeyard.agent.transfer import Transfers
from forgeyard.archive import Packed
from forgeyard.errors import Rejected, Unavailable
from forgeyard.model.job import FailureClass, JobSpec, OutputSpec, Step
from forgeyard.model.protocol import Input, Outcome, Phase, StepResult, TestCounts

TRIES = 8
"""How often a transfer is tried before the attempt is given up."""
NAMED = 20
"""How many skipped files are named."""
COUNT_WITHIN_S = 10.0
"""How long tests are counted; less than the server allows beyond the end of the execution."""


class Attempt:
    """One try of a job."""

    def __init__(
        self,
        bench: Bench,
        reports: Reports,
        transfers: Transfers,
        *,
        mask: Callable[[str], str],
        altered: Callable[[], Coroutine[object, object, str]],
    ) -> None:
        self._bench = bench
        self._held = bench.held
        self._logs = bench.logs
        self._spec: JobSpec = bench.held.offer.spec
        self._reports = reports
        self._transfers = transfers
        self._caches = Caches(bench, reports, transfers)
        self._mask = mask
        self._altered = altered
        self._running_since = 0.0
        """When the server was told that steps run, by this host's clock."""
        self.tests: TestCounts | None = None
        self.steps: list[StepResult] = []

    async def carry_out(self) -> Ending:
        """Go through the phases until one ends the attempt.

        Raises:
            Interrupted: the attempt may be another's by now; say nothing.
        """
        phases = (
            ("preparation", self._prepare),
            ("execution", self._run_steps),
            ("upload", self._upload),
        )
        for name, phase in phases:
            try:
                end = await phase()
            except Interrupted as stop:
                if stop.reason.is_fenced:
                    raise
                return ending.interrupted(stop.reason, phase=name)
            if end is not None:
                return end
        return Ending(outcome=Outcome.SUCCEEDED)

    async def _prepare(self) -> Ending | None:
        until = self._within(self._spec.timeouts.preparation)
        try:
            await self._transfers.in_thread(self._bench.folders.make)
        except OSError as error:
            return ending.failed(FailureClass.SANDBOX_SETUP, f"no workspace: {error}")
        for given in self._held.offer.inputs:
            end = await self._bring(given, until=until)
            if end is not None:
                return end
        end = await self._caches.restore(until=until)
        if end is not None:
            return end
        # Last of all: what a step meets is what was looked at (ELG-045).
        problem = await self._held.watch(self._altered(), until=until)
        if problem:
            return ending.failed(FailureClass.TOOLCHAIN_UNAVAILABLE, problem)
        if self._bench.cell is not None:
            try:
                await self._transfers.in_thread(self._bench.cell.open)
            except OSError as error:
                return ending.failed(FailureClass.SANDBOX_SETUP, f"it cannot be shut in: {error}")
        self._running_since = await self._reports.progress(Phase.RUNNING, until=until)
        return None

    async def _bring(self, given: Input, *, until: float) -> Ending | None:
        """Fetch one input and unpack it into the workspace."""
        try:
            path = await self._reports.insist(
                lambda: self._transfers.fetch(given), until=until, tries=TRIES, what=given.origin
            )
            files = await self._held.watch(self._transfers.unpack(given, path), until=until)
        except (Rejected, Unavailable) as error:
            return ending.failed(FailureClass.INPUT_FETCH, f"{given.origin}: {error.message}")
        except OSError as error:
            return ending.failed(FailureClass.INFRASTRUCTURE, f"{given.origin}: {error}")
        await self._logs.note(f"{given.origin}: {files} files from {given.size} bytes")
        return None

    async def _run_steps(self) -> Ending | None:
        until = self._running_since + self._spec.timeouts.execution / 1000
        end = None
        for step in self._spec.steps:
            end = await self._run(step, until=until)
            if end is not None:
                break
        await self._count_tests()
        end = ending.judged_by_tests(end, self.tests)
        if self._held.leaves_at is not None:
            # Only now: amid a step it could tear a secret apart that is still to be masked.
            await self._logs.note("this machine will be taken away by its provider")
            end = ending.on_a_leaving_machine(end, checkpoint=self._spec.checkpoint)
        return end

    async def _run(self, step: Step, *, until: float) -> Ending | None:
        run = await run_step(step, self._bench, until=until)
        self.steps.append(run.result)
        if run.stopped is not None:
            raise Interrupted(run.stopped)
        return ending.of_step(run, shell=step.shell)

    async def _count_tests(self) -> None:
        """Read the test reports, of a failed step above all; nothing in them ends the attempt."""
        patterns = self._spec.test_reports
        if not patterns:
            return
        work = self._transfers.in_thread(
            counting.count_tests, self._bench.folders.workspace, patterns, mask=self._mask
        )
        try:
            until = self._held.clock() + COUNT_WITHIN_S
            self.tests, notes = await self._held.watch(work, until=until)
        except Interrupted as stop:
            if stop.reason.is_fenced:
                raise
            # How the steps ended stands; whoever asked to stop is heard by the next phase.
            notes = (f"not read to the end: {stop.reason.value}",)
        except OSError as error:
            notes = (f"cannot be read: {error}",)
        for note in notes:
            await self._logs.note(f"test reports: {note}")

    async def _upload(self) -> Ending | None:
        if not self._spec.outputs and not self._caches.has_missed:
            return None
        until = self._within(self._spec.timeouts.upload)
        await self._reports.progress(Phase.UPLOADING_OUTPUTS, until=until)
        for output in self._spec.outputs:
            end = await self._keep(output, until=until)
            if end is not None:
                return end
        await self._caches.save(until=until)
        return None

    async def _keep(self, output: OutputSpec, *, until: float) -> Ending | None:
        """Pack one output and upload it, if there is anything."""
        name = f"output {output.name!r} ({output.path})"
        try:
            packed, path = await self._held.watch(self._transfers.pack(output), until=until)
        except Rejected as error:
            return ending.failed(FailureClass.USER_COMMAND, f"{name}: {error.message}")
        except OSError as error:
            return ending.failed(FailureClass.INFRASTRUCTURE, f"{name}: {error}")
        if packed.skipped:
            await self._logs.note(f"{name}: left out {', '.join(packed.skipped[:NAMED])}")
        if packed.files > 0:
            return await self._send(output, packed, path, until=until)
        if output.required:
            return ending.failed(FailureClass.USER_COMMAND, f"{name} matches no file")
        await self._logs.note(f"{name} matches no file; it is not required")
        return None

    async def _send(
        self, output: OutputSpec, packed: Packed, path: Path, *, until: float
    ) -> Ending | None:
        try:
            await self._reports.insist(
                lambda: self._transfers.send(output, packed, path),
                until=until,
                tries=TRIES,
                what=output.name,
            )
        except (Rejected, Unavailable) as error:
            return ending.failed(FailureClass.OUTPUT_UPLOAD, f"{output.name}: {error.message}")
        await self._logs.note(f"output {output.name!r}: {packed.files} files, {packed.size} bytes")
        return None

    def _within(self, millis: int) -> float:
        return self._held.clock() + millis / 1000
