# SPDX-License-Identifier: Apache-2.0
# Sourced by the other scripts: where the project is, how it speaks, which cmake it uses.
# shellcheck shell=bash
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
  bold=$'\e[1m' green=$'\e[32m' red=$'\e[31m' dim=$'\e[2m' plain=$'\e[0m'
else
  bold='' green='' red='' dim='' plain=''
fi

# step TEXT: prints a headline. fail TEXT: prints one line on standard error and exits.
step() { printf '%s==> %s%s\n' "$bold$green" "$*" "$plain"; }
fail() {
  printf '%s%s: %s%s\n' "$red" "$(basename "$0")" "$*" "$plain" >&2
  exit 1
}

# Prints the comment at the head of the script.
usage() { sed -n '2,/^# shellcheck/{/^# \(shellcheck\|SPDX\)/d;s/^# \{0,1\}//;p}' "$0"; }

# The first cmake of at least 3.25: the one in PATH, else the system's.
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
  fail "no cmake of 3.25 or newer; run scripts/setup"
}

# The first Python that has torch, of: WEIGHTFS_PYTHON, the active virtual environment, .venv, PATH, the system.
find_torch() {
  local candidate
  for candidate in "${WEIGHTFS_PYTHON:-}" "${VIRTUAL_ENV:+$VIRTUAL_ENV/bin/python}" "$root/.venv/bin/python" \
    python3 /usr/bin/python3; do
    [ -z "$candidate" ] || ! "$candidate" -c 'import sys, torch; print(sys.executable)' 2>/dev/null || return 0
  done
  return 1
}
