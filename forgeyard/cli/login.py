"""`forgeyard login`, `logout` and `whoami`: which system to talk to, and as whom."""

import sys
from dataclasses import dataclass
from typing import Annotated

import typer

from forgeyard import config
from forgeyard.cli import output
from forgeyard.cli.client import Client, shaped
from forgeyard.cli.endpoint import LONGEST_TOKEN, Endpoint, checked_token, checked_urls, logins_of
from forgeyard.cli.options import DataDir, Json, TokenFile, Url, connect, endpoint
from forgeyard.cli.watching import now_ms
from forgeyard.errors import NotFound

API_WHOAMI = "/v1/whoami"
NamedUrl = Annotated[str, typer.Option("--url", metavar="URL,…", help="API to log in to.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Self:
    """Who one is to a system."""

    principal: str
    kind: str
    tenant: str | None = None
    token_id: str = ""
    expires_at: int | None = None
    grants: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """Say it to a person."""
        whose = f", of tenant {self.tenant}" if self.tenant else ""
        until = ""
        if self.expires_at is not None:
            until = f", for {output.duration(self.expires_at - now_ms())} more"
        return f"{self.kind} {self.principal}{whose}{until}"


def login(
    url: NamedUrl,
    token_stdin: Annotated[
        bool, typer.Option("--token-stdin", help="Read the token from standard input; needed.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Keep a token for a system, which later commands talk to unless told otherwise.

    It is tried first, and kept in a file that only you can read.

    \b
    Example:
      forgeyard login --url https://ci.example:8700 --token-stdin < token
    """
    if not token_stdin:
        # As an argument it would be in the shell's history and in the list of processes.
        raise typer.BadParameter(
            "a token is read from standard input only", param_hint="--token-stdin"
        )
    token = checked_token(sys.stdin.readline(LONGEST_TOKEN), field="token-stdin")
    found = Endpoint(urls=checked_urls(url), token=token)
    with Client(found) as client:
        answer = client.get(API_WHOAMI)
    logins = logins_of(config.load_client())
    logins.keep(",".join(found.urls), token)
    said = f"logged in to {', '.join(found.urls)} as {shaped(Self, answer).sentence}"
    output.put_done(answer, said, as_json=as_json)


def logout(
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL,…", help="Else the last one logged in to.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Forget the token that a login has kept; it stays good until it expires or is revoked.

    \b
    Example:
      forgeyard logout
    """
    logins = logins_of(config.load_client())
    named = ",".join(checked_urls(url)) if url else logins.current()
    if named is None or not logins.forget(named):
        raise NotFound("nobody is logged in", field="url", value=named)
    output.put_done({"url": named}, f"logged out of {named}", as_json=as_json)


def whoami(
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Tell which system commands talk to, as whom, and what that one may do.

    \b
    Example:
      forgeyard whoami
    """
    where = ", ".join(endpoint(url, token_file, data_dir).urls)
    with connect(url, token_file, data_dir) as client:
        answer = client.get(API_WHOAMI)
    if as_json:
        output.put_json(answer)
        return
    found = shaped(Self, answer)
    output.put(f"{found.sentence}, at {where}")
    output.put(f"may {', '.join(found.grants)}")
