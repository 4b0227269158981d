#!/usr/bin/env bash
# Makes sure the servers that tests or benchmarks start for themselves are installed: services.sh test|bench
# Nothing is started here: whoever needs a server starts its own, in a temporary folder, and stops it.
set -euo pipefail
here=$(dirname "$0")

postgres() {
    # A PostgreSQL that came from elsewhere is as good as Debian's.
    if command -v postgres >/dev/null && command -v initdb >/dev/null; then return; fi
    if compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; then return; fi
    "$here/debian-packages.sh" postgresql
}

case "${1:-}" in
    test) ;; # no test needs a server yet
    bench) postgres ;;
    *) echo "usage: $0 test|bench" >&2; exit 2 ;;
esac
