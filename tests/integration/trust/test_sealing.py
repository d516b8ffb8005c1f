"""Keys that seal payloads: files, names, rotation, and what was tampered with."""

import base64
import stat
from pathlib import Path

import pytest

from forgeyard.errors import Forbidden, InvalidFile, NotFound, TooLarge, UnreadablePayload
from forgeyard.trust import sealing
from forgeyard.trust.sealing import KeyFile, Sealed, add_key, read_keys

pytestmark = pytest.mark.integration


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Name a file of keys that is not there yet."""
    return tmp_path / "etc" / "codec.keys"


def test_a_new_file_is_the_owners_alone(file: Path) -> None:
    made = add_key(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_keys(file).ids() == (made,)


def test_the_newest_key_seals_and_all_open(file: Path) -> None:
    first = add_key(file)
    before = read_keys(file).seal(b"before")
    second = add_key(file)
    both = read_keys(file)
    after = both.seal(b"after")
    assert both.ids() == (first, second)
    assert (before.key_id, after.key_id) == (first, second)
    assert (both.open(before), both.open(after)) == (b"before", b"after")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_same_content_is_never_sealed_the_same_way(file: Path) -> None:
    add_key(file)
    keyring = read_keys(file)
    assert len({keyring.seal(b"same").content for _ in range(100)}) == 100


def test_what_was_changed_is_not_opened(file: Path) -> None:
    first, second = add_key(file), add_key(file)
    keyring = read_keys(file)
    sealed = keyring.seal(b"content")
    for place in range(len(sealed.content)):
        changed = bytearray(sealed.content)
        changed[place] ^= 1
        with pytest.raises(UnreadablePayload):
            keyring.open(Sealed(key_id=second, content=bytes(changed)))
    for forged in (b"", b"short", sealed.content[:-1]):
        with pytest.raises(UnreadablePayload):
            keyring.open(Sealed(key_id=second, content=forged))
    with pytest.raises(UnreadablePayload):
        keyring.open(Sealed(key_id=first, content=sealed.content))


def test_an_unknown_key_is_named(file: Path) -> None:
    known = add_key(file)
    with pytest.raises(UnreadablePayload, match="0000000000000000") as refused:
        KeyFile(file).open(Sealed(key_id="0" * 16, content=b"x" * 40))
    assert refused.value.value == "0" * 16
    assert refused.value.allowed == known


def test_a_key_that_was_added_meanwhile_is_taken_up(file: Path) -> None:
    add_key(file)
    old = KeyFile(file)
    second = add_key(file)
    sealed = KeyFile(file).keyring.seal(b"by another process")
    assert old.open(sealed) == b"by another process"
    assert old.keyring.seal(b"").key_id == second


def test_a_file_that_is_broken_meanwhile_costs_no_key(file: Path) -> None:
    add_key(file)
    held = KeyFile(file)
    sealed = held.keyring.seal(b"content")
    file.write_text("half a fi")
    with pytest.raises(UnreadablePayload):
        held.open(Sealed(key_id="0" * 16, content=b"x" * 40))
    assert held.open(sealed) == b"content"


def test_a_file_that_others_may_read_is_refused(file: Path) -> None:
    add_key(file)
    file.chmod(0o640)
    with pytest.raises(Forbidden, match="others may read"):
        KeyFile(file)
    with pytest.raises(Forbidden):
        add_key(file)


def test_a_missing_file_and_a_folder_are_refused(file: Path) -> None:
    with pytest.raises(NotFound, match=r"codec\.keys"):
        KeyFile(file)
    file.mkdir(parents=True)
    with pytest.raises(Forbidden, match="cannot read"):
        KeyFile(file)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"# no key\n\n",
        b"not base64!\n",
        base64.b64encode(b"k" * 31),
        base64.b64encode(b"k" * 33),
        b"\xff\xfe",
    ],
)
def test_what_is_no_file_of_keys_is_refused_and_never_told(file: Path, content: bytes) -> None:
    file.parent.mkdir()
    file.write_bytes(content)
    file.chmod(0o600)
    with pytest.raises(InvalidFile) as refused:
        read_keys(file)
    assert base64.b64encode(b"k" * 31).decode() not in str(refused.value.__dict__)


def test_a_file_holds_a_bounded_number_of_keys(file: Path) -> None:
    file.parent.mkdir()
    lines = [base64.b64encode(bytes([each]) * 32) for each in range(sealing.MOST_KEYS)]
    file.write_bytes(b"\n".join(lines))
    file.chmod(0o600)
    with pytest.raises(InvalidFile, match="take the oldest out"):
        add_key(file)
    file.write_bytes(b"#" * (64 * 1024 + 1))
    with pytest.raises(TooLarge):
        read_keys(file)


def test_a_note_beside_a_key_is_passed_over(file: Path) -> None:
    made = add_key(file)
    file.write_bytes(b"# made for the trial\n" + file.read_bytes())
    assert read_keys(file).ids() == (made,)


def test_a_keyring_prints_no_key(file: Path) -> None:
    add_key(file)
    keyring = read_keys(file)
    (key,) = keyring.keys.values()
    assert repr(key)[2:-1] not in repr(keyring)
