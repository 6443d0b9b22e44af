"""What the documentation says is run: Python blocks of the pages, doctests of the modules, links, tables."""

import ast
import doctest
import importlib
import importlib.util
import pkgutil
import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType

import pytest

import einsum_engine
from einsum_engine import config
from einsum_engine.kernels.cpu import abi
from einsum_engine.kernels.registry import FAMILIES

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
OPTIONAL = {re.match(r"\w+", requirement)[0] for requirement in EXTRAS["bench"]}
FOLDERS = ("einsum_engine", "kernels", "planners", "bench", "tests")
PACKAGES = ("einsum_engine", *(f"einsum_engine.{name}" for name in ("passes", "planners", "kernels", "bench")))


def page_id(path: Path) -> str:
    return str(path.relative_to(ROOT))


def python_blocks(text: str) -> list[tuple[str, str | None]]:
    """The fenced Python blocks of a page, each padded by empty lines so that tracebacks show the page's lines, and with
    what it must print: a ``text`` block that follows it with nothing between."""
    fence = re.compile(r"^```python\n(.*?)^```$(?:\n\s*^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
    return [("\n" * text[: match.start(1)].count("\n") + match[1], match[2]) for match in fence.finditer(text)]


def printed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def missing_package(block: str) -> str | None:
    """The first package that a block imports and that is not installed."""
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            if importlib.util.find_spec(name.split(".")[0]) is None:
                return name
    return None


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_python_blocks_run(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    absent = set()
    blocks = python_blocks(path.read_text())
    assert len(blocks) == path.read_text().count("```python")
    for block, output in blocks:
        if missing := missing_package(block):
            absent.add(missing)
            continue
        capsys.readouterr()
        exec(compile(block, str(path), "exec"), namespace)
        if output is not None:
            assert printed(capsys.readouterr().out) == printed(output)
    if absent:
        pytest.skip(f"blocks that need {', '.join(sorted(absent))} were left out")


def module_names() -> list[str]:
    names = list(PACKAGES)
    for package in PACKAGES:
        found = importlib.import_module(package)
        names += [info.name for info in pkgutil.walk_packages(found.__path__, f"{package}.") if info.name not in names]
    return names


def import_or_skip(name: str) -> ModuleType:
    """A module of the package; a peer of the benchmark that is not installed skips, any other missing package fails."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL:
            raise
        pytest.skip(f"{name} needs {error.name}")


@pytest.mark.parametrize("name", module_names())
def test_doctests(name):
    module = import_or_skip(name)
    assert module.__doc__, f"{name} does not say what it is for"
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert result.failed == 0, f"{result.failed} of {result.attempted} examples failed; see the output above"


def test_only_packages_of_the_benchmark_may_be_missing(monkeypatch):
    assert {"torch", "jax"} <= OPTIONAL and "numba" not in OPTIONAL
    for package, outcome in (("torch", pytest.skip.Exception), ("numba", ModuleNotFoundError)):

        def absent(name, package=package):
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)

        monkeypatch.setattr(importlib, "import_module", absent)
        with pytest.raises(outcome):
            import_or_skip("einsum_engine.bench")


def test_doctests_and_blocks_are_found():
    assert "einsum_engine.config" in module_names() and "einsum_engine.kernels.cpu" in module_names()
    assert doctest.testmod(config).attempted > 0
    page = "a\n```python\nx = 1\n```\n\n```text\nout\n```\n```python\ny = 2\n```\nb\n```text\nno\n```\n"
    assert python_blocks(page) == [("\n\nx = 1\n", "out\n"), ("\n" * 9 + "y = 2\n", None)]
    assert missing_package("import os, no_such_package.sub") == "no_such_package.sub"


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_links_lead_somewhere(path):
    targets = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", path.read_text())
    assert [target for target in targets if not (path.parent / target).exists()] == []


def anchors(text: str) -> set[str]:
    """What links to a page may name behind ``#``: its headings as GitHub spells them, and its own anchors."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title) for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE))
    spelled = (re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings)
    return {*spelled, *re.findall(r'<a id="([^"]+)"', text)}


def test_anchors_are_spelled_as_on_github():
    assert anchors('# A `b`, c\n```\n# no\n```\n<a id="d"></a>\n## [E f](g.md)\n') == {"a-b-c", "d", "e-f"}


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_links_lead_to_sections(path):
    links = re.findall(r"\]\((?!https?:)([^)#]*)#([^)]*)\)", path.read_text())
    pages = {name: (path.parent / name) if name else path for name, _ in links}
    assert [link for link in links if link[1] not in anchors(pages[link[0]].read_text())] == []


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_modules_that_are_named_exist(path):
    files = {f"/{file.relative_to(ROOT)}" for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")}
    named = set(re.findall(r"`([\w/]+\.py)`", path.read_text()))
    assert sorted(name for name in named if not any(file.endswith(f"/{name}") for file in files)) == []


# Folder -> the pages that say what each of its modules is for.
LISTS = {
    "einsum_engine": ("architecture.md", "programs.md"),
    "planners": ("architecture.md", "programs.md"),
    "kernels": ("architecture.md", "kernels.md"),
    "bench": ("bench.md",),
}


def listed(text: str) -> set[str]:
    """Paths, or ends of paths, of the modules that a page names, as patterns: those of a family are in `<family>.py`."""
    names = set(re.findall(r"`([\w/*<>]+\.py)`", text))
    return {name.replace("<family>", family) for name in names for family in FAMILIES}


@pytest.mark.parametrize("folder", LISTS)
def test_every_module_is_listed(folder):
    names = set().union(*(listed((DOCS / page).read_text()) for page in LISTS[folder]))
    files = [str(file.relative_to(ROOT)) for file in (ROOT / folder).rglob("*.py") if file.name != "__init__.py"]
    assert files
    assert sorted(file for file in files if not any(fnmatch(f"/{file}", f"*/{name}") for name in names)) == []


def test_index_lists_every_page():
    index = (DOCS / "index.md").read_text()
    assert [page.name for page in DOCS.glob("*.md") if page.name != "index.md" and f"({page.name})" not in index] == []


def test_configuration_page_is_the_table_of_variables():
    rows = [line for line in (DOCS / "configuration.md").read_text().splitlines() if line.startswith("| `")]
    assert rows == [f"| `{option.name}` | {option.expects} | {option.help} | {option.seen} |" for option in config.OPTIONS.values()]


def test_kernels_page_has_every_word_of_the_step_table():
    words = {name: value for name, value in vars(abi).items() if name.isupper() and isinstance(value, int)}
    lengths = {name for name in words if name.endswith("_WORDS")}
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", (DOCS / "kernels.md").read_text(), re.MULTILINE)
    assert {name: int(value) for value, name in rows} == {name: words[name] for name in words.keys() - lengths}


@pytest.mark.parametrize("page, says", [("kernels.md", r"^## A step: (\d+) words$"), ("tour.md", r"it is (\d+) words of$")])
def test_pages_know_the_length_of_a_step(page, says):
    assert re.findall(says, (DOCS / page).read_text(), re.MULTILINE) == [str(abi.STEP_WORDS)]


def test_kernels_page_names_every_family():
    text = (DOCS / "kernels.md").read_text()
    assert [name for name in FAMILIES if f"`{name}`" not in text] == []


def test_readme_has_the_two_commands():
    text = (ROOT / "README.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("python3 -m venv")]
    assert [line.rsplit("&& ", 1)[1] for line in lines] == [
        ".venv/bin/einsum-engine bench thesis",
        ".venv/bin/python -m pytest -n 2",
    ]


def test_version_is_one():
    assert re.fullmatch(r"\d+\.\d+\.\d+", einsum_engine.__version__)
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text()
