#!/bin/bash
# nvcc, of whose object the PTX for each architecture is a part: ccache keeps one file of a call, and refuses --keep.
#     NVCC=/usr/local/cuda/bin/nvcc llmc/cuda/nvcc.sh OPTIONS -c FILE.cu -o FILE.o
#     llmc/cuda/nvcc.sh --unpack FILE.o     moves the PTX to FILE.compute_NN.ptx beside it
# Other calls, such as ccache's for the preprocessed text, are nvcc's own.
set -eu

if [[ $1 == --unpack ]]; then
    for section in $(objdump -h "$2" | grep -o '\.compute_[0-9]*\.ptx'); do
        objcopy --dump-section "$section=${2%.o}$section" --remove-section "$section" "$2"
    done
    exit
fi

object='' is_compilation=false newest='' previous=''
for word in "$@"; do
    [[ $previous != -o ]] || object=$word
    [[ $word != -c ]] || is_compilation=true
    [[ $word =~ compute_([0-9]+) ]] && newest=${BASH_REMATCH[1]}
    previous=$word
done
$is_compilation || exec "$NVCC" "$@"

kept=$(mktemp -d)
trap 'rm -rf "$kept"' EXIT
"$NVCC" "$@" --keep --keep-dir "$kept"
sections=()

for ptx in "$kept"/*.ptx; do
    # With one architecture nvcc leaves its name out.
    [[ $ptx =~ (\.compute_[0-9]+\.ptx)$ ]] || BASH_REMATCH=("" ".compute_$newest.ptx")
    # Not the folder of this clone: ccache may give the object to another.
    sed -i -E "s|^(\s*\.file\s+[0-9]+ \")$PWD/(\./)?|\1|" "$ptx"
    sections+=(--add-section "${BASH_REMATCH[1]}=$ptx")
done
objcopy "${sections[@]}" "$object"
