"""`forgeyard image …`: what machines boot, who made it, and whether it may still run."""

import base64
import binascii
from pathlib import Path
from typing import Annotated

import typer

from forgeyard.cli import output
from forgeyard.cli.client import path_of, shaped
from forgeyard.cli.image_shapes import Image, Struck
from forgeyard.cli.options import DataDir, Json, Reason, TokenFile, Url, connect, label_of
from forgeyard.cli.submitting import because
from forgeyard.cli.watching import now_ms
from forgeyard.errors import InvalidRequest, NotFound
from forgeyard.model.image import MOST_SIGNATURE, Provenance, RunnerImage
from forgeyard.model.units import parse_duration

app = typer.Typer(no_args_is_help=True, help="Look after the images that machines boot.")
API_IMAGES = "/v1/images"
COLUMNS = ("image", "state", "made by", "machines", "aliases")
ImageName = Annotated[str, typer.Argument(metavar="IMAGE", help="Its digest or an alias.")]


@app.command("list")
def list_images(
    as_json: Json = False, url: Url = None, token_file: TokenFile = None, data_dir: DataDir = None
) -> None:
    """List images, the newest first.

    \b
    Example:
      forgeyard image list
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.get(API_IMAGES)
    if as_json:
        output.put_json(answer)
        return
    rows = [
        (
            one.image.digest,
            _state(one),
            one.image.provenance.builder or "nobody knows",
            str(one.machines),
            ", ".join(one.aliases),
        )
        for one in shaped(tuple[Image, ...], answer)
    ]
    output.put_table(COLUMNS, rows, empty="no image")


@app.command("show")
def show_image(
    image: ImageName,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Show an image, how it was made and what providers call it.

    \b
    Example:
      forgeyard image show linux-stable
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.get(path_of("v1", "images", image))
    if as_json:
        output.put_json(answer)
        return
    found = shaped(Image, answer)
    why = f": {found.state_reason}" if found.state_reason else ""
    output.put(f"{found.image.digest}: {_state(found)}{why}")
    output.put(f"machines: {found.machines}; aliases: {', '.join(found.aliases) or 'none'}")
    made = found.image.provenance
    said = {"built by": made.builder, "source": made.source, "SBOM": made.sbom}
    for name, value in {**said, "signature": made.signature, **found.image.references}.items():
        output.put(f"  {name}: {value or 'not on record'}")
    signed = found.image.signature
    output.put(f"  record signed by: {'nobody' if signed is None else signed.by}")


def _state(one: Image) -> str:
    return f"{one.state} ({one.severity})" if one.severity else one.state


Digest = Annotated[str, typer.Argument(metavar="DIGEST", help="sha256: and 64 digits.")]
References = Annotated[
    list[str] | None,
    typer.Option(
        "--ref", metavar="PLACE=NAME", help="aws/eu-central-1=ami-…: what it is called there."
    ),
]
Builder = Annotated[str, typer.Option("--built-by", help="Who built it.")]
Source = Annotated[str, typer.Option("--source", help="From which commit or document.")]
Sbom = Annotated[str, typer.Option("--sbom", help="The digest of its bill of materials.")]
SignaturePlace = Annotated[str, typer.Option("--signature", help="Where its signature is.")]


@app.command("add")
def add_image(
    digest: Digest,
    reason: Reason,
    reference: References = None,
    builder: Builder = "",
    source: Source = "",
    sbom: Sbom = "",
    signature: SignaturePlace = "",
    signature_file: Annotated[
        Path | None,
        typer.Option(
            "--signature-file",
            metavar="FILE",
            help="A signature over what `image statement` writes for the same options.",
        ),
    ] = None,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Register an image, or more places where it is found.

    \b
    Example:
      forgeyard image add sha256:9f… --ref aws/eu-central-1=ami-0a1b --built-by images/main \\
        --source 3c9e01 --sbom sha256:77… --signature-file image.sig --reason "weekly build"
    """
    made = {"builder": builder, "source": source, "sbom": sbom, "signature": signature}
    wish = {"digest": digest, "references": dict(map(label_of, reference or ()))}
    signed = {} if signature_file is None else {"signature": _base64(signature_file)}
    with connect(url, token_file, data_dir) as client:
        answer = client.post(API_IMAGES, {**wish, "provenance": made, **signed, **because(reason)})
    output.put_done(answer, f"image {digest} is registered", as_json=as_json)


@app.command()
def statement(
    digest: Digest,
    reference: References = None,
    builder: Builder = "",
    source: Source = "",
    sbom: Sbom = "",
    signature: SignaturePlace = "",
) -> None:
    """Write the bytes to be signed: all that is to be on record of an image, asking nobody.

    \b
    Example:
      forgeyard image statement sha256:9f… --ref aws/eu-central-1=ami-0a1b --built-by images/main \\
        --source 3c9e01 --sbom sha256:77… > image.json
      openssl pkeyutl -sign -inkey ed25519.pem -rawin -in image.json -out image.sig
    """
    made = Provenance(builder=builder, source=source, sbom=sbom, signature=signature)
    references = dict(map(label_of, reference or ()))
    record = RunnerImage(digest=digest, references=references, provenance=made)
    # Without a newline: these very bytes are signed.
    typer.echo(record.statement(), nl=False)


def _base64(file: Path) -> str:
    """Read a signature as tools write them: its bytes, or those in base64.

    Raises:
        NotFound: the file cannot be read.
        InvalidRequest: it is empty, or too long for a signature.
    """
    try:
        with file.open("rb") as stream:
            content = stream.read(MOST_SIGNATURE + 1)
    except OSError as error:
        raise NotFound(
            f"{file}: {error.strerror or 'it cannot be read'}", field="--signature-file"
        ) from error
    written = b"".join(content.split())
    if not written or len(content) > MOST_SIGNATURE:
        raise InvalidRequest(
            f"{file} is no signature",
            field="--signature-file",
            allowed=f"1 to {MOST_SIGNATURE} bytes, or these in base64",
        )
    try:
        base64.b64decode(written, validate=True)
    except binascii.Error:
        return base64.b64encode(content).decode()
    return written.decode()


@app.command()
def trust(
    image: ImageName,
    reason: Reason,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Let machines boot an image again.

    \b
    Example:
      forgeyard image trust sha256:9f… --reason "the alarm was false"
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.post(f"{path_of('v1', 'images', image)}:trust", because(reason))
    output.put_done(answer, f"image {image} is trusted", as_json=as_json)


@app.command()
def retire(
    image: ImageName,
    reason: Reason,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Let no fleet begin to use an image; those that do go on.

    \b
    Example:
      forgeyard image retire sha256:9f… --reason "out of support"
    """
    with connect(url, token_file, data_dir) as client:
        answer = client.post(f"{path_of('v1', 'images', image)}:retire", because(reason))
    output.put_done(answer, f"image {image} is retired", as_json=as_json)


@app.command()
def compromise(
    image: ImageName,
    reason: Reason,
    severity: Annotated[
        str,
        typer.Option(
            "--severity",
            help="moderate: machines finish their jobs; critical: work is taken from them.",
        ),
    ] = "critical",
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="AGO", help="Distrust what its runners left since so long: 2d."
        ),
    ] = None,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Strike an image out: nothing boots it, its machines go, their caches are not used again.

    \b
    Examples:
      forgeyard image compromise linux-stable --reason "CVE-2026-1: a backdoor"
      forgeyard image compromise sha256:9f… --severity moderate --since 2d --reason "weak keys"
    """
    ago = 0 if since is None else now_ms() - parse_duration(since, field="--since")
    wish = {"severity": severity, "since": max(0, ago), **because(reason)}
    with connect(url, token_file, data_dir) as client:
        answer = client.post(f"{path_of('v1', 'images', image)}:compromise", wish)
    found = shaped(Struck, answer)
    said = (
        f"image {image} is struck out: {found.machines} machines go, {found.tokens} of them that"
        f" were to come; what {found.runners} runners have left is not used again"
    )
    output.put_done(answer, said, as_json=as_json)


@app.command()
def alias(
    name: Annotated[str, typer.Argument(metavar="ALIAS", help="A name for people.")],
    image: ImageName,
    reason: Reason,
    as_json: Json = False,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDir = None,
) -> None:
    """Let an alias point at an image; fleets keep the digest that they have.

    \b
    Example:
      forgeyard image alias linux-stable sha256:9f… --reason "it has proved itself"
    """
    with connect(url, token_file, data_dir) as client:
        path = path_of("v1", "images", "aliases", name)
        client.put(path, {"image": image, **because(reason)})
    done = {"alias": name, "image": image}
    output.put_done(done, f"{name} is {image} from now on", as_json=as_json)
