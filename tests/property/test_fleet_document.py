"""Whatever stands in a fleet file, it becomes fleets or one of our own errors with its place."""

import string
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forgeyard.cli.fleet_file import load_fleets
from forgeyard.errors import ForgeyardError, InvalidFile
from forgeyard.model import fleet_document
from forgeyard.model.fleet import FleetSpec, LifetimeKind, Market

EXAMPLE = Path(__file__).parents[2] / "examples" / "fleet.yaml"
KEYS = st.sampled_from(
    [
        *("fleets", "name", "provider", "capacity", "offerings", "scaling", "placement", "scope"),
        *("lifetime", "guardrail", "deadlines", "pool", "protected", "resources", "cpu", "memory"),
        *("min", "max", "warm", "up", "down", "idle_grace", "hourly", "kind", "cost", "labels"),
        *("equipment", "gpus", "devices", "toolchains", "provenance", "regions", "settings"),
    ]
)
WORDS = st.sampled_from(
    ["4", "8Gi", "5m", "0.12", "1e999999", "nan", "-1", "", "vm", "a", "\ud800"]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | WORDS
    | st.text(string.printable, max_size=8)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=25,
)


@settings(deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=6))
@pytest.mark.requirement("TST-034")
def test_any_document_becomes_fleets_or_one_of_our_errors(
    document: dict[str, object],
) -> None:
    with suppress(InvalidFile):
        found = fleet_document.read_all(document)
        assert all(isinstance(one, FleetSpec) for one in found)


@settings(deadline=None)
@given(st.text(string.printable, max_size=200))
def test_any_text_is_read_or_refused_with_one_of_our_errors(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    file = tmp_path_factory.getbasetemp() / "fuzzed.yaml"
    file.write_text(text)
    with suppress(ForgeyardError):
        load_fleets(file)


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_a_damaged_example_is_read_or_refused_with_its_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    text = EXAMPLE.read_text()
    at = data.draw(st.integers(0, len(text) - 1))
    with_what = data.draw(st.text(string.printable, max_size=3))
    file = tmp_path_factory.getbasetemp() / "damaged.yaml"
    file.write_text(text[:at] + with_what + text[at + data.draw(st.integers(0, 4)) :])
    with suppress(InvalidFile):
        assert load_fleets(file)


@pytest.mark.requirement("FLM-005", "FLM-008", "FOP-008")
def test_the_example_says_what_it_means() -> None:
    builders, spot = (one.spec for one in load_fleets(EXAMPLE))
    assert builders.capacity.resources.cpu == 4_000
    assert builders.capacity.resources.memory == 8 * 2**30
    assert builders.scaling.down.idle_grace == 300_000
    assert (builders.lifetime.kind, builders.lifetime.age) == (LifetimeKind.MAX_AGE, 7 * 86_400_000)
    warmup = builders.warmup
    assert (warmup.caches, warmup.within, warmup.at_most) == (("pip",), 120_000, 2**30)
    cheap, stable = spot.offerings
    assert (cheap.cost, cheap.market) == (100_000, Market.PREEMPTIBLE)
    assert (stable.cost, stable.market) == (340_000, Market.STABLE)
    assert spot.guardrail.hourly == 5_000_000


SMALL = "{resources: {cpu: 1, memory: 1Gi, slots: 1}}"
TOOL = "[{name: git, provenance: verified}]"


@pytest.mark.parametrize(
    ("lines", "field", "line"),
    [
        (("name: a", "scalin: 1"), "scalin", 2),
        (("name: a", "scaling:", "  down: {idle_grace: 300}"), "scaling.down.idle_grace", 3),
        (("fleets:", " - name: a", " - trust: no"), "fleets.1.trust", 3),
        (("name: a", "offerings:", " - {name: x, cost: 0.0000001}"), "offerings.0.cost", 3),
        (("name: a", "warmup:", "  at_most: lots"), "warmup.at_most", 3),
        (("name: a", "scaling: {min: 2, max: 1}", f"capacity: {SMALL}"), "scaling.min", 2),
        (("name: a", "capacity:", f"  toolchains: {TOOL}"), "capacity.toolchains.0.provenance", 3),
        (("fleets: [{name: a}]", "name: b"), "name", 2),
    ],
)
def test_a_complaint_stands_at_its_line(
    tmp_path: Path, lines: tuple[str, ...], field: str, line: int
) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("\n".join(lines))
    with pytest.raises(InvalidFile) as caught:
        load_fleets(file)
    assert (caught.value.field, caught.value.line) == (field, line)
    assert caught.value.allowed
