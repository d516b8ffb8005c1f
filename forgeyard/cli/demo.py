"""What `forgeyard demo` shows once a system runs: this project, built and tested by itself."""

from pathlib import Path
from typing import Final, cast

from forgeyard.cli import demo_fleet, output
from forgeyard.cli.client import Client, path_of, shaped
from forgeyard.cli.following import Patience
from forgeyard.cli.links import attempt_link
from forgeyard.cli.material import Material
from forgeyard.cli.scheduler import explain
from forgeyard.cli.shapes import Explanation, Job, Run
from forgeyard.cli.submitting import submit_run
from forgeyard.cli.watching import exit_code, headline, jobs_shown, watch
from forgeyard.config import Config
from forgeyard.errors import NotFound
from forgeyard.runfile.load import load_run

RUN_FILE: Final = Path("examples/forgeyard-ci.yaml")
TOOLCHAIN: Final = "forgeyard-ci"
TOOLS: Final = Path(".toolenv/bin")
LAST_LINES: Final = 5


def project_root(start: Path) -> Path:
    """Find the checkout that the demo builds.

    Raises:
        NotFound: this is not a checkout of Forgeyard, or its tool environment is missing.
    """
    root = next((each for each in (start, *start.parents) if (each / RUN_FILE).exists()), None)
    if root is None:
        raise NotFound(
            "the demo builds Forgeyard itself: run it inside a checkout of the project",
            field=str(RUN_FILE),
        )
    if not (root / TOOLS / "python").exists():
        raise NotFound(
            f"{root / TOOLS.parent} is missing: `make setup` makes it", field=str(TOOLS.parent)
        )
    return root


def show(client: Client, root: Path, *, ui: str, config: Config, plain: bool) -> int:
    """Make a fleet, submit the project's own run, follow it, and sum up; 0 if it succeeded."""
    tools = config.agent.toolchains[0]
    demo_fleet.make(client, demo_fleet.document(tools.name, tools.version))
    _, document = load_run(root / RUN_FILE)
    material = Material(document=document, directory=root, called=str(root))
    submitted = submit_run(client, material, {}, config=config, idempotency_key=None, quiet=plain)
    run_id = str(submitted["run_id"])
    output.put(f"submitted {RUN_FILE} as {run_id}")
    run = watch(client, run_id, patience=Patience(), timeout_s=None, quiet=False)
    _sum_up(client, run, ui)
    output.put("waiting until the fleet has let its machines go")
    demo_fleet.sum_up(client, is_gone=demo_fleet.wait_until_gone(client))
    return exit_code(run)


def _sum_up(client: Client, run: Run, ui: str) -> None:
    output.put()
    if not output.is_live():
        console = output.console()
        console.print(headline(run), jobs_shown(run, width=console.width))
        output.put()
    for job in run.jobs:
        if job.state in {"failed", "timed_out", "lost"}:
            _last_lines(client, run, job)
    explained = next((job for job in run.jobs if job.attempts and job.needs), None)
    if explained is not None:
        _explain(client, explained, ui)


def _last_lines(client: Client, run: Run, job: Job) -> None:
    page = cast(
        "dict[str, list[dict[str, str]]]",
        client.get(f"/v1/runs/{run.run_id}/logs", job=job.name),
    )
    text = "".join(chunk["text"] for chunk in page["chunks"])
    output.put(f"{job.name} {output.words(job.state)}; its last lines:", style="bold red")
    for line in text.splitlines()[-LAST_LINES:]:
        output.put(f"  {line}")


def _explain(client: Client, job: Job, ui: str) -> None:
    """Show one placement as the rules see it: the sentence, then what it rests on."""
    output.put("One placement explained (`forgeyard scheduler explain-job`):", style="bold")
    answer = client.get(path_of("v1", "jobs", job.job_id, "scheduling"))
    explain(shaped(Explanation, answer))
    output.put(f"Its attempt in the Temporal UI: {attempt_link(ui, job.job_id, 1)}")
