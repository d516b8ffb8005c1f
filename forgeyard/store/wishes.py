"""Reading the wishes of jobs from their column, once for all jobs that wish the same."""

from functools import lru_cache

from forgeyard.model.wishes import Wishes
from forgeyard.store.codec import decode


@lru_cache(maxsize=4096)
def read(text: str) -> Wishes:
    """Read wishes.

    Raises:
        Corrupt: the stored text does not have that shape.
    """
    return decode(Wishes, text)
