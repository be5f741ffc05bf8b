#!/usr/bin/env bash
# What only a GPU can show, by one command in under 8 minutes: docs/cuda.md tells how. Python 3 alone is needed where the
# programs were packed before (`scripts/gpu-check.sh --pack`), and cargo where they were not.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v python3 >/dev/null; then
    echo "gpu-check: there is no python3" >&2
    exit 2
fi
exec python3 scripts/gpu_check "$@"
