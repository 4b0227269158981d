#!/usr/bin/env bash
# Makes sure the servers and programs that tests or benchmarks start for themselves are installed: services.sh test|bench|pipeline
# Nothing is started here: whoever needs a server starts its own, in a temporary folder, and stops it.
set -euo pipefail
here=$(dirname "$0")

stop_service() {
    local as_root=()
    [ "$(id -u)" -eq 0 ] || as_root=(sudo -n)
    if [ -d /run/systemd/system ]; then
        "${as_root[@]}" systemctl disable --now "$1" >/dev/null 2>&1 || true
    else
        "${as_root[@]}" service "$1" stop >/dev/null 2>&1 || true
    fi
}

postgres() {
    # A PostgreSQL that came from elsewhere is as good as Debian's.
    if command -v postgres >/dev/null && command -v initdb >/dev/null; then return; fi
    if compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; then return; fi
    "$here/debian-packages.sh" postgresql
    # The package starts a server of its own.
    stop_service postgresql
}

rabbitmq() {
    if command -v rabbitmq-server >/dev/null || [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ]; then return; fi
    "$here/debian-packages.sh" rabbitmq-server
    # The package starts a server at the port where Laneway listens; one that was here before is left alone.
    stop_service rabbitmq-server
}

node_js() {
    # Clients for Node.js are among those that AMQP and SQS are tested with.
    if command -v node >/dev/null && command -v npm >/dev/null; then return; fi
    "$here/debian-packages.sh" nodejs npm
}

java_runtime() {
    # Spark runs on Java 17 or newer.
    if command -v java >/dev/null && [ "$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)" -ge 17 ]; then return; fi
    "$here/debian-packages.sh" openjdk-17-jre-headless
}

proxies() {
    # The files in deploy/ are tested with the proxies themselves.
    if command -v haproxy >/dev/null && command -v nginx >/dev/null && compgen -G '/etc/nginx/modules-enabled/*stream*' >/dev/null; then return; fi
    local fresh=()
    for one in haproxy nginx; do command -v "$one" >/dev/null || fresh+=("$one"); done
    "$here/debian-packages.sh" haproxy nginx-light libnginx-mod-stream
    # The packages start them; those that were here before are left alone.
    for one in "${fresh[@]}"; do stop_service "$one"; done
}

prometheus() {
    # Metrics and alerts are tested with Prometheus and Alertmanager themselves.
    if command -v promtool >/dev/null && command -v prometheus >/dev/null && command -v prometheus-alertmanager >/dev/null; then return; fi
    local fresh=()
    for one in prometheus prometheus-alertmanager prometheus-node-exporter; do
        command -v "$one" >/dev/null || fresh+=("$one")
    done
    "$here/debian-packages.sh" prometheus prometheus-alertmanager
    # The packages start them; those that were here before are left alone.
    for one in "${fresh[@]}"; do stop_service "$one"; done
}

case "${1:-}" in
    test)
        node_js
        java_runtime
        proxies
        prometheus
        postgres
        # Sets the wall clock that a tested server sees.
        "$here/debian-packages.sh" libfaketime
        # Its rabbitmqadmin is one of the programs that the management API is tested with; and the tests of AMQP and of the
        # management API can be run against RabbitMQ itself, to see that they ask for what it does.
        rabbitmq
        ;;
    bench) postgres; rabbitmq; java_runtime ;;
    pipeline) java_runtime ;;
    *) echo "usage: $0 test|bench|pipeline" >&2; exit 2 ;;
esac
