"""tools/find-python.sh takes the newest Python, of several builds of it the fastest, and says what is missing.

The Pythons here are scripts that answer what it asks: how fast they are is said, not measured.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "tools" / "find-python.sh"
FAKE = """#!{bash}
case "$2" in
    *ensurepip*) exit {venv} ;;
    *realpath*) echo "$0" ;;
    *process_time*) echo {us} ;;
esac
"""


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """What the script calls, and no Python."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in ("bash", "sort", "head", "cut", "dirname"):
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    return folder


def python(folder: Path, name: str, *, us: int, has_venv: bool = True) -> Path:
    folder.mkdir(exist_ok=True)
    made = folder / name
    made.write_text(FAKE.format(bash=shutil.which("bash"), venv=0 if has_venv else 1, us=us))
    made.chmod(0o755)
    return made


def find(*folders: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": ":".join(map(str, folders)), **more}
    return subprocess.run(
        [shutil.which("bash") or "bash", SCRIPT], env=environment, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("speeds", [(900, 1000), (1000, 900)])
def test_of_several_builds_of_a_version_the_fastest_is_taken(
    tmp_path: Path, tools: Path, speeds: tuple[int, int]
) -> None:
    made = [python(tmp_path / str(us), "python3.12", us=us) for us in speeds]
    python(tmp_path / "older", "python3.11", us=1)
    found = find(*(one.parent for one in made), tmp_path / "older", tools)
    assert (found.stdout, found.stderr) == (f"{made[speeds.index(900)]}\n", "")


def test_one_that_cannot_make_an_environment_is_passed_over(tmp_path: Path, tools: Path) -> None:
    python(tmp_path / "bare", "python3.12", us=1, has_venv=False)
    whole = python(tmp_path / "whole", "python3.12", us=1000)
    assert find(tmp_path / "bare", tmp_path / "whole", tools).stdout == f"{whole}\n"


def test_the_one_that_was_named_is_taken(tmp_path: Path, tools: Path) -> None:
    python(tmp_path / "fast", "python3.12", us=1)
    named = python(tmp_path / "named", "python3.11", us=1000)
    assert find(tmp_path / "fast", tools, PYTHON=str(named)).stdout == f"{named}\n"


def test_without_any_it_says_what_to_do(tools: Path) -> None:
    found = find(tools)
    assert found.returncode == 1 and "no Python 3.11 or newer was found" in found.stderr and "apt-get" in found.stderr
    named = find(tools, PYTHON="/nowhere/python")
    assert named.returncode == 1 and "at PYTHON=/nowhere/python" in named.stderr
