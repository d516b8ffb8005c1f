"""Turns a run file's document into a `RunSpec`, or says what is wrong with it and where.

The same function judges files on the command line and documents that reach the API, so both
accept the same runs. Errors carry `field`, the dotted path into the document.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath, PureWindowsPath

from pydantic import ValidationError

from forgeyard.errors import InvalidRequirements, InvalidRunFile
from forgeyard.model.job import (
    CacheSpec,
    JobSpec,
    MatrixCell,
    OutputSpec,
    RetryPolicy,
    Step,
    Timeouts,
)
from forgeyard.model.run import Concurrency, RunSpec, check_graph
from forgeyard.model.units import (
    Bytes,
    MilliCpu,
    Millis,
    Resources,
    Rounding,
    parse_bytes,
    parse_cpu,
    parse_duration,
)
from forgeyard.model.wishes import Wishes
from forgeyard.runfile.complaint import complain, shown
from forgeyard.runfile.matrix import expand
from forgeyard.runfile.requires import MOST_BYTES, compile_requires, unique, within
from forgeyard.runfile.schema import (
    CachePart,
    JobPart,
    OfflinePart,
    OutputPart,
    ResourcesPart,
    RetryPart,
    RunFile,
    StepPart,
    TimeoutsPart,
)
from forgeyard.runfile.source import compile_source
from forgeyard.runfile.ties import check_ties, compile_ties
from forgeyard.runfile.values import MAX_NEEDS, MAX_SCRIPT

MOST_CPU = MilliCpu(4_096_000)
SHORTEST, LONGEST = Millis(1_000), Millis(30 * 86_400_000)
RESERVED = "FORGEYARD_"


def compile_run(document: Mapping[str, object], *, fallback_name: str) -> RunSpec:
    """Check a whole document and fill in every default.

    Raises:
        InvalidRunFile: the shape or a value is wrong; `field` is the dotted path.
        InvalidRequirements: the jobs do not form a graph, or ask for what cannot be.
        InvalidQuantity: an amount cannot be read.
        InvalidRequest: the source names no repository or ref that git may be asked for.
    """
    expansion = expand(document)
    try:
        run_file = RunFile.model_validate(expansion.document)
    except ValidationError as error:
        raise complain(error, origins=expansion.origins()) from None
    groups = expansion.groups()
    jobs = tuple(
        _job(name, part, cell=expansion.cells.get(name), groups=groups)
        for name, part in run_file.jobs.items()
    )
    if sum(len(job.needs) for job in jobs) > MAX_NEEDS:
        raise InvalidRunFile(
            "jobs: too many needs in all", field="jobs", allowed=f"at most {MAX_NEEDS} needs"
        )
    _check_graph(jobs)
    jobs = check_ties(jobs)
    run = RunSpec(name=run_file.name or fallback_name, jobs=jobs, queue=run_file.queue)
    if run_file.timeout is not None:
        run = replace(run, timeout=_duration(run_file.timeout, "timeout"))
    if run_file.source is not None:
        run = replace(run, git=compile_source(run_file.source))
    if run_file.concurrency is not None:
        part = run_file.concurrency
        wanted = Concurrency(group=part.group, cancel_in_progress=part.cancel_in_progress)
        run = replace(run, concurrency=wanted)
    return run


def _check_graph(jobs: Sequence[JobSpec]) -> None:
    """Check the graph; what is wrong with a cell is said of the job that the file has."""
    try:
        check_graph(jobs)
    except InvalidRequirements as error:
        origins = {f"jobs.{job.name}.needs": job.matrix.of for job in jobs if job.matrix}
        if error.field in origins:
            error.field = f"jobs.{origins[error.field]}.needs"
        raise


def _job(
    name: str, part: JobPart, *, cell: MatrixCell | None, groups: Mapping[str, tuple[str, ...]]
) -> JobSpec:
    at = f"jobs.{cell.of if cell else name}"
    _check_environment(part, at)
    return JobSpec(
        name=name,
        steps=tuple(_step(step, n, f"{at}.steps.{n}") for n, step in enumerate(part.steps)),
        needs=_needs(part, groups, f"{at}.needs"),
        condition=part.condition,
        continue_on_error=part.continue_on_error,
        env=part.env,
        secrets=unique(part.secrets, f"{at}.secrets"),
        outputs=_outputs(part, f"{at}.outputs"),
        caches=tuple(_cache(n, cache, f"{at}.caches.{n}") for n, cache in part.caches.items()),
        test_reports=_patterns(part.test_reports or [], f"{at}.test-reports"),
        resources=_resources(part.resources, f"{at}.resources"),
        requires=compile_requires(part.requires, f"{at}.requires"),
        priority=part.priority,
        timeouts=_timeouts(part.timeouts, f"{at}.timeouts"),
        retry=_retry(part.retry, f"{at}.retry"),
        matrix=cell,
        checkpoint=part.checkpoint,
        wishes=compile_ties(part, _wishes(part, at), cell=cell, groups=groups),
    )


def _wishes(part: JobPart, at: str) -> Wishes:
    keys = [part.exclusive] if isinstance(part.exclusive, str) else part.exclusive
    return Wishes(
        scheduling_class=part.scheduling_class,
        keys=unique(keys, f"{at}.exclusive"),
        preemption=part.preemption,
        spot=part.spot,
        purpose=part.purpose,
        offline=_offline(part.connectivity, f"{at}.connectivity"),
    )


def _offline(given: str | OfflinePart, at: str) -> Millis | None:
    """Tell how long a job may run on without the server, if it says so itself."""
    if isinstance(given, OfflinePart):
        return _duration(given.offline, f"{at}.offline")
    return Millis(0) if given == "continuous" else None


def _needs(part: JobPart, groups: Mapping[str, tuple[str, ...]], at: str) -> tuple[str, ...]:
    """Read what a job needs; a job with a matrix means all its cells."""
    written = unique([part.needs] if isinstance(part.needs, str) else part.needs, at)
    meant = (one for need in written for one in groups.get(need, (need,)))
    return tuple(dict.fromkeys(meant))


def _check_environment(part: JobPart, at: str) -> None:
    """Refuse variables that are ours, and those that two sources would set."""
    for group, names in (("env", list(part.env)), ("secrets", part.secrets)):
        for number, name in enumerate(names):
            where = f"{at}.{group}.{name if group == 'env' else number}"
            if name.upper().startswith(RESERVED):
                raise InvalidRunFile(
                    f"{where}: names beginning with {RESERVED} are set by Forgeyard",
                    field=where,
                    value=name,
                    allowed="another name",
                )
            if group == "secrets" and name in part.env:
                raise InvalidRunFile(
                    f"{where}: {name!r} is in env as well",
                    field=where,
                    value=name,
                    allowed="a name that env does not set",
                )


def _step(part: StepPart, number: int, at: str) -> Step:
    if not part.run.strip():
        raise InvalidRunFile(f"{at}.run: is blank", field=f"{at}.run", allowed="a shell script")
    size = len(part.run.encode())
    if size > MAX_SCRIPT:
        raise InvalidRunFile(
            f"{at}.run: has {size} bytes",
            field=f"{at}.run",
            allowed=f"at most {MAX_SCRIPT} bytes; put long scripts into a file of the source",
        )
    return Step(name=part.name or f"step {number + 1}", run=part.run, shell=part.shell)


def _outputs(part: JobPart, at: str) -> tuple[OutputSpec, ...]:
    if isinstance(part.outputs, dict):
        for name, path in part.outputs.items():
            _check_path(path, f"{at}.{name}")
        return tuple(OutputSpec(name=name, path=path) for name, path in part.outputs.items())
    unique([output.name for output in part.outputs], at)
    return tuple(_output(output, f"{at}.{n}.path") for n, output in enumerate(part.outputs))


def _output(part: OutputPart, at: str) -> OutputSpec:
    _check_path(part.path, at)
    return OutputSpec(name=part.name, path=part.path, required=part.required)


def _cache(name: str, part: CachePart, at: str) -> CacheSpec:
    _check_path(part.path, f"{at}.path")
    return CacheSpec(name=name, path=part.path, key=_patterns(part.key, f"{at}.key"))


def _patterns(given: str | Sequence[str], at: str) -> tuple[str, ...]:
    """Check one path or glob, or a list of them."""
    if isinstance(given, str):
        _check_path(given, at)
        return (given,)
    for number, path in enumerate(given):
        _check_path(path, f"{at}.{number}")
    return unique(given, at)


def _check_path(path: str, at: str) -> None:
    """Refuse paths that would leave the workspace on any platform."""
    parts = PurePosixPath(path).parts
    absolute = path.startswith(("/", "~")) or PureWindowsPath(path).drive != ""
    if absolute or ".." in parts or "\\" in path or not parts:
        raise InvalidRunFile(
            f"{at}: {shown(path)!r} is not inside the workspace",
            field=at,
            value=path,
            allowed="relative paths or globs with / and without ..",
        )


def _resources(part: ResourcesPart, at: str) -> Resources:
    usual = JobSpec(name="", steps=()).resources
    amounts: dict[str, int] = {}
    if part.cpu is not None:
        cpu = parse_cpu(part.cpu, field=f"{at}.cpu", rounding=Rounding.REQUEST)
        amounts["cpu"] = within(cpu, 1, MOST_CPU, f"{at}.cpu", part.cpu, "1m to 4096 cores")
    for name, given in (("memory", part.memory), ("disk", part.disk)):
        if given is not None:
            size = parse_bytes(given, field=f"{at}.{name}", rounding=Rounding.REQUEST)
            amounts[name] = within(size, 1, MOST_BYTES, f"{at}.{name}", given, "1 byte to 1Pi")
    return Resources(
        cpu=MilliCpu(amounts.get("cpu", usual.cpu)),
        memory=Bytes(amounts.get("memory", usual.memory)),
        disk=Bytes(amounts.get("disk", usual.disk)),
        slots=1,
    )


def _timeouts(part: TimeoutsPart, at: str) -> Timeouts:
    usual = Timeouts()

    def read(given: str | int | float | None, name: str, default: Millis) -> Millis:
        return default if given is None else _duration(given, f"{at}.{name}")

    return Timeouts(
        queue=read(part.queue, "queue", usual.queue),
        preparation=read(part.preparation, "preparation", usual.preparation),
        execution=read(part.execution, "execution", usual.execution),
        upload=read(part.upload, "upload", usual.upload),
    )


def _retry(part: RetryPart, at: str) -> RetryPolicy:
    usual = RetryPolicy()
    delay, longest = usual.delay, usual.max_delay
    if part.delay is not None:
        delay = _duration(part.delay, f"{at}.delay", shortest=Millis(0))
        longest = Millis(max(delay, longest))
    if part.max_delay is not None:
        longest = _duration(part.max_delay, f"{at}.max-delay", shortest=delay)
    return RetryPolicy(
        max_attempts=part.max_attempts or usual.max_attempts,
        on=usual.on if part.on is None else unique(part.on, f"{at}.on"),
        delay=delay,
        max_delay=longest,
    )


def _duration(given: str | int | float, at: str, *, shortest: Millis = SHORTEST) -> Millis:
    found = parse_duration(given, field=at)
    allowed = f"{shortest / 1000:g}s to 30d"
    return Millis(within(found, shortest, LONGEST, at, given, allowed))
