"""The layout of the package: which package may import which, and what stands where."""

from __future__ import annotations

import ast
import functools
import io
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "fedsim"
MODULES = sorted(PACKAGE.rglob("*.py"))
ids = {"ids": lambda p: str(p.relative_to(PACKAGE))}

ORDER = (
    {"core"},
    {"privacy"},
    {"tasks"},
    {"data", "models", "metrics", "systems", "client", "server"},
    {"attacks", "compressors"},
    {"algorithms"},
    {"config"},
    {"storage", "engine"},
    {"schedules", "identity"},
    {"training"},
    {"predictions"},
    {"display"},
    {"studies"},
    {"audit"},
    {"testing"},
    {"cli"},
)
"""Packages import only those before them; two of one set never import each other."""
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}
AT_THE_ROOT = {"__init__.py", "__main__.py", "version.py", "api.py"}
LONGER = {"fedpac", "pfedla", "matched_mean"}
MOST_LINES = 500


def package(path: Path) -> str:
    """The package that a file is in, "" at the root."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


def imports(path: Path) -> set[str]:
    """The dotted names that a file imports at any depth."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            if node.module == "fedsim":
                found |= {f"fedsim.{alias.name}" for alias in node.names}
    return found


def test_the_root_holds_four_files_and_the_packages():
    assert {p.name for p in PACKAGE.glob("*.py")} == AT_THE_ROOT
    assert {package(p) for p in MODULES} - {""} == set(LEVEL)


@pytest.mark.parametrize("path", [p for p in MODULES if package(p)], **ids)
def test_imports_go_to_the_left(path):
    own = package(path)
    for name in imports(path):
        top, _, rest = name.partition(".")
        target = rest.split(".")[0]
        if top != "fedsim" or target in ("", own, "version"):
            continue
        assert target in LEVEL, f"{name} is no package"
        assert LEVEL[target] < LEVEL[own], f"{own} may not import {name}"


def homes(stem: str) -> set[Path]:
    """The folders with a module of this name, as they are called in tests/unit."""
    found = {p.relative_to(PACKAGE).parent for p in MODULES if p.stem == stem}
    analysis = (ROOT / "analysis").rglob("*.py")
    return found | {Path("analysis") for p in analysis if stem in (p.stem, p.parent.name)}


def test_the_unit_tests_mirror_the_packages():
    unit = ROOT / "tests" / "unit"
    for path in unit.rglob("test_*.py"):
        folder = path.relative_to(unit).parent
        assert (PACKAGE / folder).is_dir() or (ROOT / folder).is_dir(), f"{folder} is no package"
        own = homes(path.stem.removeprefix("test_"))
        if folder.parts[:1] not in (("docs",), ("benchmarks",), ("launch",)):
            assert not own or folder in own, f"{path.name} stands in {folder}, not in {own}"


def test_ray_is_imported_in_one_package_alone():
    users = {p.parent for p in MODULES if any(n.split(".")[0] == "ray" for n in imports(p))}
    assert users == {PACKAGE / "engine" / "ray"}


@pytest.mark.parametrize("folder", ["algorithms", "attacks", "client", "compressors", "server"])
def test_rules_do_no_input_or_output(folder):
    for path in (PACKAGE / folder).glob("*.py"):
        tops = {name.split(".")[0] for name in imports(path)}
        assert not tops & {"ray", "click", "pandas", "rich", "pathlib", "yaml"}, path.name


def test_analysis_reads_csv_files_alone():
    for path in (ROOT / "analysis").rglob("*.py"):
        names = imports(path) - {
            *(f"fedsim.core.{name}" for name in ("errors", "files", "measures", "reading")),
            *("fedsim.core.rows", "fedsim.core.tables"),
            *("fedsim.core.terminal", "fedsim.core.text", "fedsim.config.keys"),
        }
        if path.name == "start.py":  # of the command
            names -= {"fedsim.cli"}
        tops = {name.split(".")[0] for name in names}
        assert not tops & {"torch", "ray", "fedsim", "torchvision"}, path.name


@pytest.mark.parametrize("path", MODULES, **ids)
def test_no_file_is_long(path):
    assert len(path.read_text().splitlines()) <= MOST_LINES


def code_lines(path: Path) -> int:
    """Lines with code: no blank lines, comments or docstrings."""
    source = path.read_text()
    lines: set[int] = set()
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in (*skipped, tokenize.ENDMARKER):
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            lines -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


METHODS = [
    p
    for p in sorted((PACKAGE / "algorithms").glob("[a-z]*.py"))
    if p.stem not in {"base", "catalogue", *LONGER}
]


@pytest.mark.parametrize("path", METHODS, **ids)
def test_a_method_is_short(path):
    assert code_lines(path) <= 60


INSTALLED = sorted([*MODULES, *(ROOT / "analysis").glob("*.py"), *(ROOT / "launch").glob("*.py")])
ALONE = [PACKAGE / "core" / "terminal.py", ROOT / "analysis" / "start.py"]
"""The file with that function, and the one that must not import fedsim."""
DIRECT = {"print", "click.echo", "click.secho", "sys.stdout.write", "sys.stderr.write"}
TEXT = {"open", "read_text", "write_text", "fdopen", "TextIOWrapper"}
"""Functions that read or write text unless they are told otherwise."""
OTHER = {"Image.open", "gzip.open", "os.open", "tarfile.open", "self.open", "read_text"}
OTHER |= {"archive.open"}  # members of a zip file
"""Of other kinds, and the one of fedsim.core.reading, which has its encoding."""
PROCESSES = {"subprocess.run", "subprocess.Popen", "subprocess.check_output"}


@functools.cache
def calls(path: Path) -> list[tuple[str, dict[str | None, str], str]]:
    """Every call: the function as it is written, its arguments by name or number, and where."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    found = []
    for node in nodes:
        given = {str(i): ast.unparse(value) for i, value in enumerate(node.args)}
        given |= {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        found.append((ast.unparse(node.func), given, f"{path.relative_to(ROOT)}:{node.lineno}"))
    return found


def test_text_reaches_the_terminal_through_one_function():
    """Which escapes what a terminal would act on; ``launch`` has no names that users give."""
    own = [path for path in INSTALLED if path.parent.name != "launch" and path not in ALONE]
    assert [place for path in own for name, _, place in calls(path) if name in DIRECT] == []


def test_text_files_have_an_encoding():
    """Without one they would be written in that of the locale."""
    without = []
    for name, given, place in (call for path in INSTALLED for call in calls(path)):
        as_text = name in PROCESSES and {"text", "universal_newlines"} & set(given)
        if name.rpartition(".")[2] in TEXT and name not in OTHER:
            as_text = not any(mode.strip("'").endswith("b") for mode in given.values())
        if as_text and "encoding" not in given:
            without.append(place)
    assert without == []
