"""`forgeyard policy …`: the numbers that the scheduler obeys."""

from pathlib import Path
from typing import Annotated

import typer

from forgeyard.cli import output
from forgeyard.cli.client import shaped
from forgeyard.cli.options import DataDir, Json, TokenFile, Url, connect
from forgeyard.cli.policy_file import as_yaml, load_policy
from forgeyard.cli.shapes import Policy, PolicyVersion
from forgeyard.cli.submitting import whoami
from forgeyard.cli.watching import now_ms
from forgeyard.model import policy_document
from forgeyard.scheduler.score import rising_terms

app = typer.Typer(no_args_is_help=True, help="Read, check and set the scheduling policy.")
API_POLICY = "/v1/policy"
PolicyPath = Annotated[
    Path, typer.Argument(metavar="FILE", help="The policy; what it leaves out has its default.")
]


@app.command()
def show(
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Print the policy in force as a file to edit and set again.

    \b
    Example:
      forgeyard policy show > policy.yaml
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.get(API_POLICY)
    if as_json:
        output.put_json(answer)
        return
    found = shaped(Policy, answer)
    output.put(f"# {_called(found.version)}, {found.digest}")
    output.put(as_yaml(found.document).rstrip("\n"))


def _called(version: int) -> str:
    return f"version {version}" if version else "the built-in policy, version 0"


@app.command()
def check(
    file: PolicyPath,
    server: Annotated[
        bool, typer.Option("--server", help="Ask the server too, which may be of another version.")
    ] = False,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Say what is wrong with a policy file, and where.

    Nothing is set.

    \b
    Example:
      forgeyard policy check policy.yaml
    """
    policy, document = load_policy(file)
    if server:
        with connect(url, token_file, data_dir) as client:
            client.post(f"{API_POLICY}:check", {"document": document})
    if as_json:
        whole = policy_document.written(policy)
        rising = list(rising_terms(policy))
        output.put_json({"digest": policy.digest(), "document": whole, "rising_terms": rising})
        return
    output.put(f"{file} is fine: {policy.digest()}")
    for term in rising_terms(policy):
        output.put(
            f"weights.{term}: this score rises as a runner fills up;"
            " the scheduler judges every runner anew that it gives work, so it stays exact"
        )


@app.command("set")
def set_policy(
    file: PolicyPath,
    reason: Annotated[str, typer.Option("--reason", help="Why; kept with the version.")],
    expected: Annotated[
        int | None,
        typer.Option(
            "--expect", metavar="VERSION", help="Refuse if another version is in force than this."
        ),
    ] = None,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Put a policy in force.

    It holds from the next cycle, sweep and renewal on; nothing has to be started again.

    \b
    Example:
      forgeyard policy set policy.yaml --reason "a bigger fleet"
    """
    _, document = load_policy(file)
    with connect(url, token_file, data_dir) as client:
        before = shaped(Policy, client.get(API_POLICY)).version
        wish = {"document": document, "reason": reason, "actor": whoami()}
        seen = before if expected is None else expected
        answer = client.put(API_POLICY, {**wish, "expected_version": seen})
    if as_json:
        output.put_json(answer)
        return
    found = shaped(Policy, answer)
    if found.version == before:
        output.put(f"nothing to do: {_called(before)} says the same")
        return
    output.put(f"version {found.version} is in force, {found.digest}")


@app.command()
def history(
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """List the versions that were set, the newest first.

    \b
    Example:
      forgeyard policy history
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.get(f"{API_POLICY}/history")
    if as_json:
        output.put_json(answer)
        return
    now = now_ms()
    rows = [
        (
            str(one.version),
            f"{output.duration(now - one.created_at)} ago",
            one.actor,
            f"{one.reason} ({one.damage})" if one.damage else one.reason,
            one.digest,
        )
        for one in shaped(tuple[PolicyVersion, ...], answer)
    ]
    columns = ("version", "set", "by", "reason", "digest")
    output.put_table(columns, rows, empty="nobody has set a policy; the built-in one is in force")
