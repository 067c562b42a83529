"""What a checkout, a wheel and an import promise: one direction, nothing heavy, nothing shadowed, nothing left out."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
LINKS = ("flight_server", "spark_plugin", "store", "queue")
HEAVY = ("pandas", "pyspark", "ray", "google", "grpc", "sqlite3", "click", "rich")

GROUND = ("errors", "text", "steps")
BELOW = (*GROUND, "wire", "rows")
ROOMS: dict[str, tuple[str, ...]] = {  # room -> what it may import besides itself; from the ground up
    **dict.fromkeys(GROUND, GROUND),
    "wire": GROUND,
    "rows": (*GROUND, "wire"),
    "store": BELOW,
    "ledger": (*BELOW, "store"),
    "decode": BELOW,
    "queue": (*BELOW, "store", "ledger"),
    "flight_server": ("penstock", *BELOW, "store", "ledger", "queue", "decode"),
    "client": (*BELOW, "decode"),
    "spark_plugin": ("penstock", *BELOW, "client", "decode"),
    "spark": (*BELOW, "client"),
    "pipeline": ("penstock", *BELOW, "client", "spark_plugin"),
    "cli": ("penstock", *BELOW, "client"),
    "penstock": (*GROUND, "rows", "client", "spark_plugin", "spark", "pipeline"),  # __init__ itself: lazy names
}
ALSO = {
    "client/payload_store.py": ("store",),
    "cli/serve.py": ("flight_server", "store"),
    "cli/invocation.py": ("store",),  # how a size is written
    "cli/doctor.py": ("flight_server",),
    "cli/pull.py": ("flight_server", "queue"),
    "cli/publisher.py": ("flight_server", "queue"),
    "cli/run.py": ("pipeline",),
    "cli/folder.py": ("flight_server", "store", "ledger", "queue"),
}
"""The verbs that need a server, or a folder, in their own process."""


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module by its full name, and the line that says so."""

    module: str
    line: int


def imports_of(source: str, package: str) -> Iterator[Import]:
    """All imports of a module, those inside functions and for the type checker alone included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            above = parents[: len(parents) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (Import(f"{base}.{alias.name}", node.lineno) for alias in node.names)


def room_of(module: str) -> str:
    """`penstock.store.disk.Disk` -> store; a name that `penstock` itself hands out -> penstock."""
    name = module.split(".")[1] if "." in module else "penstock"
    below = ROOT / "penstock" / name
    return name if below.is_dir() or below.with_suffix(".py").exists() else "penstock"


def wrong_imports(file: Path, source: str) -> list[str]:
    """The imports of `file` (relative to penstock/) that point the wrong way."""
    room = "penstock" if file.name == "__init__.py" and len(file.parts) == 1 else file.parts[0].removesuffix(".py")
    if room not in ROOMS:
        return [f"{file}: {room} has no row in ROOMS"]
    allowed = {room, *ROOMS[room], *ALSO.get(str(file), ())}
    package = ".".join(["penstock", *file.parts[:-1]])
    wrong = []
    for each in imports_of(source, package):
        top = each.module.split(".")[0]
        if top == "tests" or (top == "penstock" and room_of(each.module) not in allowed):
            wrong.append(f"penstock/{file}:{each.line}: {room} may not import {each.module}")
    return wrong


def python_files() -> list[Path]:
    """Every module of the package, relative to penstock/."""
    return sorted(file.relative_to(ROOT / "penstock") for file in (ROOT / "penstock").rglob("*.py"))


def checkout(target: Path, *, links: bool) -> Path:
    """A copy of what git holds (or would, once added), with or without the links at the root."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in filter(None, listed.stdout.decode().split("\0")):
        source, copy = ROOT / name, target / name
        if not os.path.lexists(source) or (source.is_symlink() and not links):
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, copy, follow_symlinks=False)
    return target


def run(code: str, cwd: Path, *arguments: str) -> str:
    """What `code` prints in a new interpreter that has `cwd` first on its path."""
    environment = os.environ | {"PYTHONPATH": str(cwd), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


IMPORT_ALL = """
import importlib, sys
sys.modules.update(dict.fromkeys(["click", "grpc", "pandas", "pyspark", "ray", "rich"]))  # importing them fails
import penstock
for name in sys.argv[1:]:
    importlib.import_module(name)
print(penstock.__file__)
"""


def importable() -> list[str]:
    """The modules that need no extra, by their dotted names. Spark's workers import them, too."""
    of_spark = {
        Path("spark_plugin", name) for name in ("source.py", "stream.py", "sink.py", "worker/pieces.py")
    }  # its base classes
    of_grpc = ("publish.py", "pull.py", "readers.py", "schemas.py", "source.py", "transport.py")
    of_pubsub = {Path("queue", "pubsub", name) for name in of_grpc}
    of_extras = of_spark | of_pubsub | {Path("store", "ray_objects.py")}
    of_extras |= {Path("pipeline", name) for name in ("ray_data.py", "ray_pool.py")}
    of_extras.add(Path("client", "dataset.py"))  # pyarrow.dataset imports pandas, if that is there
    files = [file for file in python_files() if file.parts[0] not in ("cli", "spark") and file not in of_extras]
    names = [".".join(["penstock", *file.with_suffix("").parts]).removesuffix(".__init__") for file in files]
    return [name for name in names if not name.endswith("__main__")]


def test_imports_point_one_way() -> None:
    """errors, text <- wire, rows <- store <- ledger <- queue <- flight_server; rows <- client <- spark_plugin, cli."""
    wrong = [line for file in python_files() for line in wrong_imports(file, (ROOT / "penstock" / file).read_text())]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("wire/body.py", "import penstock.store"),
        ("store/disk.py", "from penstock.ledger import ledger"),
        ("store/disk.py", "from ..ledger import ledger"),
        ("store/disk.py", "from .. import ledger"),
        ("queue/ledger.py", "def later():\n    from penstock.flight_server import server"),
        ("client.py", "from penstock.flight_server.server import Server"),
        ("cli/ls.py", "import penstock.flight_server.server"),
        ("client.py", "from penstock.spark_plugin import write"),
        ("spark_plugin/write.py", "def later():\n    from penstock.flight_server import server"),
        ("cli/ls.py", "from penstock.spark_plugin.read import read"),
        ("wire/paths.py", "from tests.kit import server"),
        ("novelty.py", ""),
    ],
)
def test_a_wrong_import_is_found(file: str, source: str) -> None:
    """The test above sees each way of writing it."""
    assert len(wrong_imports(Path(file), source)) == 1


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("store/disk.py", "import queue\nfrom . import records\nfrom penstock import errors"),
        ("queue/ledger.py", "from penstock.store import open"),
        ("cli/serve.py", "from penstock.flight_server.server import Server"),
        ("spark_plugin/tasks.py", "import penstock\nimport pyspark\nfrom penstock.client.client import Client"),
    ],
)
def test_a_right_import_passes(file: str, source: str) -> None:
    assert wrong_imports(Path(file), source) == []


def test_the_root_of_the_package_is_a_hall() -> None:
    """What is at the root is what every room may import."""
    names = {file.stem for file in (ROOT / "penstock").glob("*.py")}
    assert names == {"__init__", *GROUND}


def test_scripts_do_without_the_tests() -> None:
    sources = [(file, file.read_text()) for file in (ROOT / "scripts").rglob("*.py")]
    imports = [(file, each) for file, text in sources for each in imports_of(text, "")]
    assert not [f"{file}:{each.line}" for file, each in imports if each.module.split(".")[0] == "tests"]


def test_test_modules_import_the_kit_alone() -> None:
    """What two of them need is in tests/kit; chaos has its rig besides."""
    wrong = []
    for file in sorted((ROOT / "tests").rglob("*.py")):
        room = file.relative_to(ROOT / "tests").parts[0]
        for each in imports_of(file.read_text(), ""):
            is_shared = each.module.startswith(("tests.kit.", "tests.chaos.") if room == "chaos" else "tests.kit.")
            if each.module.startswith("tests.") and (not is_shared or ".test_" in each.module):
                wrong.append(f"{file.relative_to(ROOT)}:{each.line} imports {each.module}")
    assert not wrong, "\n".join(wrong)


def test_names_of_tests_are_short() -> None:
    """A name is one plain clause of at most 60 characters; details go to the docstring."""
    texts = [file.read_text() for file in (ROOT / "tests").rglob("*.py")]
    names = {name for text in texts for name in re.findall(r"^ *def (test_\w+)", text, re.MULTILINE)}
    assert len(names) > 1_000
    assert not sorted(name for name in names if len(name) > 60)


def test_queue_at_the_root_is_the_standard_librarys() -> None:
    """Whatever starts at the root (pytest, Jupyter, Spark's workers) must find queue.Queue."""
    assert not (ROOT / "penstock" / "queue" / "__init__.py").exists()
    assert run("import queue; print(queue.Queue.__module__, queue.__spec__.origin)", ROOT).startswith("queue ")
    assert not run("import queue; print(queue.__file__)", ROOT).startswith(str(ROOT / "queue"))


def test_the_links_are_relative_and_lead_to_rooms() -> None:
    links = {name: str((ROOT / name).readlink()) for name in LINKS if (ROOT / name).is_symlink()}
    assert links == {name: f"penstock/{name}" for name in LINKS}
    assert all((ROOT / "penstock" / name).is_dir() for name in LINKS)


def test_a_checkout_without_links_works(tmp_path: Path) -> None:
    """Windows, and some downloads, drop links."""
    copy = checkout(tmp_path, links=False)
    assert not any(os.path.lexists(copy / name) for name in LINKS)
    assert run(IMPORT_ALL, copy, *importable()) == str(copy / "penstock" / "__init__.py")


def test_public_names_are_these() -> None:
    """`__all__`, dir() and the attributes agree."""
    assert penstock.__all__ == [
        "DataSource", "Job", "SplitPayload", "SplitPayloadStore", "Stage", "connect", "do_get", "do_put", "errors",
        "foreach_batch", "read", "spark_connect", "write",
    ]  # fmt: skip
    assert set(penstock.__all__) <= set(dir(penstock))
    assert all(getattr(penstock, name) is not None for name in penstock.__all__ if name != "DataSource")


@pytest.mark.spark
def test_the_data_source_is_there_from_spark_4_on() -> None:
    if importlib.util.find_spec("pyspark.sql.datasource"):
        assert penstock.DataSource.name() == "penstock"
    else:
        with pytest.raises((AttributeError, ImportError), match=r"4\.0"):
            _ = penstock.DataSource


def test_an_unknown_attribute_is_named() -> None:
    name = "conect"
    with pytest.raises(AttributeError, match=r"penstock.*conect"):
        getattr(penstock, name)


def test_import_penstock_is_light() -> None:
    loaded = run("import penstock, sys; print(*sorted({name.split('.')[0] for name in sys.modules}))", ROOT).split()
    assert "penstock" in loaded
    assert not {"pyarrow", "numpy", *HEAVY} & set(loaded)


def test_connect_pulls_in_pyarrow_and_nothing_else() -> None:
    loaded = run("import penstock, sys; penstock.connect; print(*sys.modules)", ROOT).split()
    assert {"penstock.client.client", "pyarrow.flight"} <= set(loaded)
    assert not set(HEAVY) & {name.split(".")[0] for name in loaded}


def test_spark_connect_needs_no_pyspark() -> None:
    loaded = run("import penstock, sys; penstock.spark_connect; print(*sys.modules)", ROOT).split()
    assert {"penstock.spark.session", "grpc", "pyarrow"} <= set(loaded)
    assert not {"pandas", "pyspark"} & {name.split(".")[0] for name in loaded}


def test_a_pipeline_pulls_in_neither_spark_nor_ray() -> None:
    loaded = run("import penstock.pipeline, sys; print(*sys.modules)", ROOT).split()
    assert not set(HEAVY) & {name.split(".")[0] for name in loaded}


@pytest.mark.parametrize("module", ["pipeline.ray_data", "pipeline.ray_pool", "store.ray_objects"])
def test_without_ray_a_module_says_how_to_get_it(module: str) -> None:
    code = f"import sys; sys.modules['ray'] = None\ntry: import penstock.{module}\n"
    assert "pip install 'penstock-flight[ray]'" in run(code + "except ImportError as error: print(error)", ROOT)


@pytest.mark.process
@pytest.mark.timeout(300)  # two builds on a busy machine
def test_the_wheel_and_the_sdist_hold_the_package(tmp_path: Path) -> None:
    """Both hold every module, the licence and py.typed, no tests and no links; the wheel imports from a folder."""
    source, dist, unpacked = checkout(tmp_path / "source", links=True), tmp_path / "dist", tmp_path / "unpacked"
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), str(source)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel], [sdist] = dist.glob("*.whl"), dist.glob("*.tar.gz")
    package = {f"penstock/{file}" for file in python_files()} | {"penstock/py.typed", "penstock/spark/NOTICE"}
    package |= {str(file.relative_to(ROOT)) for file in (ROOT / "penstock/spark").glob("*.binpb")}

    with tarfile.open(sdist) as tar:
        in_sdist = {name.partition("/")[2] for name in tar.getnames()}
    assert package | {"LICENSE", "pyproject.toml", "README.md", "docs/operating.md"} <= in_sdist
    assert not {"tests", *LINKS} & {name.split("/")[0] for name in in_sdist}

    with zipfile.ZipFile(wheel) as archive:
        in_wheel = set(archive.namelist())
        archive.extractall(unpacked)
    info = {name for name in in_wheel if name.split("/")[0].endswith(".dist-info")}
    assert in_wheel - info == package
    assert any(name.endswith("/LICENSE") for name in info)
    metadata = (unpacked / next(name for name in info if name.endswith("/METADATA"))).read_text()
    assert "\nName: penstock-flight\n" in metadata
    assert not re.findall(r"\]\((?!https?:)", metadata), "the index has none of the files that these lead to"
    assert run(IMPORT_ALL, unpacked, *importable()) == str(unpacked / "penstock" / "__init__.py")
