"""Matrices against a reference that builds every cell by hand, in the words of the manual."""

from collections import Counter
from collections.abc import Mapping, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from forgeyard.errors import InvalidRunFile
from forgeyard.runfile.compile import compile_run

Cell = dict[str, str]
NAMES = ("os", "python", "db")
VALUES = ("1", "2", "3")
EXTRAS = ("extra", "flag")


@st.composite
def matrices(draw: st.DrawFn) -> dict[str, object]:
    """Draw a matrix whose entries mostly name values that the axes have."""
    count = draw(st.sampled_from((0, 1, 1, 2, 2, 2, 3)))
    axes = {
        name: draw(st.lists(st.sampled_from(VALUES), min_size=1, max_size=3, unique=True))
        for name in NAMES[:count]
    }
    value = st.sampled_from(VALUES)

    def entries(names: Sequence[str], most: int) -> list[Cell]:
        keys = st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)
        return [{key: draw(value) for key in draw(keys)} for _ in range(draw(st.integers(0, most)))]

    found: dict[str, object] = dict(axes)
    if axes:
        found["exclude"] = entries(tuple(axes), 2)
    found["include"] = entries((*NAMES, *EXTRAS), 3)
    return found


def reference(matrix: Mapping[str, object], met: Counter[str]) -> list[Cell] | None:
    """List the cells, or None if the matrix has to be refused."""
    axes = {name: values for name, values in matrix.items() if name in NAMES}
    cells: list[Cell] = [{}] if axes else []
    for name, values in axes.items():
        cells = [{**cell, name: value} for cell in cells for value in values]
    whole = list(cells)
    for entry in matrix.get("exclude", []):
        hit = [cell for cell in whole if all(cell[name] == entry[name] for name in entry)]
        if not hit:
            met["excludes nothing"] += 1
            return None
        cells = [cell for cell in cells if cell not in hit]
        met["excluded"] += 1
    originals = [dict(cell) for cell in cells]
    for entry in matrix.get("include", []):
        places = []
        for place, original in enumerate(originals):
            overwritten = [
                name for name in entry if name in original and original[name] != entry[name]
            ]
            if not overwritten:
                places.append(place)
        for place in places:
            cells[place].update(entry)
        met["merged" if places else "added"] += 1
        if not places:
            cells.append(dict(entry))
    if not cells or any(cells.count(cell) > 1 for cell in cells):
        met["no cells" if not cells else "twice"] += 1
        return None
    return cells


def expanded(matrix: Mapping[str, object], known: Sequence[str]) -> list[tuple[Cell, str]] | None:
    """Compile a job with this matrix that prints all its values; None if it is refused."""
    script = " ".join(f"{name}=${{{{ matrix.{name} }}}}" for name in known)
    job = {"strategy": {"matrix": matrix}, "steps": [{"run": f"echo {script}"}]}
    try:
        run = compile_run({"jobs": {"test": job}}, fallback_name="run")
    except InvalidRunFile:
        return None
    names = [job.name for job in run.jobs]
    assert len(set(names)) == len(names)
    assert all(name.startswith("test-") and len(name) <= 64 for name in names)
    return [(dict(job.matrix.values), job.steps[0].run) for job in run.jobs if job.matrix]


def test_a_matrix_has_exactly_the_cells_of_the_reference() -> None:
    met: Counter[str] = Counter()

    @settings(max_examples=400, deadline=None, derandomize=True, database=None)
    @given(matrices())
    def holds(matrix: dict[str, object]) -> None:
        cells = reference(matrix, met)
        known = sorted({name for cell in cells or [] for name in cell})
        found = expanded(matrix, known)
        if cells is None:
            assert found is None
            return
        assert found is not None
        assert [values for values, _ in found] == cells
        for values, script in found:
            wanted = " ".join(f"{name}={values.get(name, '')}" for name in known)
            assert script == f"echo {wanted}"
        met["cells"] += len(cells)

    holds()
    for what, least in (
        *(("excluded", 50), ("excludes nothing", 20), ("merged", 50), ("added", 50)),
        *(("no cells", 5), ("twice", 3), ("cells", 800)),
    ):
        assert met[what] >= least, met
