"""The modules: what may import what, as README.md has it, what they are for, and which of them need asyncio."""

from __future__ import annotations

import ast
import os
import re
import unittest

import fakehost  # noqa: F401  (finds the package)

import omnibus

PACKAGE = os.path.dirname(omnibus.__file__)
README = os.path.join(os.path.dirname(__file__), "..", "README.md")


def sources() -> dict[str, str]:
    """The text of each module, by its name without the package's."""
    found = {}
    for where, _, names in os.walk(PACKAGE):
        for name in (n for n in names if n.endswith(".py")):
            path = os.path.join(where, name)
            module = os.path.relpath(path, PACKAGE)[: -len(".py")].replace(os.sep, ".")
            with open(path, encoding="utf-8") as f:
                found[module.removesuffix("__init__").rstrip(".")] = f.read()
    return found


def rows(text: str) -> list[list[str]]:
    """The modules of each row of README's last table."""
    table = text[text.index("\n## The code\n") :]
    return [re.findall(r"`(\w+)`", line.split("|")[1]) for line in table.splitlines() if line.startswith("| `")]


def imports(module: str, text: str, known: dict[str, str]) -> set[str]:
    """What of the package a module imports: when it is loaded, in a function, or for a type checker alone."""
    package = module if any(m.startswith(module + ".") for m in known) else module.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        at = package.split(".") if package else []
        base = ".".join([*at[: len(at) - node.level + 1], *([node.module] if node.module else [])])
        for name in node.names:
            inner = f"{base}.{name.name}" if base else name.name
            found.add(inner if inner in known else base)
    # Python loads the packages that a module is in before the module; those that this one is in are loaded already.
    return {p for m in found for p in within(m) if p not in within(module)} | (found - {module})


def within(module: str) -> list[str]:
    """A module and the packages that it is in."""
    parts = module.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts) + 1)]


class LayersTest(unittest.TestCase):
    def setUp(self) -> None:
        self.sources = sources()
        self.imports = {m: imports(m, text, self.sources) for m, text in self.sources.items()}

    def test_imports_go_up_the_table(self) -> None:
        if not os.path.exists(README):
            raise unittest.SkipTest(f"{README} comes with the repository")
        with open(README, encoding="utf-8") as f:
            row = {module: i for i, modules in enumerate(rows(f.read())) for module in modules}
        tops = {m.split(".")[0] for m in self.sources if m}
        self.assertEqual(set(row), tops)
        for module, others in self.imports.items():
            for other in others if module else ():
                with self.subTest(module, imports=other):
                    self.assertTrue(other, "nothing imports the package as a whole")
                    self.assertLessEqual(row[other.split(".")[0]], row[module.split(".")[0]])

    def test_no_import_leads_back(self) -> None:
        left = dict(self.imports)
        while free := [m for m, others in left.items() if not others & left.keys()]:
            for m in free:
                del left[m]
        circles = {m: sorted(others & left.keys()) for m, others in left.items()}
        self.assertEqual(circles, {}, "imports for type checkers and in functions count: move what both need down")

    def test_modules_say_what_they_are_for(self) -> None:
        for module, text in self.sources.items():
            with self.subTest(module):
                self.assertTrue(ast.get_docstring(ast.parse(text)))

    def test_asyncio_is_imported_by_two_modules(self) -> None:
        users = {m for m, text in self.sources.items() if re.search(r"^\s*(import|from) asyncio\b", text, re.MULTILINE)}
        self.assertEqual(users, {"aio", "coroutines"})


if __name__ == "__main__":
    unittest.main()
