# Sourced by the scripts that make virtual environments: messages, a Python, and a CPU build of torch.
# They set `venv` (the directory), `constraints` (the file of pins) and `stamp` (what it was made from).
# shellcheck shell=bash

say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }
fail() {
    printf 'Error: %s\n' "$@" >&2
    exit 2
}

# The first of the candidates that is new enough and can make environments; DRAFTCONV_PYTHON replaces them all.
find_python() {
    local candidate without_venv="" candidates=("$@")
    if [ -n "${DRAFTCONV_PYTHON:-}" ]; then
        candidates=("$DRAFTCONV_PYTHON")
    fi
    for candidate in "${candidates[@]}"; do
        "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
        if "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
        without_venv=${without_venv:-$candidate}
    done
    if [ -n "$without_venv" ]; then
        fail "$without_venv cannot make virtual environments: its venv or ensurepip module is missing." \
            "On Debian and Ubuntu: sudo apt install $(basename "$without_venv")-venv"
    fi
    if [ -n "${DRAFTCONV_PYTHON:-}" ]; then
        fail "DRAFTCONV_PYTHON=$DRAFTCONV_PYTHON does not run, or is older than Python 3.11."
    fi
    fail "no Python >= 3.11 found (tried ${candidates[*]})." \
        "Install one, or name it: DRAFTCONV_PYTHON=/path/to/python $0"
}

pip() { "$venv/bin/python" -m pip --disable-pip-version-check --no-input -qq "$@"; }
would_install() { pip install --dry-run "$@" >/dev/null 2>&1; }

# torch on Linux comes from PyPI with several GB of CUDA libraries that nothing here uses.
install_torch() {
    local torch cpu_index=https://download.pytorch.org/whl/cpu
    torch=$(grep '^torch==' "$constraints")
    if [ "$(uname -s)" = Linux ]; then
        if would_install --no-deps "$torch+cpu"; then
            say "installing $torch (CPU build, from the configured package sources)"
            pip install --no-deps "$torch+cpu"
        elif would_install --no-deps --timeout 10 --retries 0 --index-url "$cpu_index" "$torch"; then
            say "installing $torch (CPU build, from $cpu_index)"
            pip install --no-deps --index-url "$cpu_index" "$torch"
        elif pip install --dry-run --report - "$torch" 2>/dev/null | grep '"name": "nvidia-' >/dev/null; then
            say "no CPU build of torch to be had: $cpu_index does not answer."
            say "installing $torch from the default index with its CUDA libraries: several GB to download"
        fi
    else
        say "installing $torch"
    fi
    pip install --constraint "$constraints" "$torch" # a build that is there stays; what it needs is added
}

# The new environment, or the one that is there and only has to be brought up to date.
make_venv() {
    local python
    if [ -f "$stamp" ] && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        say "bringing $venv up to date"
        rm "$stamp"
    else
        python=$(find_python "$@")
        say "making $venv with $("$python" --version) ($python)"
        "$python" -m venv --clear "$venv"
    fi
    pip install --upgrade --constraint "$constraints" pip
}
