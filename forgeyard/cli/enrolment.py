"""`forgeyard runner invite …`: which machines may become runners, and which may be so no longer."""

from pathlib import Path
from typing import Annotated, Final

import typer

from forgeyard.cli import output
from forgeyard.cli.client import path_of, shaped
from forgeyard.cli.enrolment_shapes import Certificate, Enrolment, Invitation, ShutOut
from forgeyard.cli.options import DataDir, Json, Reason, TokenFile, Url, connect, label_of
from forgeyard.cli.runner import RunnerName
from forgeyard.cli.submitting import because
from forgeyard.errors import InvalidRequest
from forgeyard.model.capability import TrustClass
from forgeyard.model.enrolment import Cloud
from forgeyard.model.units import Rounding, parse_bytes, parse_cpu, parse_duration
from forgeyard.trust.keys import save_private

app = typer.Typer(no_args_is_help=True)
ENROLMENTS: Final = "/v1/enrolments"
COLUMNS: Final = ("enrolment", "runner", "state", "trust", "closes", "key")
CERTIFICATES: Final = ("generation", "good until", "standing", "key")
EnrolmentId = Annotated[str, typer.Argument(metavar="ENROLMENT", help="Its id.")]


@app.command()
def invite(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the runner will be called.")],
    reason: Reason,
    trust: Annotated[
        TrustClass, typer.Option("--trust", help="What it may be trusted with.")
    ] = TrustClass.UNTRUSTED_GENERAL,
    pool: Annotated[str, typer.Option("--pool", help="The pool that it is put into.")] = "",
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="KEY=VALUE", help="A label that it has in any case."),
    ] = None,
    trusted: Annotated[
        list[str] | None,
        typer.Option(
            "--trusted", metavar="trusted.NAME", help="A tool or device that it may offer."
        ),
    ] = None,
    cpu: Annotated[str, typer.Option("--cpu", help="The least CPU it must have.")] = "0",
    memory: Annotated[str, typer.Option("--memory", help="The least memory it must have.")] = "0",
    aws_account: Annotated[
        str,
        typer.Option("--aws-account", help="AWS must say that it is a machine of this account."),
    ] = "",
    aws_region: Annotated[
        str, typer.Option("--aws-region", help="AWS must say that it is in this region.")
    ] = "",
    aws_instance: Annotated[
        str, typer.Option("--aws-instance", metavar="i-…", help="AWS must say that it is this one.")
    ] = "",
    launched_within: Annotated[
        str, typer.Option("--launched-within", help="How old it may be by AWS, 365d at most.")
    ] = "1h",
    approve_key: Annotated[
        bool, typer.Option("--approve", help="Let nobody in before `runner approve`.")
    ] = False,
    window: Annotated[
        str, typer.Option("--window", help="How long the token is good, 24h at most.")
    ] = "15m",
    generation: Annotated[
        int, typer.Option("--generation", min=1, help="The same name again, on a new machine.")
    ] = 1,
    token_out: Annotated[
        Path | None, typer.Option("--token-out", help="Write the token to this new 0600 file.")
    ] = None,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Make the token by which one machine becomes one runner, once.

    What the runner may be trusted with is said here; what its agent says of that does not count.

    \b
    Examples:
      forgeyard runner invite build-7 --trust trusted_internal --reason "new host" --token-out t
      forgeyard runner invite signer --trust signing_restricted --trusted trusted.hsm --approve \\
        --reason "rack 4"
      forgeyard runner invite ec2-7 --aws-account 123456789012 --aws-instance i-078517ca8a70a1dde \\
        --reason "launched just now"
    """
    machine = _machine(aws_account, aws_region, aws_instance, launched_within)
    expects = {
        "cpu": parse_cpu(cpu, field="--cpu", rounding=Rounding.REQUEST),
        "memory": parse_bytes(memory, field="--memory", rounding=Rounding.REQUEST),
        **({"machine": machine} if machine else {}),
    }
    grant = {
        "trust": trust.value,
        "pool": pool,
        "labels": dict(label_of(text) for text in label or ()),
        "trusted": trusted or [],
        "expects": expects,
    }
    wish = {
        "runner_name": name,
        "generation": generation,
        "grant": grant,
        "needs_approval": approve_key,
        "window_ms": parse_duration(window, field="--window"),
    }
    with connect(url, token_file, data_dir) as client:
        answer = client.post(ENROLMENTS, {**wish, **because(reason)})
    made = shaped(Invitation, answer)
    if token_out is not None:
        save_private(token_out, f"{made.token}\n".encode())
    if as_json:
        output.put_json(answer)
        return
    _put_invitation(made, token_out)


def _machine(account: str, region: str, instance: str, launched_within: str) -> dict[str, object]:
    """Say which machine AWS has to vouch for, if any."""
    if not account:
        if region or instance:
            raise InvalidRequest(
                "without its account a machine could be anybody's",
                field="--aws-account",
                allowed="the 12 digits of the account",
            )
        return {}
    return {
        "cloud": Cloud.AWS.value,
        "account": account,
        "region": region,
        "instance": instance,
        "launched_within_ms": parse_duration(launched_within, field="--launched-within"),
    }


def _put_invitation(made: Invitation, token_out: Path | None) -> None:
    if token_out is None:
        output.put(f"token: {made.token}")
    output.put(f"pin of the root: {made.pin}")
    output.put(f"good until {_shown(made.enrolment.closes_at)}, once; then, on the machine:")
    where = token_out or "FILE"
    machine = made.enrolment.grant.expects.machine
    proof = "" if machine is None else f" --cloud-identity {machine.cloud}"
    begin = "  forgeyard agent --join https://HOST:8701"
    output.put(f"{begin} --enrol-token-file {where} --ca-pin {made.pin}{proof}")


@app.command()
def invitations(
    as_json: Json = False, url: Url = None, token_file: TokenFile = None, data_dir: DataDir = None
) -> None:
    """List the newest invitations, and which of them wait for approval.

    \b
    Example:
      forgeyard runner invitations
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.get(ENROLMENTS)
    if as_json:
        output.put_json(answer)
        return
    rows = [
        (
            one.enrolment_id,
            one.runner_name,
            output.words(one.state),
            one.grant.trust,
            _shown(one.closes_at),
            one.key or "",
        )
        for one in shaped(tuple[Enrolment, ...], answer)
    ]
    output.put_table(COLUMNS, rows, empty="nobody was invited")


@app.command()
def approve(
    enrolment: EnrolmentId,
    key: Annotated[str, typer.Option("--key", help="The key that the machine prints.")],
    reason: Reason,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Let the machine in whose key you have compared with what it prints.

    \b
    Example:
      forgeyard runner approve enr_01… --key sha256/… --reason "read out on the phone"
    """
    wish = {"key": key, **because(reason)}
    with connect(url, token_file, data_dir) as client:
        answer = client.post(f"{path_of('v1', 'enrolments', enrolment)}:approve", wish)
    done = shaped(Enrolment, answer)
    said = {"enrolment": done.enrolment_id, "runner": done.runner_name}
    output.put_done(said, f"{done.runner_name} may come in", as_json=as_json)


@app.command()
def withdraw(
    enrolment: EnrolmentId,
    reason: Reason,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Make an invitation worthless; a runner that came by it stays: see `runner revoke`.

    \b
    Example:
      forgeyard runner withdraw enr_01… --reason "sent to the wrong person"
    """
    with connect(url, token_file, data_dir) as client:
        client.post(f"{path_of('v1', 'enrolments', enrolment)}:cancel", because(reason))
    output.put_done({"enrolment": enrolment}, f"{enrolment} opens nothing", as_json=as_json)


@app.command()
def revoke(
    runner: RunnerName,
    reason: Reason,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Shut a runner out at once: its certificates are worthless, its jobs go elsewhere.

    It comes back by a new invitation with the next --generation.

    \b
    Example:
      forgeyard runner revoke build-7 --reason "stolen"
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.post(f"{path_of('v1', 'runners', runner)}:revoke", because(reason))
    leases = shaped(ShutOut, answer).leases
    done = {"runner": runner, "leases": leases}
    output.put_done(done, f"{runner} is shut out; it lost {leases} leases", as_json=as_json)


@app.command()
def admit(
    runner: RunnerName,
    reason: Reason,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Let a runner out of quarantine; it has to prove itself anew.

    \b
    Example:
      forgeyard runner admit build-7 --reason "reinstalled"
    """
    with connect(url, token_file, data_dir) as client:
        client.post(f"{path_of('v1', 'runners', runner)}:admit", because(reason))
    output.put_done({"runner": runner}, f"{runner} may prove itself anew", as_json=as_json)


@app.command("certificates")
def list_certificates(
    runner: RunnerName,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """List the certificates that a runner was given.

    \b
    Example:
      forgeyard runner certificates build-7
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.get(f"{path_of('v1', 'runners', runner)}/certificates")
    if as_json:
        output.put_json(answer)
        return
    rows = [
        (str(one.generation), _shown(one.ends_at), _standing(one), one.key)
        for one in shaped(tuple[Certificate, ...], answer)
    ]
    output.put_table(CERTIFICATES, rows, empty=f"{runner} was given none")


def _standing(one: Certificate) -> str:
    if one.revoked_at is not None:
        return f"revoked: {one.revoked_reason}"
    return "replaced" if one.replaced_at is not None else "in use"


def _shown(ms: int | None) -> str:
    return "" if ms is None else output.instant(ms)
