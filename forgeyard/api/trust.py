"""The authority of this installation, as the API uses it: tokens, certificates, what is trusted."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from forgeyard import clock
from forgeyard.config import Config
from forgeyard.errors import InvalidRequest
from forgeyard.model.enrolment import Cloud, CloudMachine
from forgeyard.store.identities import Sign, Signed
from forgeyard.store.proven_machines import Prove
from forgeyard.trust import aws, certificates, image_signatures
from forgeyard.trust.authority import Authority
from forgeyard.trust.certificates import Certificate
from forgeyard.trust.evidence import Facts, Unproved, Verifier
from forgeyard.trust.identity import serial_of
from forgeyard.trust.invitations import Invitations
from forgeyard.trust.keys import PublicKey

FRESH_S: Final = 5.0


class Trust(Invitations):
    """What an API process does with the folder of the authority; each call blocks briefly."""

    def __init__(self, config: Config) -> None:
        super().__init__(Authority(config.authority_dir()))
        self._lasts = timedelta(seconds=config.api.certificate_s)
        self._clouds: Mapping[Cloud, Verifier] = {Cloud.AWS: aws.load(config.api.aws_certificates)}
        fleets = config.fleets
        self.image_keys = image_signatures.load(
            fleets.image_keys, is_required=fleets.require_signature
        )
        self._issuing: tuple[Certificate, ...] = ()
        self._looked_at: float | None = None

    def signer(self, key: PublicKey) -> Sign:
        """Be ready to sign a certificate for this key, for whatever runner it turns out to be."""

        def sign(runner_id: str) -> Signed:
            made, issuer = self.authority.client(key, runner_id, now=clock.now(), lasts=self._lasts)
            return Signed(
                serial=serial_of(made),
                pem=certificates.written([made, issuer]).decode(),
                ends_at=int(made.not_valid_after_utc.timestamp() * 1000),
            )

        return sign

    def prover(self, evidence: str) -> Prove:
        """Be ready to check what came along with a token."""

        def prove(cloud: Cloud) -> Facts | Unproved:
            return self._clouds[cloud].verify(evidence)

        return prove

    def demand_checkable(self, machine: CloudMachine) -> None:
        """Insist that a machine's second proof could be checked here.

        Raises:
            InvalidRequest: no certificate of its region is configured.
        """
        if not self._clouds[machine.cloud].knows(machine.region):
            raise InvalidRequest(
                "what this machine would prove itself with cannot be checked here",
                field="grant.expects.machine",
                value=machine.region or machine.cloud,
                allowed="a region whose certificate is in api.aws_certificates",
            )

    def issuing(self) -> tuple[Certificate, ...]:
        """Give the authorities that sign runners, looked up anew every few seconds.

        Raises:
            NotFound: there is no authority here.
        """
        at = clock.monotonic()
        if self._looked_at is None or at - self._looked_at > FRESH_S:
            found = self.authority.issuing(now=clock.now())
            self._issuing = tuple(one.certificate for one in found)
            self._looked_at = at
        return self._issuing

    def trusted(self) -> str:
        """Give everything that is trusted, as PEM.

        Raises:
            NotFound: there is no authority here.
        """
        return certificates.written(self.authority.bundle(now=clock.now())).decode()
