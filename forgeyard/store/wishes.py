"""Reading the wishes of jobs from their column, once for all jobs that wish the same."""

from functools import lru_cache

from forgeyard.errors import Corrupt
from forgeyard.model.wishes import Wishes
from forgeyard.scheduler.snapshot import CLASS_OF
from forgeyard.store.codec import decode


@lru_cache(maxsize=4096)
def read(text: str) -> Wishes:
    """Read wishes.

    Raises:
        Corrupt: the stored text does not have that shape.
    """
    return decode(Wishes, text)


def find(text: str) -> Wishes:
    """Read wishes, or none where they cannot be read, for those who only show them."""
    try:
        return read(text)
    except Corrupt:
        return Wishes()


def class_of(wished: Wishes, priority: str) -> str:
    """Tell the class that holds; a damaged priority implies none and is shown as it is."""
    implied = {one.value: kind.value for one, kind in CLASS_OF.items()}
    return wished.scheduling_class or implied.get(priority, priority)
