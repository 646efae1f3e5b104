#!/bin/sh
# make-venv.sh DIR [PYTHON]: a virtual environment of Python 3.11, 3.12 or 3.13 in DIR.
set -eu

venv=${1:?name the folder to make}
wanted=${2:-}

is_suitable() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' >/dev/null 2>&1
}

python=
for candidate in ${wanted:-python3 python3.13 python3.12 python3.11 /usr/bin/python3}; do
    if is_suitable "$candidate"; then
        python=$candidate
        break
    fi
done

if [ -z "$python" ]; then
    found=$("${wanted:-python3}" --version 2>&1 | head -n 1)
    echo "make-venv: Python 3.11, 3.12 or 3.13 is needed; ${wanted:-python3} is: ${found:-not there}." >&2
    echo "  Install one (Debian 12: apt-get install python3 python3-venv) and name it:" >&2
    echo "  make install PYTHON=/path/to/python3.12" >&2
    exit 2
fi

if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
    echo "make-venv: $python has no venv module. Install it" \
        "(Debian: apt-get install python3-venv), then run make again." >&2
    exit 2
fi

echo "making $venv with $("$python" --version)"
if ! "$python" -m venv --clear "$venv"; then
    rm -rf "$venv"
    echo "make-venv: $python could not make $venv; see above." >&2
    exit 2
fi
