#!/usr/bin/env bash
# Installs the named Debian packages that are missing; the one place where this project touches the system.
# Does nothing, needs no root and no network when all are there.
set -euo pipefail

missing=()
for package in "$@"; do
    if ! dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed'; then
        missing+=("$package")
    fi
done
[ "${#missing[@]}" -gt 0 ] || exit 0

give_up() {
    echo "laneway: $1" >&2
    echo "         Needed: ${missing[*]}. Install them with your system's package tool, then run the same command again." >&2
    exit 1
}
command -v apt-get >/dev/null || give_up "this system has no apt-get, so system packages cannot be installed here."

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    # -n: a password prompt would hang a run without a terminal.
    if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        as_root=(sudo -n)
    else
        give_up "installing system packages needs root, and this user is not (sudo without a password does not work either)."
    fi
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
quietly() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive "$@" >"$log" 2>&1 </dev/null
}
echo "laneway: installing ${missing[*]}"
# The package list may be old or absent; it is only fetched when an install without it failed.
if ! quietly apt-get -o DPkg::Lock::Timeout=120 install -y --no-install-recommends "${missing[@]}"; then
    if ! quietly apt-get update || ! quietly apt-get -o DPkg::Lock::Timeout=120 install -y --no-install-recommends "${missing[@]}"; then
        tail -n 20 "$log" >&2
        give_up "apt-get could not install them; its last words are above."
    fi
fi
