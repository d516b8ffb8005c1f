"""Requests for certificates: an agent writes them, the server takes a public key from them.

Subject, names and extensions of a request are never looked at.
"""

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from forgeyard.errors import InvalidRequest
from forgeyard.trust.keys import PrivateKey, PublicKey

_MOST = 10 * 1024


def write_request(key: PrivateKey) -> str:
    """Ask for a certificate for a key, as PEM."""
    begun = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return begun.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def key_in(request: str) -> PublicKey:
    """Take the public key out of a request whose sender holds the private one.

    Raises:
        InvalidRequest: it is too long or no request, its key is not of the curve P-256, or whoever
            signed it has another one.
    """
    if len(request) > _MOST:
        raise _refused("is too long", f"{_MOST} characters at most")
    try:
        read = x509.load_pem_x509_csr(request.encode())
        key = read.public_key()
        signed = read.is_signature_valid
    except (ValueError, TypeError, InvalidSignature) as error:
        raise _refused("cannot be read", "PKCS#10 in PEM") from error
    except UnsupportedAlgorithm as error:
        raise _refused("has a key that is not supported", "a key on the curve P-256") from error
    if not (isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)):
        raise _refused("has a key of another kind", "a key on the curve P-256")
    if not signed:
        raise _refused("is not signed by the key in it", "a request signed by its own key")
    return key


def _refused(what: str, allowed: str) -> InvalidRequest:
    return InvalidRequest(f"the certificate request {what}", field="request", allowed=allowed)
