# Shared by scripts/test and scripts/interop: an environment for tests, and steps with a verdict.
# Sourced, not run. Before that: cd to the repository's root; set $program to the name of the script.

# Settings of a user's shell must change neither the tests nor what they import.
unset PYTHONPATH PYTHONHOME PYTHONSTARTUP PYTHONWARNINGS PYTHONUNBUFFERED
# pytest keeps the test modules that it has rewritten: else each worker would do that in each run.
unset PYTHONDONTWRITEBYTECODE
unset LOG_LEVEL CONCERTINO_LOG_FORMAT CONCERTINO_TRACE CONCERTINO_ORPHAN
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PYRIGHT_PYTHON_IGNORE_WARNINGS=1

# Tests whose subject is a NATS server: scripts/interop runs them, scripts/test does not.
BROKERS="
    tests/docs/test_many_machines_page.py
    tests/http/test_machine_peers.py
    tests/nats/test_bucket.py
    tests/nats/test_connection.py
    tests/nats/test_used_states.py
    tests/orchestra/test_cluster_events.py
    tests/orchestra/test_cluster_offers.py
    tests/orchestra/test_nats_buckets.py
    tests/orchestra/test_nats_faults.py
    tests/orchestra/test_nats_permissions.py
"

began=$(date +%s)
failed=
results=

# choose_python [PATH]: set $python, $version and $venv. Without PATH, the oldest Python found.
choose_python() {
    python=${1:-}
    if [ -z "$python" ]; then
        python=$(scripts/find-python) || exit 2
        python=${python#* }
    fi
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])') || {
        echo "$program: $python does not run" >&2
        exit 2
    }
    venv=$PWD/.venv-test-$version
}

# checksum FILE...: one checksum of files and whole folders, by name and content.
checksum() {
    find "$@" -type f ! -name '*.pyc' -exec cksum {} + | sort | cksum
}

# Create the environment, and install requirements and the package. Each is done again only when
# what it depends on has changed; a stamp in the environment tells.
install() {
    if ! "$venv/bin/python" -c '' 2>/dev/null; then
        "$python" -m venv --clear "$venv" || return
    fi

    wanted=$(checksum pyproject.toml scripts/constraints.txt)
    if [ "$(cat "$venv/requirements.stamp" 2>/dev/null)" != "$wanted" ]; then
        "$venv/bin/python" scripts/requirements.py >"$venv/requirements.txt" || return
        "$venv/bin/python" -m pip install --quiet --upgrade \
            -r "$venv/requirements.txt" -c scripts/constraints.txt || return
        echo "$wanted" >"$venv/requirements.stamp"
    fi

    # As users install it: not editable, bytecode compiled. So start-up times are true.
    wanted=$(checksum pyproject.toml README.md LICENSE src docs)
    if [ "$(cat "$venv/package.stamp" 2>/dev/null)" != "$wanted" ]; then
        "$venv/bin/python" -m pip install --quiet --no-deps --no-build-isolation --force-reinstall . || return
        echo "$wanted" >"$venv/package.stamp"
    fi
}

# step NAME COMMAND...: run it, say how long it took, remember whether it failed.
step() {
    name=$1
    shift
    printf -- '--- %s\n' "$name"
    start=$(date +%s)
    if "$@"; then outcome=ok; else outcome=FAILED; failed="$failed, $name"; fi
    printf -- '    %s: %s, %d s\n' "$name" "$outcome" $(($(date +%s) - start))
}

# tests NAME ARGUMENT...: run pytest as a step, and keep its last line for the verdict.
tests() {
    step "$1" run_pytest "$@"
}

run_pytest() {
    name=$1
    shift
    { python -m pytest "$@" 2>&1; echo $? >"$venv/pytest.status"; } | tee "$venv/pytest.log"
    results="$results
    $name: $(tail -n 1 "$venv/pytest.log")"
    return "$(cat "$venv/pytest.status")"
}

# Print how it went, with the last line of each pytest run, and exit.
verdict() {
    seconds=$(($(date +%s) - began))
    if [ -n "$failed" ]; then
        printf '=== %s FAILED on Python %s after %d s: %s%s\n' \
            "$program" "$version" "$seconds" "${failed#, }" "$results"
        exit 1
    fi
    printf '=== %s passed on Python %s in %d s%s\n' "$program" "$version" "$seconds" "$results"
    exit 0
}
