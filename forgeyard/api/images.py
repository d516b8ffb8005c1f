"""Images that machines boot, for those who make them and those who strike them out."""

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import Field

from forgeyard.api.callers import FleetImageManager, needs
from forgeyard.api.dependencies import Deps
from forgeyard.api.intents import Because
from forgeyard.model.image import (
    DIGEST,
    MOST_SIGNATURE,
    ImageSeverity,
    Provenance,
    RunnerImage,
)
from forgeyard.model.permission import Permission
from forgeyard.store import images
from forgeyard.store.engine import read
from forgeyard.store.images import ImageRecord, Struck

router = APIRouter(prefix="/v1/images", tags=["fleets"])
ImagePath = Annotated[str, Path(max_length=100)]
"""A digest or an alias."""
READS = [needs(Permission.FLEET_READ)]
Digest = Annotated[str, Field(pattern=f"^{DIGEST}$")]
Place = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
Base64 = Annotated[str, Field(max_length=MOST_SIGNATURE, pattern=r"^[A-Za-z0-9+/]*={0,2}$")]
UNSAID = Provenance()


class AddImage(Because):
    """An image, what providers call it, and how it was made."""

    digest: Digest
    references: Annotated[dict[Place, Place], Field(max_length=200, default_factory=dict)]
    """By provider, `provider/region` or `provider/offering`."""
    provenance: Provenance = UNSAID
    signature: Base64 = ""
    """A detached signature over the record, in base64: `forgeyard image statement` writes that."""


class CompromiseImage(Because):
    """How bad it is, and from when on what its runners have left is distrusted."""

    severity: ImageSeverity
    since: Annotated[int, Field(ge=0, lt=2**53)] = 0
    """Epoch milliseconds; 0 is everything."""


class NameImage(Because):
    """The image that an alias points at from now on."""

    image: Annotated[str, Field(max_length=100)]


@router.get("", dependencies=READS)
def list_images(deps: Deps) -> tuple[ImageRecord, ...]:
    """List images, the newest first."""
    with read(deps.engine) as connection:
        return images.list_all(connection)


@router.get("/{image}", dependencies=READS)
def show_image(image: ImagePath, deps: Deps) -> ImageRecord:
    """Show an image, who made it, and how many machines boot it."""
    with read(deps.engine) as connection:
        return images.show(connection, image)


@router.post("", status_code=201)
def add_image(message: AddImage, deps: Deps, who: FleetImageManager) -> ImageRecord:
    """Register an image, or more places where a registered one is found."""
    wanted = RunnerImage(
        digest=message.digest, references=message.references, provenance=message.provenance
    )
    with deps.change_for(who) as connection:
        return images.add(
            connection,
            wanted,
            message.intent,
            signature=message.signature,
            keys=deps.trust.image_keys,
        )


@router.post("/{image}:trust")
def trust_image(
    image: ImagePath, message: Because, deps: Deps, who: FleetImageManager
) -> ImageRecord:
    """Let machines boot an image again."""
    with deps.change_for(who) as connection:
        return images.trust(connection, image, message.intent)


@router.post("/{image}:retire")
def retire_image(
    image: ImagePath, message: Because, deps: Deps, who: FleetImageManager
) -> ImageRecord:
    """Let no fleet begin to use an image; those that do go on."""
    with deps.change_for(who) as connection:
        return images.retire(connection, image, message.intent)


@router.post("/{image}:compromise")
def compromise_image(
    image: ImagePath, message: CompromiseImage, deps: Deps, who: FleetImageManager
) -> Struck:
    """Strike an image out: nothing boots it any more, and the machines that did go."""
    with deps.change_for(who) as connection:
        return images.compromise(
            connection, image, message.severity, message.intent, since=message.since
        )


@router.put("/aliases/{alias}", status_code=204)
def name_image(alias: ImagePath, message: NameImage, deps: Deps, who: FleetImageManager) -> None:
    """Let an alias point at an image; fleets keep the digest that they have."""
    with deps.change_for(who) as connection:
        images.name(connection, alias, message.image, message.intent)
