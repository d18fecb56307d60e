# SPDX-License-Identifier: Apache-2.0
# Sourced by the checks of the Debian packages, which set `folder` to the packages' folder and `work` to a scratch
# directory: output, installation, and an older version to upgrade from.
# shellcheck shell=bash
older_version=0.1.9-1~test
export DEBIAN_FRONTEND=noninteractive

say() { printf -- '-- %s\n' "$*"; }
fail() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}
require_bare_root() {
  [ "$(id -u)" -eq 0 ] || fail "needs root"
  ! command -v weightfs >/dev/null || fail "this system has weightfs already; use a root that is thrown away"
}

# deb NAME prints the package of that name.
deb() { compgen -G "$folder/$1_*.deb" || fail "$folder has no package $1"; }
version_of() { dpkg-deb --field "$1" Version; }
installed_version() { dpkg-query -W -f '${Version}' "$1" 2>/dev/null; }
apt_get() {
  apt-get "$1" -qy --no-install-recommends "${@:2}" >"$work/apt" 2>&1 || { cat "$work/apt" && fail "apt-get $*"; }
}

# relabel PACKAGE [COMMAND...] writes the package with the older version into $work/older. The command can change its
# files: it runs in the unpacked package.
relabel() {
  local tree=$work/tree new package=$1
  shift
  new=$(version_of "$package")
  rm -rf "$tree"
  dpkg-deb --raw-extract "$package" "$tree"
  for file in control shlibs; do
    [ ! -e "$tree/DEBIAN/$file" ] || sed -i "s/${new//./\\.}/$older_version/g" "$tree/DEBIAN/$file"
  done
  [ $# -eq 0 ] || (cd "$tree" && "$@")
  mkdir -p "$work/older"
  dpkg-deb --build --root-owner-group -Znone "$tree" "$work/older" >/dev/null
}
