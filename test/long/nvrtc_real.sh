#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Sources of custom operators compiled by NVIDIA's own NVRTC, wherever it is found (DS_NVRTC_PATH: its folder, or several with
# colons between them; else the system's, the toolkit's, and Python packages nvidia-cuda-nvrtc): those of the tests and that of examples/10. No driver
# and no GPU is needed, and none is asked. Usage: nvrtc_real.sh BUILD
set -euo pipefail
build=$(cd "$1" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$build/10_cuda_operator" --source > "$scratch/softplus.cu"
mkdir "$scratch/standin"
cp -P "$build"/standin/*.so* "$scratch/standin/"
rm "$scratch"/standin/libnvrtc*
folders=()
IFS=: read -r -a asked <<< "${DS_NVRTC_PATH:-}"
for folder in "${asked[@]}" "$(ldconfig -p | sed -n 's|.*=> \(.*\)/libnvrtc.so.1[23]$|\1|p' | head -n 1)" /usr/local/cuda/lib64; do
    if [ -n "$folder" ] && compgen -G "$folder/libnvrtc.so.1[23]" > /dev/null; then
        folders+=("$(readlink -f "$folder")")
    fi
done
while read -r folder; do
    folders+=("$folder")
done < <(python3 -c 'import glob, site
for packages in site.getsitepackages():
    for path in glob.glob(packages + "/nvidia/*/lib/libnvrtc.so.1[23]"):
        print(path.rsplit("/", 1)[0])' 2> /dev/null || true)
[ ${#folders[@]} -gt 0 ] || { echo "there is no libnvrtc.so.13 or .12 (DS_NVRTC_PATH)"; exit 77; }
while read -r folder; do
    echo "$folder"
    LD_LIBRARY_PATH="$folder" "$build/nvrtc_compile" "$scratch/softplus.cu" softplus softplus_backward
    # The whole way, to the stand-in of the driver, which has no such device: it refuses the code.
    code=0
    said=$(env -u DS_CUDA_STANDIN LD_LIBRARY_PATH="$folder:$scratch/standin" DS_MODULE_PATH="$scratch/standin" DS_CUDA_CACHE="$scratch/cache" "$build/10_cuda_operator" cuda 2>&1) || code=$?
    grep -q "operator softplus: the code of its kernel plain: CUDA_ERROR_INVALID_IMAGE" <<< "$said" && [ "$code" = 1 ] || { echo "exit $code: $said"; exit 1; }
    [ "$(find "$scratch/cache" -name '*.cubin' | wc -l)" = 1 ] || { echo "nothing was kept"; exit 1; }
    rm -r "$scratch/cache"
done < <(printf '%s\n' "${folders[@]}" | sort -u)
