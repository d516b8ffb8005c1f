"""Build docs/coverage.md: which requirement is tested, by what, and who owes the rest.

Run `python -m tests.coverage_table` to write the page, with `--check` to fail when it is stale.
The ids and their owners are data (`tests/requirements.toml`); what is tested is read from the
`requirement` marks in the test sources, without importing or running them.

A mark counts when its test asserts: it holds an `assert` on something else than a constant, or
calls `pytest.raises`, `pytest.warns` or `pytest.fail`, or calls a helper that asserts and whose
name says so by how it begins (JUDGES). Such a helper is a function of the same file or imported
from `tests`, or a method; of several methods with one name, all must assert. What `make test`
leaves to `make chaos` (LATER) shows nothing here.
"""

import ast
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).resolve().parents[1]
CATALOGUE = ROOT / "tests" / "requirements.toml"
PAGE = ROOT / "docs" / "coverage.md"
ASSERTING_CALLS = frozenset({"pytest.raises", "pytest.warns", "pytest.fail"})
JUDGES = ("assert", "demand", "eventually", "until")
NEVER_PROVES = frozenset({"pytest.mark.skip", "pytest.mark.xfail"})
LATER = "pytest.mark.soak"

Key = tuple[str, str]  # module and name; a method, whose class is not known, has no module
Imports = dict[str, Key]
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One id of the specification and what is said of it while no test proves it."""

    id: str
    group: str
    status: str
    owed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One test that claims to prove one id."""

    id: str
    test: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What the test sources claim, and what is wrong with those claims."""

    found: tuple[Mark, ...]
    faults: tuple[str, ...]


def main(arguments: Sequence[str]) -> int:
    """Write the page, or compare it with `--check`; the exit code is 1 on any fault."""
    requirements = read_catalogue(CATALOGUE.read_text(encoding="utf-8"))
    marks = read_marks(ROOT)
    faults = [*marks.faults, *contradictions(requirements, marks.found)]
    text = page(requirements, marks.found)
    if not faults and "--check" not in arguments:
        PAGE.write_text(text, encoding="utf-8")
    elif not faults and (not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text):
        faults.append("docs/coverage.md is stale: run python -m tests.coverage_table")
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def read_catalogue(text: str) -> tuple[Requirement, ...]:
    """Read every id with its group and its status; an id described twice is an error."""
    document = tomllib.loads(text)
    reasons = document["reasons"]
    return tuple(
        requirement for group in document["group"] for requirement in _of_group(group, reasons)
    )


def _of_group(group: Mapping[str, object], reasons: Mapping[str, str]) -> Iterator[Requirement]:
    prefix, count = group["prefix"], int(str(group["count"]))
    status = dict.fromkeys(range(1, count + 1), f"open({_owner(group['owner'])})")
    seen: set[int] = set()
    exceptions = group.get("except", [])
    assert isinstance(exceptions, list)
    for part in exceptions:
        numbers = set(_numbers(part["ids"]))
        if twice := (numbers & seen) | (numbers - status.keys()):
            raise ValueError(f"{prefix}: {sorted(twice)} described twice or out of range")
        seen |= numbers
        said = f"n/a ({reasons[part['na']]})" if "na" in part else f"open({_owner(part['issue'])})"
        status.update(dict.fromkeys(numbers, said))
    for number, said in status.items():
        yield Requirement(
            id=f"{prefix}-{number:03}",
            group=f"{prefix}: {group['title']}",
            status=said,
            owed=said.startswith("open"),
        )


def _owner(owner: object) -> str:
    return f"issue {owner}" if isinstance(owner, int) else str(owner)


def _numbers(ranges: str) -> Iterator[int]:
    for one in ranges.split():
        first, _, last = one.partition("-")
        yield from range(int(first), int(last or first) + 1)


def read_marks(root: Path) -> Marks:
    """Collect the marks of every test file below `root/tests`."""
    files = {
        _module(root, path): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted((root / "tests").rglob("*.py"))
    }
    asserting = _asserting(files)
    found: list[Mark] = []
    faults: list[str] = []
    for module, tree in files.items():
        if module.rpartition(".")[2].startswith("test_"):
            _read_file(tree, module, asserting, found, faults)
    return Marks(found=tuple(found), faults=tuple(faults))


def _read_file(
    tree: ast.Module,
    module: str,
    asserting: set[Key],
    found: list[Mark],
    faults: list[str],
) -> None:
    where = module.replace(".", "/") + ".py"
    placed: set[int] = set()
    for name, function, sources in _tests(tree):
        calls = [call for source in sources for call in _mark_calls(source)]
        placed.update(id(call) for call in calls)
        test = f"{where}::{name}"
        if calls and (fault := _unproven(function, module, _imports(tree), asserting)):
            faults.append(f"{test} is marked but {fault}")
        for call in () if _is_left_for_later(sources) else calls:
            ids = [one.value for one in call.args if isinstance(one, ast.Constant)]
            if call.keywords or not ids or len(ids) != len(call.args):
                faults.append(f"{test}: a requirement mark takes literal ids")
            found.extend(Mark(id=str(one), test=test) for one in ids)
    faults.extend(
        f"{where}:{call.lineno}: a requirement mark that belongs to no test"
        for call in _mark_calls(tree)
        if id(call) not in placed
    )


def _tests(tree: ast.Module) -> Iterator[tuple[str, Function, list[ast.expr]]]:
    """Yield each test with every expression its marks may stand in."""
    constants = {name: value for name, value in _assignments(tree.body)}
    shared: list[ast.expr] = [constants["pytestmark"]] if "pytestmark" in constants else []
    for node in tree.body:
        if _is_test(node):
            yield node.name, node, shared + _decorating(node, constants)
        if isinstance(node, ast.ClassDef):
            own = [value for name, value in _assignments(node.body) if name == "pytestmark"]
            above = shared + own + _decorating(node, constants)
            for method in filter(_is_test, node.body):
                yield f"{node.name}::{method.name}", method, above + _decorating(method, constants)


def _is_test(node: ast.AST) -> TypeGuard[Function]:
    return isinstance(node, Function) and node.name.startswith("test_")


def _assignments(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    for node in body:
        if isinstance(node, ast.Assign):
            yield from ((one.id, node.value) for one in node.targets if isinstance(one, ast.Name))
        if isinstance(node, ast.AnnAssign) and node.value and isinstance(node.target, ast.Name):
            yield node.target.id, node.value


def _decorating(node: Function | ast.ClassDef, constants: Mapping[str, ast.expr]) -> list[ast.expr]:
    """The decorators, and the module's constants they name, such as a list of cases."""
    decorators: list[ast.expr] = [*node.decorator_list]
    named = {one.id for part in decorators for one in ast.walk(part) if isinstance(one, ast.Name)}
    return decorators + [constants[name] for name in sorted(named & constants.keys())]


def _mark_calls(source: ast.AST) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(source)
        if isinstance(node, ast.Call) and _dotted(node.func) == "pytest.mark.requirement"
    ]


def _is_left_for_later(sources: Iterable[ast.expr]) -> bool:
    parts = (part for source in sources for part in ast.walk(source))
    return any(isinstance(part, ast.Attribute) and _dotted(part) == LATER for part in parts)


def _unproven(function: Function, module: str, imported: Imports, asserting: set[Key]) -> str:
    """Say why a mark on this test proves nothing; empty when it does."""
    for decorator in function.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if _dotted(called) in NEVER_PROVES:
            return "never has to pass"
    proven = _asserts(function) or _judges(function, module, imported) & asserting
    return "" if proven else "asserts nothing"


def _asserting(files: Mapping[str, ast.Module]) -> set[Key]:
    """Find every helper that asserts by itself or through another helper."""
    definitions: dict[Key, list[tuple[bool, set[Key]]]] = {}
    for module, tree in files.items():
        imported = _imports(tree)
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        methods = {id(node) for one in classes for node in one.body}
        for function in (node for node in ast.walk(tree) if isinstance(node, Function)):
            key = ("" if id(function) in methods else module, function.name)
            facts = (_asserts(function), _judges(function, module, imported))
            definitions.setdefault(key, []).append(facts)
    found: set[Key] = set()
    while more := {
        key
        for key, several in definitions.items()
        if key not in found and all(itself or calls & found for itself, calls in several)
    }:
        found |= more
    return found


def _judges(function: Function, module: str, imported: Imports) -> set[Key]:
    """Name the helpers this function calls whose names promise a judgement."""
    calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
    plain = {node.id for node in calls if isinstance(node, ast.Name)}
    methods = {node.attr for node in calls if isinstance(node, ast.Attribute)}
    return {
        *(imported.get(name, (module, name)) for name in plain if name.startswith(JUDGES)),
        *(("", name) for name in methods if name.startswith(JUDGES)),
    }


def _asserts(function: Function) -> bool:
    return any(
        (isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant))
        or (isinstance(node, ast.Call) and _dotted(node.func) in ASSERTING_CALLS)
        for node in ast.walk(function)
    )


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _imports(tree: ast.Module) -> Imports:
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tests")
        for alias in node.names
    }


def _module(root: Path, path: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts)


def contradictions(requirements: Iterable[Requirement], marks: Iterable[Mark]) -> list[str]:
    """Name the marks with an unknown id, and those that prove a line said to need no proof."""
    known = {one.id: one for one in requirements}
    unknown = [f"{one.test}: unknown id {one.id}" for one in marks if one.id not in known]
    needless = [
        f"{one.test}: {one.id} is {known[one.id].status}"
        for one in marks
        if one.id in known and not known[one.id].owed
    ]
    return unknown + needless


def page(requirements: Sequence[Requirement], marks: Iterable[Mark]) -> str:
    """Render the page; the same sources always give the same bytes."""
    tests: dict[str, set[str]] = {}
    for mark in marks:
        tests.setdefault(mark.id, set()).add(mark.test)
    groups: dict[str, list[Requirement]] = {}
    for requirement in requirements:
        groups.setdefault(requirement.group, []).append(requirement)
    lines = [
        "# Coverage of the specification",
        "",
        "Written by `python -m tests.coverage_table`; do not edit. A line is *tested* when a test",
        "with an assertion carries its id, *open* when an issue owes it, *n/a* with a reason.",
        "",
        f"**All {len(requirements)}**: {_counts(requirements, tests)}",
    ]
    for group, members in groups.items():
        lines += ["", f"## {group}", "", _counts(members, tests), "", "| id | state |", "|---|---|"]
        lines += [f"| {one.id} | {_state(one, tests)} |" for one in members]
    return "\n".join(lines) + "\n"


def _counts(requirements: Sequence[Requirement], tests: Mapping[str, set[str]]) -> str:
    tested = sum(one.id in tests for one in requirements)
    owed = sum(one.owed and one.id not in tests for one in requirements)
    return f"{tested} tested, {owed} open, {len(requirements) - tested - owed} n/a"


def _state(requirement: Requirement, tests: Mapping[str, set[str]]) -> str:
    if requirement.id not in tests:
        return requirement.status
    names = sorted(name.removeprefix("tests/") for name in tests[requirement.id])
    return "tested: " + ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
