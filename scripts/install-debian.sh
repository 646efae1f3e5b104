#!/usr/bin/env bash
# install-debian.sh [PROGRAM...]: installs the Debian packages that the tests need beyond Python,
# if they are missing; with programs named, the packages of these names instead.
# Does nothing when everything is there. Needs root only when something is missing.
set -euo pipefail

missing=()  # names of packages
java_major() { java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1; }

if [[ $# -gt 0 ]]; then
    for program; do command -v "$program" >/dev/null || missing+=("$program"); done
else
    if ! command -v java >/dev/null || [[ $(java_major) -lt 17 ]]; then
        missing+=(default-jre-headless) # 17 on Debian 12
    fi
    command -v cc >/dev/null || missing+=(gcc libc6-dev)
    command -v mvn >/dev/null || missing+=(maven)
    command -v promtool >/dev/null || missing+=(prometheus)
    command -v prometheus-alertmanager >/dev/null || missing+=(prometheus-alertmanager)
    command -v chromium >/dev/null || missing+=(chromium)
    command -v kubectl >/dev/null || missing+=(kubernetes-client)
    command -v systemd-analyze >/dev/null || missing+=(systemd)
fi

if [[ ${#missing[@]} -eq 0 ]]; then
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "install-debian: the tests need ${missing[*]} (names of Debian packages)." \
        "Install them with the tool of this system." >&2
    exit 2
fi
if [[ $EUID -ne 0 ]]; then
    echo "install-debian: not root. Run once: sudo apt-get install --no-install-recommends" \
        "${missing[*]}" >&2
    exit 2
fi

echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
policy=
cleanup() {
    rm -f "$log"
    if [[ -n $policy ]]; then rm -f "$policy"; fi
}
trap cleanup EXIT

# The packages of Prometheus start servers when they are installed; the tests start their own.
# A policy-rc.d that answers 101 forbids starting services; one that is already there stays.
if [[ ! -e /usr/sbin/policy-rc.d ]]; then
    policy=/usr/sbin/policy-rc.d
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi

install() {
    apt-get install --yes --quiet --no-install-recommends \
        -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "${missing[@]}" >"$log" 2>&1
}

# Old package lists name files that are gone: refresh them only when that happens.
if ! install; then
    apt-get update --quiet >>"$log" 2>&1 || true
    if ! install; then
        tail -n 30 "$log" >&2
        echo "install-debian: apt-get could not install ${missing[*]}; see above." >&2
        exit 2
    fi
fi

if [[ " ${missing[*]} " == *" prometheus"* ]] && command -v systemctl >/dev/null; then
    for service in prometheus prometheus-node-exporter prometheus-alertmanager; do
        systemctl disable --now --quiet "$service.service" >/dev/null 2>&1 || true
    done
fi
