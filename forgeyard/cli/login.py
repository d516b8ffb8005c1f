"""`forgeyard login`, `logout` and `whoami`: which system to talk to, and as whom."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import typer

from forgeyard import config
from forgeyard.cli import output
from forgeyard.cli.client import Client, shaped
from forgeyard.cli.endpoint import LONGEST_TOKEN, Endpoint, checked_token, checked_urls, logins_of
from forgeyard.cli.options import DataDir, Json, TokenFile, Url, connect, endpoint
from forgeyard.cli.single_sign_on import Proof, by_browser, by_device
from forgeyard.cli.watching import now_ms
from forgeyard.errors import NotFound
from forgeyard.trust import issuer
from forgeyard.trust.destinations import checked_issuer
from forgeyard.trust.issuer import Metadata

API_WHOAMI = "/v1/whoami"
API_SIGN_ON = "/v1/login/oidc"
NamedUrl = Annotated[str, typer.Option("--url", metavar="URL,…", help="API to log in to.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignOnShown:
    """Which issuer's ID tokens a system takes, and as which client to get one."""

    issuer: str
    client_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A token that was given for an ID token."""

    token: str


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
        bool, typer.Option("--token-stdin", help="Read the token from standard input.")
    ] = False,
    oidc: Annotated[
        bool, typer.Option("--oidc", help="Sign on in a browser on this host.")
    ] = False,
    device: Annotated[
        bool, typer.Option("--device", help="Sign on with a code, in any browser.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Keep a token for a system, which later commands talk to unless told otherwise.

    It is tried first, and kept in a file that only you can read.

    \b
    Example:
      forgeyard login --url https://ci.example:8700 --token-stdin < token
      forgeyard login --url https://ci.example:8700 --oidc
    """
    if token_stdin + oidc + device != 1:
        # As an argument a token would be in the shell's history and in the list of processes.
        raise typer.BadParameter(
            "a token is read from standard input, or got by signing on",
            param_hint="--token-stdin, --oidc or --device",
        )
    urls = checked_urls(url)
    if token_stdin:
        token = checked_token(sys.stdin.readline(LONGEST_TOKEN), field="token-stdin")
    else:
        token = _signed_on(urls, by_browser if oidc else by_device)
    found = Endpoint(urls=urls, token=token)
    with Client(found) as client:
        answer = client.get(API_WHOAMI)
    logins = logins_of(config.load_client())
    logins.keep(",".join(found.urls), token)
    said = f"logged in to {', '.join(found.urls)} as {shaped(Self, answer).sentence}"
    output.put_done(answer, said, as_json=as_json)


def _signed_on(urls: tuple[str, ...], prove: Callable[[Metadata, str], Proof]) -> str:
    """Get an ID token from the issuer that the system names, and a token of ours for it."""
    with Client(Endpoint(urls=urls, token="")) as client:
        where = shaped(SignOnShown, client.get(API_SIGN_ON))
        proof = prove(issuer.describe(checked_issuer(where.issuer)), where.client_id)
        body = {"id_token": proof.id_token, "nonce": proof.nonce}
        made = shaped(Made, client.post(API_SIGN_ON, body))
    return checked_token(made.token, field="token")


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
