"""How many small faults the default test suite finds: single-line mutants of the package's maths.

``python -m benchmarks.mutants TREE --coverage FILE --with OTHER`` changes one line of ``TREE`` at a
time (``+`` to ``-``, ``<`` to ``<=``, ``and`` to ``or``, a constant plus one, ...) and runs the
tests that execute this line, those that execute the least code first, until one fails. ``FILE`` is
what the default suite writes with ``--cov=fedsim --cov-branch --cov-context=test``.

A mutant is named by its function, operator and occurrence ("2/3": the second of three places in the
function), never by its file, so that it is found again in a checkout with another layout.
``--with OTHER`` takes only mutants that both checkouts have, and the choice depends on the names
and the seed alone: run it once for each of the two to compare their suites on the same mutants.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import os
import queue
import re
import shutil
import signal
import sqlite3
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import click

PACKAGES = ("client", "server", "algorithms", "metrics", "training")
"""What is mutated. A checkout without these folders is searched completely."""
PER_FUNCTION = 2
"""At most so many mutants of one function, so that long functions do not prevail."""
RENAMED: dict[str, str] = {}
"""Functions of earlier versions by their present names, where these differ."""

ARITHMETIC = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"),
              ast.FloorDiv: ("//", "/"), ast.Pow: ("**", "*"), ast.MatMult: ("@", "*")}  # fmt: skip
COMPARISONS = {ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
               ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"),
               ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"),
               ast.NotIn: ("not in", "in")}  # fmt: skip
FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list",
             "zeros": "ones", "ones": "zeros", "sum": "max", "mean": "sum", "sqrt": "abs",
             "argmax": "argmin", "floor": "ceil", "ceil": "floor"}  # fmt: skip
"""A function or method call and what is called in its place."""
SEQUENCES = (ast.Constant, ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.ListComp)

PLUGIN = '''\
"""Ends a test that takes too long, and makes sure that the mutant is what is tested."""
import faulthandler, os, pathlib, pytest, fedsim
assert pathlib.Path(fedsim.__file__).is_relative_to(os.environ["MUTANT_TREE"]), fedsim.__file__
@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    pathlib.Path(os.environ["MUTANT_TEST"]).write_text(item.nodeid)
    faulthandler.dump_traceback_later(float(os.environ["MUTANT_SECONDS"]), exit=True)
    result = yield
    faulthandler.cancel_dump_traceback_later()
    pathlib.Path(os.environ["MUTANT_TEST"]).write_text("")
    return result
'''


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A change of one line.

    ``first`` to ``last`` are the lines of the statement, by which the tests are found.
    """

    name: str
    function: str
    path: str
    line: int
    start: int
    stop: int
    text: str
    first: int
    last: int

    def applied(self, source: str) -> str:
        """The source with the change."""
        lines = source.splitlines(keepends=True)
        raw = lines[self.line - 1].encode()
        changed = raw[: self.start] + self.text.encode() + raw[self.stop :]
        lines[self.line - 1] = changed.decode()
        return "".join(lines)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the tests say of a mutant; ``test`` is the one that failed or did not end."""

    status: str
    num_tests: int
    test: str = ""


Change = tuple[str, int, int, int, str]
"""Operator, line, first and last byte of what is replaced, the new text."""


class Finder(ast.NodeVisitor):
    """The changes that are possible in the body of a function, nested functions excluded."""

    def __init__(self, lines: Sequence[bytes]) -> None:
        self.lines = lines
        self.found: list[tuple[Change, ast.stmt]] = []
        self.statement: ast.stmt = ast.Pass()

    def replace(self, node: ast.AST, operator: str, text: str) -> None:
        """Notes that a node that lies in one line may become ``text``."""
        if isinstance(node, ast.expr | ast.stmt) and node.lineno == node.end_lineno:
            change = operator, node.lineno, node.col_offset, node.end_col_offset or 0, text
            self.found.append((change, self.statement))

    def between(self, left: ast.expr, right: ast.expr, old: str, new: str) -> None:
        """Notes that the operator between two expressions may become another."""
        if left.end_lineno != right.lineno or left.end_col_offset is None:
            return
        gap = self.lines[left.end_lineno - 1][left.end_col_offset : right.col_offset].decode()
        at = re.search(rf"(?<![\w*/<>=!]){re.escape(old)}(?![\w*/=])", gap)
        if at is not None:
            start = left.end_col_offset + at.start()
            change = f"{old} -> {new}", left.end_lineno, start, start + len(old), new
            self.found.append((change, self.statement))

    def visit(self, node: ast.AST) -> None:
        """Keeps the statement; passes over texts, types, errors and nested definitions."""
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            return
        before = self.statement
        if isinstance(node, ast.stmt):
            self.statement = node
        super().visit(node)
        self.statement = before

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """The value, not the type."""
        if node.value is not None:
            self.visit(node.value)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Arithmetic of numbers."""
        texts = isinstance(node.op, ast.Add) and any(
            isinstance(side, SEQUENCES) and not _number(side) for side in (node.left, node.right)
        )
        if type(node.op) in ARITHMETIC and not texts:
            self.between(node.left, node.right, *ARITHMETIC[type(node.op)])
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """``+=`` and the like."""
        if type(node.op) in ARITHMETIC:
            old, new = (f"{sign}=" for sign in ARITHMETIC[type(node.op)])
            gap = self.lines[node.lineno - 1][node.target.end_col_offset : node.value.col_offset]
            if node.lineno == node.value.lineno and old.encode() in gap:
                start = (node.target.end_col_offset or 0) + gap.index(old.encode())
                change = f"{old} -> {new}", node.lineno, start, start + len(old), new
                self.found.append((change, self.statement))
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Bounds and equality."""
        left = node.left
        for op, right in zip(node.ops, node.comparators, strict=True):
            self.between(left, right, *COMPARISONS[type(op)])
            left = right
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """``and`` and ``or``."""
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        if len(node.values) == 2:
            self.between(node.values[0], node.values[1], old, new)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        """A ``not`` or a minus is left out."""
        inner = ast.unparse(node.operand)
        if isinstance(node.op, ast.Not):
            self.replace(node, "drop not", f"({inner})")
        elif isinstance(node.op, ast.USub):
            self.replace(node, "drop minus", f"({inner})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """A number plus one, the other truth value."""
        if isinstance(node.value, bool):
            self.replace(node, f"{node.value} -> {not node.value}", repr(not node.value))
        elif isinstance(node.value, int | float):
            self.replace(node, f"{node.value} + 1", repr(node.value + 1))

    def visit_Call(self, node: ast.Call) -> None:
        """Another function of the same kind."""
        name, at = node.func, node.func.end_col_offset or 0
        called = name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "")
        if called in FUNCTIONS and name.end_lineno is not None:
            change = (f"{called} -> {FUNCTIONS[called]}", name.end_lineno, at - len(called), at,
                      FUNCTIONS[called])  # fmt: skip
            self.found.append((change, self.statement))
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        """The condition is negated."""
        self._negated(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """The condition is negated."""
        self._negated(node.test)
        self.generic_visit(node)

    def _negated(self, test: ast.expr) -> None:
        if isinstance(test, ast.Name | ast.Attribute | ast.Call):
            self.replace(test, "negate", f"(not {ast.unparse(test)})")

    def visit_Return(self, node: ast.Return) -> None:
        """Nothing is returned."""
        if node.value is not None and not isinstance(node.value, ast.Constant):
            self.replace(node, "return None", "return None")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        """A call that is made for its effect is left out; texts on their own are docstrings."""
        if isinstance(node.value, ast.Call):
            self.replace(node, "drop call", "pass")
            self.generic_visit(node)


def _number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """The functions of a module by their qualified names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.stmt):
            yield from functions(node, prefix)


def mutants_of(tree: Path) -> dict[str, Mutant]:
    """Every mutant of a checkout by its name; functions of one name in two files are left out."""
    package = tree / "fedsim"
    folders = [package / name for name in PACKAGES]
    if not all(folder.is_dir() for folder in folders):
        folders = [package]
    found: dict[str, Mutant] = {}
    ambiguous: set[str] = set()
    for path in sorted(p for folder in folders for p in folder.rglob("*.py")):
        source = path.read_text()
        lines = source.encode().splitlines()
        for qualified, node in functions(ast.parse(source)):
            of_method = path.parent.name == "algorithms"  # each file has classes of its own
            full = f"{path.stem}.{qualified}" if of_method else qualified
            function = RENAMED.get(full, full)
            finder = Finder(lines)
            for statement in node.body:
                finder.visit(statement)
            totals = Counter(change[0] for change, _ in finder.found)
            count: Counter[str] = Counter()
            for (operator, line, start, stop, text), statement in finder.found:
                count[operator] += 1
                name = f"{function}: {operator}, {count[operator]}/{totals[operator]}"
                if name in found:
                    ambiguous.add(name)
                found[name] = Mutant(
                    name=name, function=function, path=str(path.relative_to(tree)), line=line,
                    start=start, stop=stop, text=text, first=statement.lineno,
                    last=_end(statement, line),
                )  # fmt: skip
    return {name: m for name, m in found.items() if name not in ambiguous}


def _end(statement: ast.stmt, line: int) -> int:
    """The last line of a statement, of its header where it has a body."""
    body = getattr(statement, "body", None)
    return max(line, body[0].lineno - 1) if body else statement.end_lineno or line


def chosen(names: set[str], functions_of: Mapping[str, str], seed: int, count: int) -> list[str]:
    """Some of the names, by the seed and the names alone."""
    ordered = sorted(names, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())
    per_function: Counter[str] = Counter()
    taken: list[str] = []
    for name in ordered:
        if per_function[functions_of[name]] < PER_FUNCTION and len(taken) < count:
            per_function[functions_of[name]] += 1
            taken.append(name)
    return taken


class Contexts:
    """Which tests execute which lines, from a coverage file."""

    def __init__(self, file: Path) -> None:
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db:
            names: dict[int, str] = dict(db.execute("select id, context from context"))
            paths: dict[int, str] = dict(db.execute("select id, path from file"))
            size = "select context_id, count(*) from arc group by context_id"
            self.size = {names[c]: n for c, n in db.execute(size)}
            self.lines: dict[str, dict[int, set[str]]] = {}
            for file_id, path in paths.items():
                lines: dict[int, set[str]] = defaultdict(set)
                arcs = "select context_id, fromno, tono from arc where file_id = ?"
                for context, a, b in db.execute(arcs, (file_id,)):
                    lines[abs(a)].add(names[context])
                    lines[abs(b)].add(names[context])
                self.lines["fedsim/" + path.rpartition("/fedsim/")[2]] = lines
        self.by_file: dict[str, set[str]] = defaultdict(set)
        for context in names.values():
            test = context.rpartition("|")[0]
            self.by_file[test.partition("::")[0]].add(test)

    def tests(self, mutant: Mutant) -> list[str]:
        """The tests that execute the mutant's statement, those that execute least first.

        What a test's fixtures execute may serve all tests of its file.
        """
        lines = self.lines.get(mutant.path, {})
        found: dict[str, int] = {}
        for line in range(mutant.first, mutant.last + 1):
            for context in lines.get(line, ()):
                test, _, phase = context.rpartition("|")
                if phase == "run":
                    found[test] = self.size[context]
                elif phase == "setup":
                    of_file = self.by_file[test.partition("::")[0]]
                    found |= {t: self.size.get(f"{t}|run", 0) for t in of_file if t not in found}
        found.pop("", None)
        return sorted(found, key=lambda test: (found[test], test))


def copy_of(tree: Path, folder: Path) -> Path:
    """A copy of a checkout's tracked files, beside a link to its sample data."""
    copy = folder / "tree"
    listed = subprocess.run(
        ["git", "-C", str(tree), "ls-files", "-z"], capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (tree / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / name, copy / name)
    if (tree.parent / "shared").exists():
        (folder / "shared").symlink_to(tree.parent / "shared")
    (folder / "mutant_plugin.py").write_text(PLUGIN)
    return copy


def tested(mutant: Mutant, tests: Sequence[str], python: Path, copy: Path, seconds: float,
           limit: float) -> Verdict:  # fmt: skip
    """Runs the tests on the mutant until one fails.

    Args:
        mutant: what is changed in ``copy`` meanwhile.
        tests: node ids, in this order.
        python: of the checkout's environment.
        copy: of the checkout.
        seconds: that one test may take.
        limit: seconds for all of them.
    """
    if not tests:
        return Verdict(status="survived", num_tests=0)
    folder, file = copy.parent, copy / mutant.path
    source = file.read_text()
    arguments, current = folder / "tests.txt", folder / "test"
    arguments.write_text("\n".join(tests))
    current.write_text("")
    environment = os.environ | {
        "PYTHONPATH": f"{copy}:{folder}", "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1",
        "MUTANT_TREE": str(copy), "MUTANT_TEST": str(current), "MUTANT_SECONDS": str(seconds),
    }  # fmt: skip
    command = [str(python), "-m", "pytest", "-p", "mutant_plugin", "-p", "no:cacheprovider", "-x",
               "-n", "0", "--no-header", "--tb=no", "-rfE",
               f"--basetemp={folder / 'tmp'}", f"@{arguments}"]  # fmt: skip
    try:
        file.write_text(mutant.applied(source))
        process = subprocess.Popen(
            command, cwd=copy, env=environment, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            said, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return Verdict(status="unfinished", num_tests=len(tests), test=current.read_text())
    finally:
        file.write_text(source)
    if process.returncode == 0:
        return Verdict(status="survived", num_tests=len(tests))
    if (slow := current.read_text()) and "Timeout (" in said:
        return Verdict(status="timeout", num_tests=len(tests), test=slow)
    failed = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", said, re.MULTILINE)
    if process.returncode != 1 and failed is None:
        raise click.ClickException(f"{mutant.name}: pytest ended oddly\n{said[-2000:]}")
    return Verdict(status="killed", num_tests=len(tests), test=failed[1] if failed else "")


@click.command()
@click.argument("tree", type=click.Path(exists=True, path_type=Path))
@click.option("--coverage", required=True, type=click.Path(exists=True, path_type=Path),
              help="Coverage of TREE's default suite, a context a test.")  # fmt: skip
@click.option("--with", "other", type=click.Path(exists=True, path_type=Path),
              help="Take only mutants that this checkout has too.")  # fmt: skip
@click.option("--seed", default=0, show_default=True)
@click.option("--count", default=80, show_default=True)
@click.option("--jobs", default=2, show_default=True, help="Mutants at a time.")
@click.option("--timeout", default=120.0, show_default=True, help="Seconds for one test.")
@click.option("--limit", default=1200.0, show_default=True, help="Seconds for one mutant.")
@click.option("--only", default="", help="Only mutants whose name contains this.")
@click.option("--list", "listed", is_flag=True, help="Name the mutants and end.")
@click.option("--out", type=click.Path(path_type=Path), help="CSV file for the table.")
def main(
    tree: Path,
    coverage: Path,
    other: Path | None,
    seed: int,
    count: int,
    jobs: int,
    timeout: float,
    limit: float,
    only: str,
    listed: bool,
    out: Path | None,
) -> None:
    """Counts the mutants of TREE that its tests find."""
    tree = tree.resolve()
    pool = mutants_of(tree)
    names = {name for name in pool if only in name}
    if other is not None:
        names &= mutants_of(other.resolve()).keys()
    taken = chosen(names, {name: pool[name].function for name in names}, seed, count)
    contexts = Contexts(coverage)
    say(f"{len(taken)} of {len(names)} mutants")
    if listed:
        for name in taken:
            m = pool[name]
            say(f"{len(contexts.tests(m)):5d} tests  {m.path}:{m.line}  {name}")
        return
    verdicts: dict[str, Verdict] = {}
    with tempfile.TemporaryDirectory(prefix="mu", dir="/tmp") as folder:
        copies: queue.Queue[Path] = queue.Queue()
        for job in range(jobs):
            copies.put(copy_of(tree, Path(folder) / str(job)))

        def judge(name: str) -> None:
            copy = copies.get()
            try:
                tests = contexts.tests(pool[name])
                python = tree / ".venv" / "bin" / "python"
                found = tested(pool[name], tests, python, copy, timeout, limit)
            finally:
                copies.put(copy)
            verdicts[name] = found
            say(f"{found.status:10s} {found.num_tests:5d} tests  {name}  {found.test}")

        with ThreadPoolExecutor(jobs) as threads:
            for done in [threads.submit(judge, name) for name in taken]:
                done.result()
    report(tree, {name: pool[name] for name in taken}, verdicts, out)


def report(
    tree: Path, mutants: Mapping[str, Mutant], verdicts: Mapping[str, Verdict], out: Path | None
) -> None:
    """Prints the counts and the survivors with their lines; writes the table."""
    count = Counter(verdict.status for verdict in verdicts.values())
    killed = count["killed"] + count["timeout"]
    say(", ".join(f"{n} {status}" for status, n in sorted(count.items())))
    say(f"{killed} of {len(mutants)} found ({killed / max(1, len(mutants)):.1%})")
    for name, m in mutants.items():
        if verdicts[name].status in ("survived", "unfinished"):
            source = (tree / m.path).read_text()
            before, after = (
                text.splitlines()[m.line - 1].strip() for text in (source, m.applied(source))
            )
            say(f"\n{name}  {m.path}:{m.line}, {verdicts[name].num_tests} tests")
            say(f"- {before}\n+ {after}")
    if out is not None:
        with out.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["mutant", "path", "line", "status", "tests", "by"])
            for name, m in mutants.items():
                v = verdicts[name]
                table.writerow([name, m.path, m.line, v.status, v.num_tests, v.test])


def say(text: str) -> None:
    """Prints at once."""
    click.echo(text)


if __name__ == "__main__":
    main()
