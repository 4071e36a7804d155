#!/bin/bash
# dev/bench/gpu_hour.py with the libraries that dev/pack_deps.sh packed, where there are any:
#   [DEPS=DIR] dev/bench/gpu_hour.sh PART [options]     default: deps
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
deps=${DEPS:-deps}
if [[ -f $deps/env.sh ]]; then
    . "$deps/env.sh" || echo "gpu_hour: $deps/env.sh failed; going on without it" >&2
fi
exec python3 -u dev/bench/gpu_hour.py "$@"
