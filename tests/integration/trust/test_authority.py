"""The internal authority in a real folder, and what real TLS makes of its certificates."""

import ssl
import stat
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from forgeyard import clock
from forgeyard.cli.main import main
from forgeyard.config import load
from forgeyard.errors import Conflict, Corrupt, Forbidden, InvalidRequest, NotFound
from forgeyard.trust import certificates, keys
from forgeyard.trust.authority import Authority
from forgeyard.trust.keys import new_key

pytestmark = pytest.mark.integration
HOUR = timedelta(hours=1)
NOW = clock.now()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Make an authority."""
    made = Authority(tmp_path / "ca")
    made.create("ci.example.org", now=NOW)
    return made


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str = "localhost") -> None:
    """Shake hands through memory; raise what either side finds wrong."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(to_client, to_server, server_hostname=host)
    far = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = {near, far}
    for _ in range(10):
        for side in (near, far):
            try:
                side.do_handshake()
                waiting.discard(side)
            except ssl.SSLWantReadError:
                pass
        if not waiting:
            # With TLS 1.3 a client learns by its first read that it was refused.
            far.write(b"welcome")
            assert near.read() == b"welcome"
            return
    raise AssertionError("no end to the handshake")


def serving(authority: Authority, *hosts: str) -> ssl.SSLContext:
    """Serve as the agent API would: nobody enters without a certificate of ours."""
    chain, key = authority.server(hosts or ("localhost",), now=NOW)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, key)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=trusted(authority))
    return context


def trusted(authority: Authority) -> str:
    """Write what is trusted."""
    return certificates.written([authority.root()]).decode()


def runner(
    authority: Authority, folder: Path, *, trusts: Authority | None = None, lasts: timedelta = HOUR
) -> ssl.SSLContext:
    """Connect as a runner that has a certificate."""
    key = new_key()
    mine, issuer = authority.client(key.public_key(), "rnr_1", now=NOW, lasts=lasts)
    keys.save_key(folder / "mine.key", key)
    (folder / "mine.crt").write_bytes(certificates.written([mine, issuer]))
    context = ssl.create_default_context(cadata=trusted(trusts or authority))
    context.load_cert_chain(folder / "mine.crt", folder / "mine.key")
    return context


def test_runner_and_server_know_each_other_through_the_root_alone(
    authority: Authority, tmp_path: Path
) -> None:
    handshake(serving(authority), runner(authority, tmp_path))


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "ci.example.org", "::1"])
def test_a_server_is_reached_by_each_of_its_names(
    authority: Authority, tmp_path: Path, host: str
) -> None:
    server = serving(authority, "localhost", "127.0.0.1", "ci.example.org", "::1")
    handshake(server, runner(authority, tmp_path), host)


def test_a_server_of_another_name_is_refused(authority: Authority, tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match=r"other\.example\.org"):
        handshake(serving(authority), runner(authority, tmp_path), "other.example.org")


def nobody(authority: Authority, _folder: Path) -> ssl.SSLContext:
    """Connect without a certificate."""
    return ssl.create_default_context(cadata=trusted(authority))


def stranger(authority: Authority, folder: Path) -> ssl.SSLContext:
    """Connect with a certificate of another authority."""
    other = Authority(folder / "other")
    other.create("ci.example.org", now=NOW)
    return runner(other, folder, trusts=authority)


def late(authority: Authority, folder: Path) -> ssl.SSLContext:
    """Connect with a certificate that has ended."""
    return runner(authority, folder, lasts=-timedelta(minutes=1))


def impostor(authority: Authority, folder: Path) -> ssl.SSLContext:
    """Connect with the certificate of a server."""
    chain, key = authority.server(["localhost"], now=NOW)
    context = ssl.create_default_context(cadata=trusted(authority))
    context.load_cert_chain(chain, key)
    return context


@pytest.mark.parametrize("who", [nobody, stranger, late, impostor])
def test_whoever_has_no_good_runner_certificate_is_refused(
    authority: Authority, tmp_path: Path, who: Callable[[Authority, Path], ssl.SSLContext]
) -> None:
    with pytest.raises(ssl.SSLError):
        handshake(serving(authority), who(authority, tmp_path))


def test_after_a_rotation_runners_of_the_old_issuer_still_enter(
    authority: Authority, tmp_path: Path
) -> None:
    before = runner(authority, tmp_path)
    made = authority.rotate(None, now=NOW)
    assert made.number == 2
    handshake(serving(authority), before)
    assert [one.number for one in authority.issuing(now=NOW)] == [2, 1]
    assert len(authority.bundle(now=NOW)) == 3


def test_a_rotation_with_the_roots_key_from_elsewhere(authority: Authority, tmp_path: Path) -> None:
    away = authority.root_key_file.rename(tmp_path / "root.key")
    with pytest.raises(NotFound, match=r"root\.key"):
        authority.rotate(None, now=NOW)
    assert authority.rotate(away, now=NOW).number == 2


def test_only_the_roots_own_key_rotates(authority: Authority) -> None:
    wrong = authority.issuing(now=NOW)[0].key_file
    with pytest.raises(InvalidRequest) as raised:
        authority.rotate(wrong, now=NOW)
    assert raised.value.field == "root_key"
    assert len(authority.issuing(now=NOW)) == 1


def test_an_ended_issuer_neither_signs_nor_is_trusted(authority: Authority) -> None:
    later = NOW + timedelta(days=366)
    assert authority.issuing(now=later) == ()
    with pytest.raises(NotFound, match="rotate"):
        authority.signer(now=later)
    authority.rotate(None, now=later)
    assert [one.number for one in authority.issuing(now=later)] == [2]


def test_no_certificate_outlives_its_issuer(authority: Authority) -> None:
    mine, issuer = authority.client(
        new_key().public_key(), "rnr_1", now=NOW, lasts=timedelta(days=9_999)
    )
    assert mine.not_valid_after_utc == issuer.not_valid_after_utc


def test_an_issuer_cannot_make_further_authorities(authority: Authority) -> None:
    constraints = authority.signer(now=NOW).certificate.extensions.get_extension_for_class(
        x509.BasicConstraints
    )
    assert constraints.critical
    assert (constraints.value.ca, constraints.value.path_length) == (True, 0)


def test_a_runners_certificate_says_who_it_is_and_is_for_nothing_else(
    authority: Authority,
) -> None:
    mine, _ = authority.client(new_key().public_key(), "rnr_1", now=NOW, lasts=HOUR)
    found = mine.extensions
    names = found.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [x509.UniformResourceIdentifier("spiffe://ci.example.org/runner/rnr_1")]
    uses = found.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(uses) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not found.get_extension_for_class(x509.BasicConstraints).value.ca


def test_keys_are_for_their_owner_alone_and_never_overwritten(authority: Authority) -> None:
    authority.server(["localhost"], now=NOW)
    secret = list(authority.folder.rglob("*.key"))
    assert len(secret) == 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in secret} == {0o600}
    before = authority.root_key_file.read_bytes()
    with pytest.raises(Conflict):
        keys.save_key(authority.root_key_file, new_key())
    with pytest.raises(Conflict, match="there is an authority"):
        authority.create("ci.example.org", now=NOW)
    assert authority.root_key_file.read_bytes() == before
    assert not list(authority.folder.rglob(".*.part"))


def test_a_key_that_others_may_read_is_not_used(authority: Authority) -> None:
    authority.root_key_file.chmod(0o640)
    with pytest.raises(Forbidden) as raised:
        authority.rotate(None, now=NOW)
    assert (raised.value.field, raised.value.value) == ("mode", "0640")


def test_damaged_files_are_called_damaged(authority: Authority) -> None:
    authority.root_key_file.write_bytes(b"no key")
    with pytest.raises(Corrupt, match="no private key"):
        authority.rotate(None, now=NOW)
    (authority.folder / "root.crt").write_bytes(b"no certificate")
    with pytest.raises(Corrupt, match="no certificate"):
        authority.root()


@pytest.mark.parametrize("domain", ["", "Example.org", "a b", "-a", "x" * 51, "a..b", "a/b"])
def test_a_trust_domain_is_written_like_a_host_name(tmp_path: Path, domain: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        Authority(tmp_path / "ca").create(domain, now=NOW)
    assert raised.value.field == "domain"
    assert not (tmp_path / "ca").exists()


@pytest.mark.parametrize("host", ["", "a b", "x" * 64, "a/b", "*.", "ü.example.org"])
def test_a_server_has_names_and_addresses_only(authority: Authority, host: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        authority.server([host], now=NOW)
    assert raised.value.field == "hosts"
    assert not (authority.folder / "server.key").exists()


def test_the_command_works_where_the_api_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder that is configured is the one of both."""
    monkeypatch.setenv("FORGEYARD_API__AUTHORITY", str(tmp_path / "elsewhere"))
    with pytest.raises(SystemExit) as ended:
        main(["ca", "init", "--data-dir", str(tmp_path / "data")])
    assert ended.value.code == 0
    config = load(data_dir=tmp_path / "data")
    assert Authority(config.authority_dir()).root()
    assert not (tmp_path / "data" / "ca").exists()
