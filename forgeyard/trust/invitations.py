"""Tokens of an installation, made from the key of its authority, and where they open a door."""

from forgeyard.trust import tokens
from forgeyard.trust.authority import Authority
from forgeyard.trust.tokens import Token


class Invitations:
    """Gives the tokens that enrolments have; each call reads the key anew."""

    def __init__(self, authority: Authority) -> None:
        self.authority = authority

    def token(self, enrolment_id: str, binding: str) -> Token:
        """Derive the token of an enrolment.

        Raises:
            NotFound: there is no authority here.
        """
        return tokens.derive(self.authority.token_key(), enrolment_id, binding)

    def mark(self, token: Token) -> str:
        """Say what stands in the store for a token."""
        return tokens.mark(self.authority.token_key(), token)

    def mark_of(self, enrolment_id: str, binding: str) -> str:
        """Say what stands in the store for the token of an enrolment."""
        return self.mark(self.token(enrolment_id, binding))
