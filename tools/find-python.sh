#!/usr/bin/env bash
# Prints the newest Python >= 3.11 that can make a virtual environment, or says what is missing. PYTHON=... overrides.
set -euo pipefail

usable() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

can_make_venv() {
    "$1" -c 'import ensurepip, venv' >/dev/null 2>&1
}

without_venv=""
for candidate in ${PYTHON:-python3.14 python3.13 python3.12 python3.11 python3 python}; do
    usable "$candidate" || continue
    if can_make_venv "$candidate"; then
        "$candidate" -c 'import sys; print(sys.executable)'
        exit 0
    fi
    without_venv=${without_venv:-$candidate}
done

if [ -n "$without_venv" ]; then
    # Debian ships venv in a package of its own.
    version=$("$without_venv" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    "$(dirname "$0")/debian-packages.sh" "python$version-venv" >&2
    can_make_venv "$without_venv" || { echo "laneway: $without_venv still cannot make a virtual environment" >&2; exit 1; }
    "$without_venv" -c 'import sys; print(sys.executable)'
    exit 0
fi

echo "laneway: no Python 3.11 or newer was found${PYTHON:+ at PYTHON=$PYTHON}." >&2
echo "         Install one (Debian: apt-get install python3 python3-venv), or name one: make setup PYTHON=/path/to/python3" >&2
exit 1
