#!/usr/bin/env bash
# Everything that must hold before a change lands: format, lints, all tests. CI runs just this.
set -euo pipefail
cd "$(dirname "$0")/.."
export RUSTDOCFLAGS="${RUSTDOCFLAGS:--D warnings}"
# A first build writes nothing for a later one: most are the only one, in CI or in a fresh clone.
[[ -d target/debug/incremental ]] || export CARGO_INCREMENTAL="${CARGO_INCREMENTAL:-0}"
# A million events of the desk's simulation, and a day of clients: 14 s of one core.
export BERTH_DESK_EVENTS="${BERTH_DESK_EVENTS:-1000000}"
cargo fmt --all --check
if command -v python3 >/dev/null; then
    # Kernels that changed are compiled for every architecture, where NVRTC is: `scripts/compile_kernels.py --install` fetches it.
    python3 scripts/compile_kernels.py --check
    # What is shipped of them is interpreted where it has no record of having passed; numpy is in the CI's environment.
    python="${BERTH_PYTHON:-python3}"
    "$python" scripts/ptx_check.py
    "$python" scripts/ptx_check.py --self-test
    # What NVIDIA's assembler makes of it is a table; where the assembler is not, only whether it is of these kernels is checked.
    python3 scripts/ptxas_facts.py --check
    python3 scripts/ptxas_facts.py --self-test
else
    echo "kernels: not compiled, there is no python3"
fi
cargo clippy --workspace --all-targets --locked -- -D warnings
cargo test --workspace --locked
cargo doc --workspace --no-deps --locked --quiet
