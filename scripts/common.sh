# SPDX-License-Identifier: Apache-2.0
# Sourced by the other scripts: the project's root, output functions, and the search for cmake and torch.
# shellcheck shell=bash
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
  bold=$'\e[1m' green=$'\e[32m' red=$'\e[31m' dim=$'\e[2m' plain=$'\e[0m'
else
  bold='' green='' red='' dim='' plain=''
fi

# step TEXT prints a headline. fail TEXT prints one line on standard error and exits.
step() { printf '%s==> %s%s\n' "$bold$green" "$*" "$plain"; }
fail() {
  printf '%s%s: %s%s\n' "$red" "$(basename "$0")" "$*" "$plain" >&2
  exit 1
}

# Prints the comment at the head of the script.
usage() { sed -n '2,/^# shellcheck/{/^# \(shellcheck\|SPDX\)/d;s/^# \{0,1\}//;p}' "$0"; }

# Prints the first cmake of at least 3.25: the one in PATH, or the system's.
find_cmake() {
  local candidate version
  for candidate in "$(command -v cmake || true)" /usr/bin/cmake; do
    [ -x "$candidate" ] || continue
    version=$("$candidate" --version 2>/dev/null | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p') || continue
    if [ -n "$version" ] && printf '3.25\n%s\n' "$version" | sort -VC; then
      printf '%s\n' "$candidate"
      return
    fi
  done
  fail "no cmake 3.25 or newer; run scripts/setup"
}

# Prints the first Python that has torch: WEIGHTFS_PYTHON, the active virtual environment, .venv, PATH, the system.
find_torch() {
  local candidate
  for candidate in "${WEIGHTFS_PYTHON:-}" "${VIRTUAL_ENV:+$VIRTUAL_ENV/bin/python}" "$root/.venv/bin/python" \
    python3 /usr/bin/python3; do
    [ -z "$candidate" ] || ! "$candidate" -c 'import sys, torch; print(sys.executable)' 2>/dev/null || return 0
  done
  return 1
}

# find_pythons [--headers] prints the Pythons from 3.9 on, one of each version, oldest first: the system's, those in
# PATH, and pyenv's. Each line has the version and the path. With --headers, only those that can build modules.
find_pythons() {
  local candidate version kind path
  local -A found=()
  # Not versions before their release, builds without the global lock, and virtual environments.
  local program='
import ensurepip, os, sys, sysconfig, venv
headers = os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
if (sys.version_info >= (3, 9) and sys.version_info.releaselevel == "final" and sys.prefix == sys.base_prefix
        and not sysconfig.get_config_var("Py_GIL_DISABLED") and sys.implementation.name == "cpython"):
    print("%d.%d" % sys.version_info[:2], "--headers" if headers else "none", sys.executable)'
  for candidate in /usr/bin/python3 python3 $(compgen -c python3. | grep -xE 'python3\.[0-9]+' | sort -u) \
    "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python3; do
    read -r version kind path < <("$candidate" -c "$program" 2>/dev/null) || continue
    [ "${1:-$kind}" = "$kind" ] && [ -z "${found[$version]:-}" ] || continue
    found[$version]=$path
  done
  for version in $(printf '%s\n' "${!found[@]}" | sort -V); do printf '%s %s\n' "$version" "${found[$version]}"; done
}
