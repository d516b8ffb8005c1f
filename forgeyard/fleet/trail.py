"""What bounds did to a number, one after the other: each is named that changed it."""

from forgeyard.fleet.view import Clamp, ClampKind


class Trail:
    """A number on its way through bounds."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.clamps: list[Clamp] = []

    def at_most(self, kind: ClampKind, bound: int, text: str) -> None:
        """Lower the number to a bound, if it is above."""
        self._to(kind, min(self.number, max(0, bound)), text)

    def at_least(self, kind: ClampKind, bound: int, text: str) -> None:
        """Raise the number to a bound, if it is below."""
        self._to(kind, max(self.number, bound), text)

    def plus(self, kind: ClampKind, more: int, text: str) -> None:
        """Add to the number."""
        self._to(kind, self.number + more, text)

    def _to(self, kind: ClampKind, after: int, text: str) -> None:
        if after != self.number:
            self.clamps.append(Clamp(kind=kind, before=self.number, after=after, text=text))
            self.number = after
