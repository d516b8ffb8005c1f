"""Finds the system to talk to and the token for it.

The URL comes from the option, the environment, or the system that runs in the data directory. The
token of a data directory goes to that system and to this host, never anywhere else. A data
directory that came with somebody's sources is not believed: it would say where tokens go.
"""

import json
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast
from urllib.parse import urlsplit

import httpx

from forgeyard.addresses import LOOPBACK
from forgeyard.cli.credentials import Credentials
from forgeyard.config import ClientConfig, Config
from forgeyard.errors import InvalidRequest, NotFound, Unauthenticated

ENDPOINTS: Final = "endpoints.json"
TOKEN: Final = "token"
LONGEST_TOKEN: Final = 4_096
MOST_URLS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where the API answers and what opens it; the token never shows up in a traceback."""

    urls: tuple[str, ...]
    token: str

    def __repr__(self) -> str:
        return f"Endpoint(urls={self.urls!r})"

    @property
    def authorization(self) -> dict[str, str]:
        """Give the header that opens the API; none for whoever has no token yet."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    @property
    def is_local(self) -> bool:
        """Tell whether this host itself is meant."""
        return all(_is_here(url) for url in self.urls)

    @property
    def is_encrypted(self) -> bool:
        """Tell whether any of the addresses needs certificates."""
        return any(httpx.URL(url).scheme == "https" for url in self.urls)


def resolve(
    config: Config, client: ClientConfig, *, url: str | None, token_file: Path | None
) -> Endpoint:
    """Put options, environment and data directory together, strongest first.

    Raises:
        InvalidRequest: the URL is not one.
        NotFound: a token file that was named does not exist.
        Unauthenticated: there is no token for this URL.
    """
    running = running_system(config.data_dir).get("api_url")
    own = running or _listener(config.api.host, config.api.port)
    logins = logins_of(client)
    # What runs in the directory where one works is nearer than what one has logged in to.
    named = url or client.url or running or logins.current() or own
    return _with_token(config, client, named, own, token_file, logins=logins)


def logins_of(client: ClientConfig) -> Credentials:
    """Tell where the tokens of this person's logins are."""
    return Credentials(client.credentials.expanduser())


def resolve_agent(
    config: Config, client: ClientConfig, *, url: str | None, token_file: Path | None
) -> Endpoint:
    """Find the agent API that an agent joins, and the token for it, in the same way.

    Raises:
        InvalidRequest: the URL is not one.
        NotFound: a token file that was named does not exist.
        Unauthenticated: there is no token for this URL.
    """
    own = running_system(config.data_dir).get("agent_url")
    own = own or _listener(config.api.agent_host, config.api.agent_port)
    return _with_token(config, client, url or own, own, token_file, logins=None)


def _with_token(
    config: Config,
    client: ClientConfig,
    url: str,
    own: str,
    token_file: Path | None,
    *,
    logins: Credentials | None,
) -> Endpoint:
    found = checked_urls(url)
    if token_file is not None:
        return Endpoint(urls=found, token=read_token(token_file))
    if client.token:
        return Endpoint(urls=found, token=checked_token(client.token, field="FORGEYARD_TOKEN"))
    if client.token_file:
        return Endpoint(urls=found, token=read_token(Path(client.token_file)))
    kept = logins.token(",".join(found)) if logins is not None else None
    if kept is not None:
        return Endpoint(urls=found, token=checked_token(kept, field="login"))
    local, ours = config.token_path(), checked_url(own)
    if all(one == ours or _is_here(one) for one in found) and local.is_file():
        return Endpoint(urls=found, token=read_token(local))
    raise Unauthenticated(
        f"no token for {', '.join(found)}",
        field="token",
        allowed="--token-file, FORGEYARD_TOKEN, `forgeyard login`,"
        f" or a running system in {config.data_dir}",
    )


def running_system(data_dir: Path) -> dict[str, str]:
    """Read what `forgeyard up` wrote about itself; empty if nothing runs there."""
    if not _is_private(data_dir / TOKEN):
        return {}
    try:
        found: object = json.loads((data_dir / ENDPOINTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    entries = cast("dict[str, object]", found) if isinstance(found, dict) else {}
    return {name: value for name, value in entries.items() if isinstance(value, str)}


def read_token(path: Path) -> str:
    """Read a token from the first line of its file.

    Raises:
        NotFound: there is no such file.
        InvalidRequest: it cannot be read or holds no token.
    """
    try:
        with path.open(encoding="utf-8") as stream:
            token = stream.readline(LONGEST_TOKEN).strip()
    except FileNotFoundError:
        raise NotFound(f"there is no file {path}", field="token-file", value=path) from None
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            f"cannot read the token: {error}", field="token-file", value=path
        ) from None
    return checked_token(token, field="token-file", where=str(path))


def checked_token(token: str, *, field: str, where: str = "") -> str:
    """Accept what can stand in a header; what cannot is never repeated, for it may be a secret.

    Raises:
        InvalidRequest: it is empty, or not one line of ASCII text.
    """
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable():
        raise InvalidRequest(
            f"{where or field} holds no token",
            field=field,
            value=where or None,
            allowed="one line of text",
        )
    return token


def _is_private(path: Path) -> bool:
    """Tell whether a file is for one user only, as `up` makes it and no checkout can."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) and not stat.S_IMODE(mode) & 0o077


def _is_here(url: str) -> bool:
    return httpx.URL(url).host in LOOPBACK


def checked_urls(text: str) -> tuple[str, ...]:
    """Accept one URL, or several with commas between, each once.

    Raises:
        InvalidRequest: one of them is something else, or there are too many.
    """
    urls = tuple(dict.fromkeys(checked_url(url.strip()) for url in text.split(",")))
    if len(urls) > MOST_URLS:
        raise InvalidRequest(
            f"{len(urls)} URLs are too many",
            field="url",
            value=text,
            allowed=f"{MOST_URLS} at most",
        )
    return urls


def checked_url(url: str) -> str:
    """Accept http and https URLs only, without the slash at their end.

    Raises:
        InvalidRequest: it is something else.
    """
    try:
        parsed = urlsplit(url)
        fine = parsed.scheme in ("http", "https") and bool(parsed.hostname) and parsed.port != 0
        # A user in the URL would replace the token; both would end up in error messages.
        fine = fine and parsed.username is None and not parsed.query and not parsed.fragment
        host = httpx.URL(url).host
    except (httpx.InvalidURL, ValueError):
        fine, host = False, ""
    if not fine or not host or not url.isprintable() or " " in url:
        raise InvalidRequest(
            f"{_without_user(url)!r} is not a URL",
            field="url",
            value=_without_user(url),
            allowed="http://HOST:PORT",
        )
    return url.rstrip("/")


def _without_user(url: str) -> str:
    """Leave out a user and password, which error messages must not repeat."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}" if separator else url


def _listener(host: str, port: int) -> str:
    """Tell where a listener of this host's configuration can be reached from here."""
    reachable = "127.0.0.1" if host in ("", "0.0.0.0", "::") else host
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"
