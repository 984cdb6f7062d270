"""SHA-256 digests of the source files of users' code: a module, and what it imports beside it.

The files are found without running anything: from the import statements, wherever in a file they
stand. Only files in the folder that Python found the module in count (for a package the folder that
holds it), by their paths in it; installed packages and fedsim itself do not. Line ends CR LF count
as LF, as Git may have changed them.
"""

import ast
import os
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from fedsim.core.errors import ConfigError
from fedsim.core.files import sha256_of

OWN = ("fedsim", "fedsim_analysis")
"""Packages that are not the user's, wherever they lie."""
_imported_as: dict[str, tuple[ModuleSpec, str]] = {}
"""By name of a module that is imported: how, and the digest of its file then."""
INSTALLED = ("site-packages", "dist-packages")
"""Names of folders in which nobody's own code lies."""


def sha256_of_files(module: str) -> dict[str, str]:
    """By path the digests of the source files of a dotted module; none of an installed one."""
    top = module.partition(".")[0]
    root = next((r for r in _roots(top) if top not in OWN and any(_files(r, module))), None)
    library = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    if root is None or {*INSTALLED} & {*root.parts} or library & {root, *root.parents}:
        return {}
    digests: dict[str, str] = {}
    waiting = list(_files(root, module))
    while waiting:
        path = waiting.pop()
        if str(path) not in digests:
            text = (root / path).read_bytes().replace(b"\r\n", b"\n")
            digests[str(path)] = sha256_of(text)
            _check_as_imported(root / path, path, digests[str(path)])
            waiting += [file for name in _imported(text, path) for file in _files(root, name)]
    return dict(sorted(digests.items()))


def _check_as_imported(file: Path, path: PurePosixPath, digest: str) -> None:
    """Refuses a file that has changed since it was first seen after its import: in a notebook,
    Python goes on with the code that it imported, while other processes import the new one."""
    name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    spec = getattr(sys.modules.get(name), "__spec__", None)  # a reload makes a new one
    if spec is None or spec.origin != str(file):
        return
    seen, imported = _imported_as.setdefault(name, (spec, digest))
    if seen is not spec:
        _imported_as[name] = spec, digest
    elif imported != digest:
        raise ConfigError(
            f"{file}: has changed since Python imported it; start Python again, or call "
            "importlib.reload for it"
        )


def _roots(top: str) -> list[Path]:
    """The folders in which a module without dots, or the parts of a package, lie."""
    try:
        spec = find_spec(top)  # asks all finders, such as those of editable installations
    except ValueError:  # a module without one, such as __main__
        return []
    if spec is None:
        return []
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    if not folders and spec.has_location and spec.origin:
        folders = [Path(spec.origin)]
    return [folder.parent for folder in folders]


def _files(root: Path, module: str) -> Iterator[PurePosixPath]:
    """The source files that an import of ``module`` runs, relative to ``root``."""
    names = module.split(".")
    if names[0] in OWN or "" in names:
        return
    for length in range(1, len(names) + 1):
        path = PurePosixPath(*names[:length])
        for file in (path / "__init__.py", path.with_name(f"{path.name}.py")):
            if os.path.isfile(root / file):
                yield file
                break


def _imported(text: bytes, file: PurePosixPath) -> Iterator[str]:
    """The dotted names that a source file imports; names in a module count as modules of it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the text, which Python gave when it was imported
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    package = file.parent.parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            start = ".".join((*above, *filter(None, [node.module])))
            if start:
                yield start
            yield from (".".join(filter(None, [start, alias.name])) for alias in node.names)
