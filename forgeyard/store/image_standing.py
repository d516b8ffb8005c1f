"""What an image means to those that boot it: whether it may run, and what its provider calls it."""

import sqlalchemy as sa

from forgeyard.model.image import ImageSeverity, ImageStanding, ImageState, RunnerImage
from forgeyard.store import codec, image_tables

_images = image_tables.runner_images


def blocked(connection: sa.Connection) -> frozenset[str]:
    """List the images that nothing may boot."""
    query = sa.select(_images.c.digest).where(_images.c.state == ImageState.COMPROMISED.value)
    return frozenset(connection.execute(query).scalars())


def standing(connection: sa.Connection, digest: str) -> ImageStanding:
    """Tell what an image means for a machine that has it."""
    query = sa.select(_images.c.severity).where(
        _images.c.digest == digest, _images.c.state == ImageState.COMPROMISED.value
    )
    found = connection.execute(query).first() if digest else None
    if found is None:
        return ImageStanding.FINE
    is_critical = found.severity == ImageSeverity.CRITICAL.value
    return ImageStanding.CONDEMNED if is_critical else ImageStanding.BLOCKED


def reference(connection: sa.Connection, digest: str, provider: str, *places: str) -> str:
    """Tell what a provider calls an image at a place; empty if nobody has said."""
    query = sa.select(_images.c.image).where(_images.c.digest == digest)
    found = connection.execute(query).scalar_one_or_none() if digest else None
    return "" if found is None else codec.decode(RunnerImage, found).reference(provider, *places)
