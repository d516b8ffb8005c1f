"""`forgeyard token …`: who may speak to the API, and what they may do."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from forgeyard.cli import output
from forgeyard.cli.client import path_of, shaped
from forgeyard.cli.options import DataDir, Json, TokenFile, Url, connect
from forgeyard.cli.submitting import whoami
from forgeyard.cli.watching import now_ms
from forgeyard.model.caller import PrincipalKind
from forgeyard.model.permission import Permission, Role
from forgeyard.model.units import parse_duration

app = typer.Typer(no_args_is_help=True, help="Make, list and revoke tokens of the API.")
API_TOKENS: Final = "/v1/tokens"
COLUMNS: Final = ("token", "principal", "role", "tenant", "expires", "used", "note")
Why = Annotated[str, typer.Option("--reason", help="Why; kept in the audit trail.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token without its secret."""

    token_id: str
    principal: str
    kind: str
    expires_at: int
    role: str | None = None
    permissions: tuple[str, ...] = ()
    grants: tuple[str, ...] = ()
    tenant: str | None = None
    note: str = ""
    last_used_at: int | None = None
    revoked_at: int | None = None
    is_live: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken(Token):
    """A token with the text that opens the API."""

    token: str


@app.command()
def create(
    principal: Annotated[str, typer.Argument(metavar="NAME", help="Whom it is for.")],
    expires: Annotated[str, typer.Option("--expires", help="How long it is good: 12h, 90d.")],
    reason: Why,
    role: Annotated[Role | None, typer.Option("--role", help="A set of permissions.")] = None,
    permission: Annotated[
        list[Permission] | None, typer.Option("--permission", help="One more; may be repeated.")
    ] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="The tenant whose runs alone it may touch.")
    ] = None,
    service: Annotated[
        bool, typer.Option("--service", help="It is for a program, not for a person.")
    ] = False,
    note: Annotated[str, typer.Option("--note", help="What it is for.")] = "",
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Make a token, and print it: it is never shown again.

    \b
    Example:
      forgeyard token create ci --service --role submitter --tenant acme --expires 90d --reason CI
    """
    body = {
        "principal": principal,
        "kind": PrincipalKind.SERVICE if service else PrincipalKind.USER,
        "role": role,
        "permissions": permission or [],
        "tenant": tenant,
        "lifetime_ms": parse_duration(expires, field="--expires"),
        "note": note,
        "reason": reason,
        "actor": whoami(),
    }
    with connect(url, token_file, data_dir) as client:
        answer = client.post(API_TOKENS, body)
    found = shaped(NewToken, answer)
    if as_json:
        output.put_json(answer)
        return
    output.say(f"{found.token_id} for {found.kind} {found.principal}; it is not shown again")
    output.put(found.token)


@app.command("list")
def list_tokens(
    ended: Annotated[
        bool, typer.Option("--ended", help="Those that were revoked or have expired instead.")
    ] = False,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """List the tokens that are good, the newest first.

    \b
    Example:
      forgeyard token list
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.get(API_TOKENS, ended=str(ended).lower())
    if as_json:
        output.put_json(answer)
        return
    output.put_table(COLUMNS, _rows(shaped(tuple[Token, ...], answer)), empty="no tokens")


def _rows(found: Iterable[Token]) -> Iterable[tuple[str, ...]]:
    now = now_ms()
    for one in found:
        left = f"in {output.duration(one.expires_at - now)}" if one.expires_at > now else "expired"
        used = (
            "never"
            if one.last_used_at is None
            else f"{output.duration(now - one.last_used_at)} ago"
        )
        may = ", ".join((*([one.role] if one.role else []), *one.permissions))
        yield (
            one.token_id,
            f"{one.kind} {one.principal}",
            may,
            one.tenant or "",
            left if one.revoked_at is None else "revoked",
            used,
            one.note,
        )


@app.command()
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="TOKEN", help="Its id: fya_…, no secret.")],
    reason: Why,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """End a token's life; within seconds nobody gets in with it any more.

    \b
    Example:
      forgeyard token revoke fya_01J… --reason "it was in a log"
    """
    body = {"reason": reason, "actor": whoami()}
    # Whoever pastes a whole token by mistake must not send its secret on in a path.
    bare = "_".join(token_id.split("_")[:2])
    with connect(url, token_file, data_dir) as client:
        answer = client.post(f"{path_of('v1', 'tokens', bare)}:revoke", body)
    found = shaped(Token, answer)
    said = f"{found.token_id} of {found.kind} {found.principal} is revoked"
    output.put_done(answer, said, as_json=as_json)
