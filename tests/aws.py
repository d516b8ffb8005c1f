"""AWS as far as tests need it: a region that signs, a metadata service, and what was recorded."""

import base64
import functools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, pkcs7

from forgeyard import clock
from forgeyard.agent.cloud_identity import DOCUMENT, LIFE_HEADER, TOKEN, TOKEN_HEADER

RECORDED = Path(__file__).parent / "unit" / "trust" / "recorded_aws"
ACCOUNT, REGION, INSTANCE = "123456789012", "eu-test-1", "i-0123456789abcdef0"


@functools.cache
def a_key(number: int = 0, *, bits: int = 2048) -> rsa.RSAPrivateKey:
    """Make the key of a region."""
    return rsa.generate_private_key(65537, bits)


def certificate_of(key: rsa.RSAPrivateKey) -> x509.Certificate:
    """Sign a key's own certificate."""
    name = x509.Name([])
    begun = x509.CertificateBuilder().subject_name(name).issuer_name(name)
    begun = begun.public_key(key.public_key()).serial_number(7)
    dated = begun.not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
    return dated.not_valid_after(datetime(2021, 1, 1, tzinfo=UTC)).sign(key, hashes.SHA256())


def certificate_file(folder: Path, key: rsa.RSAPrivateKey) -> str:
    """Write the certificate of a key, as an operator does."""
    file = folder / "aws.pem"
    file.write_bytes(certificate_of(key).public_bytes(Encoding.PEM))
    return str(file)


def signed(content: bytes, key: rsa.RSAPrivateKey | None = None) -> str:
    """Sign a document as the metadata service does."""
    by = key or a_key()
    made = (
        pkcs7.PKCS7SignatureBuilder()
        .set_data(content)
        .add_signer(certificate_of(by), by, hashes.SHA256())
        .sign(Encoding.DER, [pkcs7.PKCS7Options.Binary, pkcs7.PKCS7Options.NoCerts])
    )
    return base64.encodebytes(made).decode()


def a_document(*, age: timedelta = timedelta(minutes=1), **changed: object) -> bytes:
    """Write the document of a machine."""
    launched = (clock.now() - age).strftime("%Y-%m-%dT%H:%M:%SZ")
    said = {"accountId": ACCOUNT, "region": REGION, "instanceId": INSTANCE}
    return json.dumps({**said, "pendingTime": launched, **changed}).encode()


@dataclass
class Metadata:
    """What a metadata service answers, and what it was asked."""

    evidence: str
    statuses: list[int] = field(default_factory=list)
    """Given first, one after the other, instead of an answer."""
    asked: list[str] = field(default_factory=list)
    url: str = ""


@contextmanager
def metadata_service(evidence: str) -> Iterator[Metadata]:
    """Serve a document to who has fetched a token before; on loopback."""
    made = Metadata(evidence=evidence)

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            is_asked_well = self.path == TOKEN and self.headers.get(LIFE_HEADER, "").isdigit()
            self._answer(200 if is_asked_well else 400, "a token")

        def do_GET(self) -> None:
            if self.headers.get(TOKEN_HEADER) != "a token":
                self._answer(401, "")
            else:
                self._answer(200 if self.path == DOCUMENT else 404, made.evidence)

        def _answer(self, status: int, text: str) -> None:
            made.asked.append(f"{self.command} {self.path}")
            status = made.statuses.pop(0) if made.statuses else status
            self.send_response(status)
            if status == 302:
                self.send_header("Location", made.url + DOCUMENT)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
