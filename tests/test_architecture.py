"""The import direction of the package, and what may not be imported where."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "fedsim"
MODULES = sorted(PACKAGE.rglob("*.py"))

LAYERS = (
    ("version", "errors", "contracts", "names", "rng", "laws"),
    ("vectors", "columns", "cohort", "gram", "losses", "models", "data"),
    (
        "localenv",
        "local",
        "server",
        "optimisers",
        "similarity",
        "metrics",
        "decomposition",
        "clock",
    ),
    ("plugin",),
    ("algorithms",),
    ("api", "sections", "checks", "settings", "experiments", "presets", "config"),
    ("interrupts", "durable", "lock", "tensorfile", "segments", "clientstates"),
    ("engine", "store", "state", "roundlog"),
    ("record", "checkpoint", "restore"),
    ("shares", "timekeeping"),
    ("setup",),
    ("accounts", "summary", "evaluation", "aggregation", "finished"),
    ("clientscores", "lossmatrix"),
    ("oneround", "resuming"),
    ("drive",),
    ("rounds",),
    ("sweep",),
    ("tables", "progress"),
    ("cli",),
    ("__main__",),
)
LEVEL = {name: level for level, layer in enumerate(LAYERS) for name in layer}
LONGER = {"fedpac", "pfedla", "matched_mean"}


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


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


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_downward_only(path):
    if path == PACKAGE / "__init__.py":
        return
    own = part(path)
    for name in imports(path):
        target = name.split(".")[1] if name.startswith("fedsim.") else own
        if target in LEVEL:
            assert LEVEL[target] <= LEVEL[own], f"{own} may not import {target}"


def test_every_module_has_a_layer():
    assert {part(p) for p in MODULES} - {"__init__"} == set(LEVEL)


def test_ray_is_imported_in_the_engine_alone():
    users = {part(p) for p in MODULES if any(n.split(".")[0] == "ray" for n in imports(p))}
    assert users == {"engine"}


@pytest.mark.parametrize(
    "folder", ["algorithms", "gram.py", "server.py", "local.py", "localenv.py", "losses.py"]
)
def test_rules_do_no_input_or_output(folder):
    target = PACKAGE / folder
    for path in [target] if target.is_file() else target.glob("*.py"):
        tops = {name.split(".")[0] for name in imports(path)}
        assert not tops & {"ray", "click", "pandas", "rich", "os", "pathlib", "yaml"}, path.name


def test_analysis_reads_csv_files_alone():
    for path in (ROOT / "analysis").rglob("*.py"):
        tops = {name.split(".")[0] for name in imports(path)}
        assert not tops & {"torch", "ray", "fedsim", "torchvision"}, path.name


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


@pytest.mark.parametrize(
    "path", sorted((PACKAGE / "algorithms").glob("[a-z]*.py")), ids=lambda p: p.stem
)
def test_a_method_is_short(path):
    if path.stem not in LONGER:
        assert code_lines(path) <= 60
