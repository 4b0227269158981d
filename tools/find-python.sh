#!/usr/bin/env bash
# Prints the newest Python >= 3.11 that can make a virtual environment, or says what is missing. PYTHON=... overrides.
# Of several of the same version the fastest: one built without its compiler's profiling, as version managers do it
# unless told otherwise, costs a broker a tenth of its speed.
set -euo pipefail

usable() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

can_make_venv() {
    "$1" -c 'import ensurepip, venv' >/dev/null 2>&1
}

executable() {
    "$1" -c 'import os, sys; print(os.path.realpath(sys.executable))'
}

# How long a bit of everyday work takes, in µs of processor time: the least of some.
work_us() {
    "$1" -c '
from time import process_time_ns as now
def work():
    table = {}
    for number in range(10_000):
        text = "%d" % number
        table[text] = [number, text.encode()]
def timed():
    began = now()
    work()
    return now() - began
print(min(timed() for _ in range(10)) // 1000)'
}

fastest() {
    [ $# -gt 1 ] || { echo "$1"; return; }
    for python in "$@" "$@" "$@"; do # in turns: a busy moment meets all of them
        echo "$(work_us "$python") $python"
    done | sort -n | head -n 1 | cut -d ' ' -f 2-
}

without_venv=""
for name in ${PYTHON:-python3.14 python3.13 python3.12 python3.11 python3 python}; do
    found=()
    while read -r candidate; do
        usable "$candidate" || continue
        if can_make_venv "$candidate"; then
            found+=("$(executable "$candidate")")
        else
            without_venv=${without_venv:-$candidate}
        fi
    done < <(type -ap "$name")
    if [ "${#found[@]}" -gt 0 ]; then
        mapfile -t found < <(printf '%s\n' "${found[@]}" | sort -u)
        fastest "${found[@]}"
        exit 0
    fi
done

if [ -n "$without_venv" ]; then
    # Debian ships venv in a package of its own.
    version=$("$without_venv" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    "$(dirname "$0")/debian-packages.sh" "python$version-venv" >&2
    can_make_venv "$without_venv" || { echo "laneway: $without_venv still cannot make a virtual environment" >&2; exit 1; }
    executable "$without_venv"
    exit 0
fi

echo "laneway: no Python 3.11 or newer was found${PYTHON:+ at PYTHON=$PYTHON}." >&2
echo "         Install one (Debian: apt-get install python3 python3-venv), or name one: make setup PYTHON=/path/to/python3" >&2
exit 1
