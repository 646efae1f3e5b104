"""The files of the repository for the tidy tests."""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "evaluator"
EXCLUDED_FOLDERS = {".git", ".venv", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache"}


@cache
def files() -> list[Path]:
    """Every file that is tracked, or new and not ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        found = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:  # an unpacked archive is no git repository
        found = [path for path in ROOT.rglob("*") if not EXCLUDED_FOLDERS & set(path.parts)]
    return sorted(path for path in found if path.is_file() and path.suffix != ".pyc")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def modules(folder: Path = PACKAGE) -> list[Path]:
    return [path for path in files() if path.suffix == ".py" and path.is_relative_to(folder)]


def pages() -> list[Path]:
    return [path for path in files() if path.suffix == ".md"]


@cache
def parsed(module: Path) -> ast.Module:
    return ast.parse(module.read_text("utf-8"))


@cache
def functions(module: Path) -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function of a module with its dotted name, including methods and inner functions."""

    def walk(node: ast.AST, prefix: str) -> Iterator:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                continue  # contains no function
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{prefix}{child.name}", child
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from walk(child, f"{prefix}{child.name}.")
            else:
                yield from walk(child, prefix)

    return list(walk(parsed(module), ""))


def table_below(page: str, heading: str) -> list[list[str]]:
    """The rows of the first Markdown table below a heading, cells stripped, without its head."""
    section = page.split(f"\n{heading}\n", maxsplit=1)[1]
    section = re.split(r"\n#+ ", section, maxsplit=1)[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]
