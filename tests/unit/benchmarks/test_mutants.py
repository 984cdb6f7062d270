"""The mutants by which the suite is measured: what is changed, and that names survive a move."""

from __future__ import annotations

import sqlite3

from benchmarks.mutants import Contexts
from benchmarks.mutations import chosen, mutants_of

SOURCE = '''\
"""A module."""


class Rule:
    def step(self, x: int | None, n=1) -> int:
        """Text: 1 < 2 and 3."""
        if x is None or not n:
            raise ValueError(f"{x + 1}")
        return min(x, 2) - n
'''


def checkout(folder, path, source=SOURCE):
    file = folder / path
    file.parent.mkdir(parents=True)
    file.write_text(source)
    return mutants_of(folder)


def test_one_line_changes_and_texts_types_and_errors_do_not(tmp_path):
    found = checkout(tmp_path, "fedsim/rules.py")
    changed = {}
    for name, mutant in found.items():
        before, after = SOURCE.splitlines(), mutant.applied(SOURCE).splitlines()
        (line,) = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
        assert line == mutant.line - 1
        changed[name.removeprefix("Rule.step: ")] = after[line].strip()
    assert changed == {
        "or -> and, 1/1": "if x is None and not n:",
        "is -> is not, 1/1": "if x is not None or not n:",
        "drop not, 1/1": "if x is None or (n):",
        "return None, 1/1": "return None",
        "- -> +, 1/1": "return min(x, 2) + n",
        "min -> max, 1/1": "return max(x, 2) - n",
        "2 + 1, 1/1": "return min(x, 3) - n",
    }


def test_the_same_names_and_choice_after_a_move(tmp_path):
    before = checkout(tmp_path / "before", "fedsim/rules.py")
    renamed = SOURCE.replace("x", "value")
    after = checkout(tmp_path / "after", "fedsim/server/rules.py", renamed)
    for package in ("client", "algorithms", "metrics", "training"):
        (tmp_path / "after" / "fedsim" / package).mkdir()
    after = mutants_of(tmp_path / "after")
    assert before.keys() == after.keys() != set()
    by = {name: m.function for name, m in after.items()}
    assert chosen(set(by), by, 0, 1) == chosen(set(by), by, 0, 9)[:1]
    assert len(chosen(set(by), by, 0, 9)) == 2  # of one function


def test_the_tests_of_a_line_and_all_of_a_file_for_its_fixtures(tmp_path):
    file = tmp_path / ".coverage"
    with sqlite3.connect(file) as db:
        db.executescript("""
            create table file (id, path); create table context (id, context);
            create table arc (file_id, context_id, fromno, tono);
            insert into file values (1, '/elsewhere/fedsim/rules.py');
            insert into context values (1, ''), (2, 't/a.py::one|run'), (3, 't/b.py::two|setup'),
                (4, 't/b.py::three|run'), (5, 't/c.py::four|run');
            insert into arc values (1, 1, 7, 9), (1, 2, 7, 9), (1, 2, 9, -5), (1, 3, 7, 9),
                (1, 4, 1, 2), (1, 5, 7, 8);
        """)
    db.close()
    mutant = checkout(tmp_path, "fedsim/rules.py")["Rule.step: min -> max, 1/1"]
    tests = Contexts(file).tests(mutant)
    assert sorted(tests) == ["t/a.py::one", "t/b.py::three", "t/b.py::two"]
    assert tests[-1] == "t/a.py::one"  # it executes most
