"""Where an issuer may lie: an address that an operator or the issuer names is looked at first."""

import ipaddress
from typing import Final
from urllib.parse import urlsplit

from forgeyard.addresses import LOOPBACK
from forgeyard.errors import Forbidden, InvalidRequest

SHUT: Final = tuple(
    ipaddress.ip_network(network)
    for network in (
        *("169.254.0.0/16", "fe80::/10"),  # link-local, and nearly everybody's metadata
        *("fd00:ec2::/32", "fd20:ce::/32", "100.100.100.200/32"),  # AWS, GCP, Alibaba
        *("0.0.0.0/32", "::/128"),
    )
)
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")


def checked_issuer(url: str) -> str:
    """Accept https, and http only on this host.

    Raises:
        InvalidRequest: it is something else.
    """
    try:
        parsed = urlsplit(url)
        host, port = parsed.hostname or "", parsed.port
    except ValueError:
        parsed, host, port = urlsplit(""), "", None
    is_safe = parsed.scheme == "https" or (parsed.scheme == "http" and host in LOOPBACK)
    # Parameters belong to some endpoints; a user and a fragment to none.
    if not is_safe or not host or port == 0 or "@" in parsed.netloc or parsed.fragment:
        raise InvalidRequest(
            "this is no address of an issuer", field="issuer", value=url, allowed="https://HOST"
        )
    return url


def demand_open(address: str) -> None:
    """Insist that an address is none of those that are reached from inside a cloud only.

    Raises:
        Forbidden: it is, in whatever form.
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    forms = [found]
    if isinstance(found, ipaddress.IPv6Address):
        inner = (found.ipv4_mapped, found.sixtofour)
        forms += [one for one in inner if one is not None]
        if found in _NAT64:
            forms.append(ipaddress.IPv4Address(int(found) & 0xFFFF_FFFF))
    if any(one in network for one in forms for network in SHUT if one.version == network.version):
        raise Forbidden(
            "an issuer does not lie at a link-local or metadata address",
            field="issuer",
            value=address,
        )
