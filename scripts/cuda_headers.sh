#!/bin/bash
# Makes CUDA's headers usable with a newer C library: scripts/cuda_headers.sh TOOLKIT/include DIR
# From glibc 2.41 on <math.h> declares sinpi and cospi, from 2.42 on rsqrt, all noexcept in C++. CUDA 12.8 and 12.9
# declare all of them without, CUDA 13.0 rsqrt, and nvcc refuses: "exception specification is incompatible". DIR gets
# a copy of the headers with noexcept; -I DIR comes before nvcc's own. The toolkit stays as it is.
set -euo pipefail
from=$(cd "$1" && pwd -P) to=$2
rm -rf "$to"
mkdir -p "$to/crt"
# Copies, for gcc takes the directory that a link of a system header leads to for that of the header if it is shorter.
find -L "$from" -maxdepth 1 -type f -exec cp -L -t "$to" {} +
cp -L "$from"/crt/* "$to/crt/"
for path in "$from"/*/; do
    name=$(basename "$path")
    [[ $name == crt ]] || ln -s "$path" "$to/$name"
done
for name in math_functions.h math_functions.hpp; do
    sed -E -e 's/^(extern .*\<(sinpi|cospi|rsqrt)f?\((double|float) x\)).*;/\1 noexcept(true);/' \
        -e 's/^(__func__\((double|float) (sinpi|cospi|rsqrt)f?\((const )?(double|float) a\)\))/\1 noexcept(true)/' \
        "$from/crt/$name" >"$to/crt/$name"
done
