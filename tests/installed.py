"""Programs of others that tests run beside the server, each in a folder of its own, in the versions that are named.

They are kept in the user's cache, because a version never changes.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def from_npm(package: str, version: str) -> Path:
    """A folder whose node_modules has a package of Node.js."""
    for program in ("node", "npm"):
        assert shutil.which(program), f"{program} is missing; tools/services.sh test installs it"
    command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", f"{package}@{version}"]
    name = re.sub(r"\W+", "-", package).strip("-")
    return _installed(f"{name}-{version}", command, {"package.json": '{"private": true}'})


def from_pypi(name: str, requirements: Sequence[str]) -> Path:
    """A folder to be put on the path, with these packages and no others: what they need must be among them."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", "packages"]
    return _installed(name, [*pip, *requirements], {}) / "packages"


def _installed(name: str, command: Sequence[str], files: dict[str, str]) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "laneway" / name
    folder.mkdir(parents=True, exist_ok=True)
    done = folder / "done"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test process may be installing it at this moment
        if not done.exists():
            for path, text in files.items():
                (folder / path).write_text(text)
            found = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)
            assert found.returncode == 0, found.stderr
            done.touch()
    return folder
