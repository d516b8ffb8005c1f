"""`forgeyard ca …`: the internal authority that signs runners and the agent API, on this machine.

These commands work on a folder; no server need run.
"""

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from forgeyard import clock
from forgeyard.cli import output
from forgeyard.cli.options import DataDir, Json, settings
from forgeyard.trust import certificates
from forgeyard.trust.authority import Authority, Issuing
from forgeyard.trust.certificates import Certificate

app = typer.Typer(no_args_is_help=True, help="Make and renew the internal certificate authority.")
Folder = Annotated[
    Path | None,
    typer.Option("--folder", help="Its folder; else api.authority, else DATA_DIR/ca."),
]


@app.command()
def init(
    domain: Annotated[
        str, typer.Option("--domain", help="The trust domain, part of every runner's identity.")
    ] = "forgeyard.internal",
    folder: Folder = None,
    as_json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Make a root and the first issuing authority.

    The root's key is needed for `ca rotate` only: take it off this machine.

    \b
    Example:
      forgeyard ca init --domain ci.example.org
    """
    authority = _authority(folder, data_dir)
    authority.create(domain, now=clock.now())
    if as_json:
        output.put_json(_shown(authority))
        return
    output.put(f"made an authority for {domain} in {authority.folder}")
    output.put(f"pin of its root, for agents that join: {authority.pin()}")
    output.put(f"now take {authority.root_key_file} off this machine and keep it safe;")
    output.put("only `forgeyard ca rotate --root-key FILE` will ask for it")


@app.command()
def rotate(
    root_key: Annotated[
        Path | None, typer.Option("--root-key", help="The root's key, if it was taken away.")
    ] = None,
    folder: Folder = None,
    as_json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Make a new issuing authority.

    It signs from now on. Those before it stay trusted until they end, so nobody is cut off.

    \b
    Example:
      forgeyard ca rotate --root-key /media/usb/root.key
    """
    authority = _authority(folder, data_dir)
    made = authority.rotate(root_key, now=clock.now())
    if as_json:
        output.put_json(_shown(authority))
        return
    output.put(f"issuing authority {made.number} signs now, until {_day(made.certificate)}")


@app.command()
def export(
    pin: Annotated[bool, typer.Option("--pin", help="Print only the pin of the root.")] = False,
    folder: Folder = None,
    as_json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Print what is trusted, as PEM: the root, then the issuing authorities.

    Keys are never printed.

    \b
    Example:
      forgeyard ca export > ca.pem
    """
    authority = _authority(folder, data_dir)
    bundle = certificates.written(authority.bundle(now=clock.now())).decode()
    if as_json:
        output.put_json({"pin": authority.pin(), "pem": bundle})
        return
    output.put(authority.pin() if pin else bundle.rstrip("\n"))


@app.command()
def show(folder: Folder = None, as_json: Json = False, data_dir: DataDir = None) -> None:
    """Tell what the authority consists of and until when each part is good.

    \b
    Example:
      forgeyard ca show
    """
    authority = _authority(folder, data_dir)
    if as_json:
        output.put_json(_shown(authority))
        return
    root = authority.root()
    output.put(f"domain {authority.domain()}, pin {authority.pin()}")
    output.put(f"root until {_day(root)}, {certificates.fingerprint(root)}")
    for one in authority.issuing(now=clock.now()):
        output.put(
            f"issuing {one.number} until {_day(one.certificate)},"
            f" {certificates.fingerprint(one.certificate)}"
        )


@app.command()
def server(
    hosts: Annotated[
        list[str], typer.Argument(metavar="HOST...", help="Names and addresses agents use.")
    ],
    folder: Folder = None,
    as_json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Make the agent API's key and certificate, for these names and addresses.

    \b
    Example:
      forgeyard ca server ci.example.org 10.0.0.5
    """
    chain, key = _authority(folder, data_dir).server(hosts, now=clock.now())
    if as_json:
        output.put_json({"certificate": str(chain), "key": str(key), "hosts": hosts})
        return
    output.put(f"certificate {chain}, key {key}")


def _authority(folder: Path | None, data_dir: Path | None) -> Authority:
    return Authority(folder or settings(data_dir).authority_dir())


def _shown(authority: Authority) -> dict[str, object]:
    return {
        "folder": str(authority.folder),
        "domain": authority.domain(),
        "pin": authority.pin(),
        "root": _part(authority.root()),
        "issuing": [_issuing(one) for one in authority.issuing(now=clock.now())],
    }


def _issuing(one: Issuing) -> dict[str, object]:
    return {"number": one.number, **_part(one.certificate)}


def _part(certificate: Certificate) -> dict[str, object]:
    return {
        "fingerprint": certificates.fingerprint(certificate),
        "until": certificate.not_valid_after_utc.isoformat(),
    }


def _day(certificate: Certificate) -> str:
    ends: datetime = certificate.not_valid_after_utc
    return f"{ends:%Y-%m-%d}"
