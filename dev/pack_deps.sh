#!/bin/bash
# Packs the libraries that the trainer and its tests are built with into a folder, for a machine without package access.
#   dev/pack_deps.sh DIR [cuda] [cpu]      default: cuda
#     cuda   cJSON, xxHash, PCRE2, zlib, zstd, cmocka: what train_gpt2cu and the CUDA test programs need besides the CUDA toolkit (0.5 MB)
#     cpu    oneDNN as well: for train_gpt2 (40 MB)
# Run it on a Debian or Ubuntu where they are installed (make deps). Copy DIR to the other machine; there:
#   . DIR/env.sh && make train_gpt2cu
# The other machine needs the same processor architecture and a C library at least as new.
set -euo pipefail

if (($# < 1)) || [[ $1 == -* ]]; then
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2
    exit 2
fi
target=$1 && shift
MADE="made by dev/pack_deps.sh"
if [[ -e $target && ! -d $target ]] || [[ -d $target && -n $(ls -A "$target/") &&
    $(cat "$target/.pack_deps" 2>/dev/null) != "$MADE" ]]; then
    echo "pack_deps: $target has files that are not of pack_deps; name another directory" >&2
    exit 2
fi

packages=()
for group in "${@:-cuda}"; do
    case $group in
    cuda) packages+=(libcjson-dev libxxhash-dev libpcre2-dev zlib1g-dev libzstd-dev libcmocka-dev) ;;
    cpu) packages+=(libcjson-dev libxxhash-dev libpcre2-dev zlib1g-dev libzstd-dev libdnnl-dev) ;;
    *) echo "pack_deps: unknown group '$group'; expected cuda or cpu" >&2 && exit 2 ;;
    esac
done

# A library under the name it is loaded by (libx.so.1, its SONAME), and the name it is linked by (libx.so).
copy_library() {
    local linked loaded
    linked=$(basename "$1")
    loaded=$(readelf -d "$1" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
    cp -L "$1" "$target/lib/${loaded:-$linked}"
    [[ ${loaded:-$linked} == "$linked" ]] || ln -sf "$loaded" "$target/lib/$linked"
}

# Dependencies of a library that do not come with every compiler.
copy_needed() {
    local base='/(libc|libm|libdl|librt|libpthread|libgcc_s|libstdc[+][+]|libgomp)[.]so'
    ldd "$1" | awk -v base="$base" '$2 == "=>" && $3 ~ /^\// && $3 !~ base {print $3}' |
        while read -r needed; do copy_library "$needed"; done
}

mkdir -p "$target/include" "$target/lib"
echo "$MADE" >"$target/.pack_deps" # first: a call that was cut off may be repeated
for package in "${packages[@]}"; do
    if ! files=$(dpkg-query -L "$package" 2>/dev/null); then
        echo "pack_deps: $package is not installed here; run make deps" >&2
        exit 1
    fi
    while read -r file; do
        [[ -f $file ]] || continue
        case $file in
        /usr/include/*)
            inside=${file#/usr/include/}
            inside=${inside#*-linux-gnu/}
            mkdir -p "$target/include/$(dirname "$inside")"
            cp "$file" "$target/include/$inside"
            ;;
        */lib*.so)
            copy_library "$file"
            copy_needed "$file"
            ;;
        esac
    done <<<"$files"
done

cat >"$target/env.sh" <<'ENV'
# . env.sh: compilers find the headers here, the linker and the programs the libraries.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export CPATH="$here/include${CPATH:+:$CPATH}"
export LIBRARY_PATH="$here/lib${LIBRARY_PATH:+:$LIBRARY_PATH}"
export LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
unset here
ENV
echo "packed $(du -sh "$target" | cut -f1) into $target; use it with: . $target/env.sh"
