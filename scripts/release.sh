#!/usr/bin/env bash
# Builds the release: target/release-archive/berth-VERSION-x86_64-linux.tar.gz with its sha256, and the symbols apart.
#
# The program is linked against the oldest glibc that is supported, by zig's linker, and runs on any newer one: Debian 10,
# Ubuntu 18.10, RHEL 8 and later. It is not static: libcuda and NVML are loaded by dlopen, which needs the host's glibc.
# Needs cargo, binutils, tar, and cargo-zigbuild with zig, which are fetched by pip into target/zig where they lack.
set -euo pipefail
cd "$(dirname "$0")/.."

GLIBC_MAX=2.28
ZIGBUILD="cargo-zigbuild==0.24.0 ziglang==0.17.1"

machine="$(uname -m)"
target="$machine-unknown-linux-gnu"
version="$(cargo metadata --no-deps --format-version 1 | sed -E 's/.*"name":"planner","version":"([^"]+)".*/\1/')"
name="berth-$version-$machine-linux"
targets="${CARGO_TARGET_DIR:-target}"
out="$targets/release-archive"
stage="$out/$name"

if ! command -v cargo-zigbuild >/dev/null; then
    python3 -m venv "$targets/zig"
    # shellcheck disable=SC2086 # two packages
    "$targets/zig/bin/pip" install --quiet $ZIGBUILD
    PATH="$(realpath "$targets")/zig/bin:$PATH"
fi
cargo zigbuild --profile dist --locked -p planner --bin berth --target "$target.$GLIBC_MAX"
built="$targets/$target/dist/berth"

# The newest version of glibc's symbols that a program asks for.
newest_glibc() {
    objdump -T "$1" | grep -oE 'GLIBC_[0-9.]+' | sed 's/GLIBC_//' | sort -Vu | tail -n 1
}
newest="$(newest_glibc "$built")"
if [ -z "$newest" ] || [ "$(printf '%s\n' "$newest" "$GLIBC_MAX" | sort -V | tail -n 1)" != "$GLIBC_MAX" ]; then
    echo "release: the program asks for glibc ${newest:-of no version}, more than $GLIBC_MAX" >&2
    exit 1
fi

rm -rf "$out" && mkdir -p "$stage/man" "$stage/completions"
objcopy --only-keep-debug "$built" "$out/$name.debug"
objcopy --strip-debug --add-gnu-debuglink="$out/$name.debug" "$built" "$stage/berth"
"$stage/berth" man --output "$stage/man"
for shell in bash elvish fish powershell zsh; do
    "$stage/berth" completions "$shell" >"$stage/completions/berth.$shell"
done
cp README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT "$stage/"

# The whole way once, by what is shipped.
trial="$(mktemp -d)"
trap 'rm -rf "$trial"' EXIT
XDG_CACHE_HOME="$trial" XDG_STATE_HOME="$trial" "$stage/berth" generate --prompt "a red circle" --output "$trial/trial.png"
test -s "$trial/trial.png"

# The same files make the same archive: no owner, no time of the build.
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$(git log -1 --format=%ct)" -C "$out" -cf - "$name" |
    gzip -n9 >"$out/$name.tar.gz"
rm -r "$stage"
(cd "$out" && sha256sum "$name.tar.gz" "$name.debug" >"$name.sha256")
echo "release: glibc $newest or newer; in $out:"
(cd "$out" && du -h -- *)
