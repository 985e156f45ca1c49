#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: tree
# An installed tree: C and C++ programs build against it by pkg-config and by find_package.
set -euo pipefail
build=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cmake --install "$build" --prefix "$scratch/usr" > "$scratch/log"
cat > "$scratch/use.c" << 'EOF'
#include <deepspeed/deepspeed.h>
#include <stdio.h>
int main(void)
{
    ds_ctx *ctx = NULL;
    if (ds_version() != DS_VERSION || ds_ctx_create(NULL, &ctx) < 0) {
        return 1;
    }
    printf("%s %u\n", ds_status_text(DS_OK), ds_ctx_n_threads(ctx));
    ds_ctx_destroy(&ctx);
    return 0;
}
EOF
PKG_CONFIG_PATH=$(dirname "$(find "$scratch/usr" -name deepspeed.pc)")
export PKG_CONFIG_PATH
libs=$(pkg-config --variable=libdir deepspeed)
# shellcheck disable=SC2046
cc -std=c11 -Wall -Wextra -Werror "$scratch/use.c" $(pkg-config --cflags --libs deepspeed) -o "$scratch/c"
# shellcheck disable=SC2046
c++ -std=c++17 -Wall -Wextra -Werror -x c++ "$scratch/use.c" $(pkg-config --cflags --libs deepspeed) -o "$scratch/cpp"
LD_LIBRARY_PATH=$libs "$scratch/c" | grep -q '^success'
LD_LIBRARY_PATH=$libs "$scratch/cpp" | grep -q '^success'
mkdir "$scratch/app"
cat > "$scratch/app/CMakeLists.txt" << 'EOF'
cmake_minimum_required(VERSION 3.25)
project(app C)
find_package(deepspeed 0.1 REQUIRED)
add_executable(app ../use.c)
target_link_libraries(app PRIVATE deepspeed::deepspeed)
add_executable(app_static ../use.c)
target_link_libraries(app_static PRIVATE deepspeed::deepspeed_static)
EOF
cmake -S "$scratch/app" -B "$scratch/app/build" -DCMAKE_PREFIX_PATH="$scratch/usr" > "$scratch/log"
cmake --build "$scratch/app/build" > "$scratch/log"
"$scratch/app/build/app" | grep -q '^success'
"$scratch/app/build/app_static" | grep -q '^success'
if ldd "$scratch/app/build/app_static" | grep libdeepspeed; then
    echo "FAILED: the program of deepspeed::deepspeed_static needs the shared library"
    exit 1
fi
[ -s "$scratch/usr/share/doc/deepspeed/LICENSE" ] && [ -s "$scratch/usr/share/doc/deepspeed/NOTICE" ]
for page in deepspeed ds_ssh ds_elastic ds_train ds_generate ds_config ds_data ds_checkpoint; do
    [ -s "$scratch/usr/share/man/man1/$page.1" ] && [ -x "$scratch/usr/bin/$page" ]
done
# The accelerator cuda is a component of its own, with its licence, and all of it.
cmake --install "$build" --prefix "$scratch/cuda" --component cuda > "$scratch/log"
parts=$(find "$scratch/cuda" -type f -printf '%f ' 2> /dev/null | tr ' ' '\n' | sort | xargs || true)
wanted=$([ ! -e "$build/libdeepspeed_cuda.so" ] || echo copyright libdeepspeed_cuda.so)
[ "$parts" = "$wanted" ] || { echo "FAILED: the component cuda has \"$parts\", expected \"$wanted\""; exit 1; }
grep -q 'CPACK_DEBIAN_CUDA_PACKAGE_NAME "libdeepspeed-cuda"' "$build/CPackConfig.cmake"
# An installed tool, found by way of PATH, loads the modules that carry ranks over a network, and that of https.
report=$(cd / && PATH=$scratch/usr/bin:$PATH && ds_report)
for module in ucx:UCX mpi_openmpi:"Open MPI" mpi_mpich:MPICH tls:GnuTLS; do
    [ ! -e "$build/libdeepspeed_${module%%:*}.so" ] || grep -qE ": ${module#*:} .* \[OKAY\]" <<< "$report" || {
        echo "FAILED: an installed ds_report does not load ${module#*:}"
        grep -E '^(ranks|https)' <<< "$report"
        exit 1
    }
done
