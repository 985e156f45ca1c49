#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: tree
# Man pages say what --help says, and mandoc finds no error in any.
set -euo pipefail
build=$1
serve=""
[ -x "$build/ds_serve" ] && serve=ds_serve # where libmicrohttpd is installed
for tool in deepspeed ds_accel_test ds_ssh ds_elastic ds_train ds_generate $serve ds_data ds_checkpoint zero_to_fp32 ds_encode ds_report ds_bench ds_plan ds_io ds_nvme_tune; do
    if ! "$DS_SOURCE_DIR/scripts/make_man.sh" "$build" "$tool" | diff -u "$DS_SOURCE_DIR/man/$tool.1" -; then
        echo "man/$tool.1 is old: run scripts/make_man.sh BUILD $tool > man/$tool.1" >&2
        exit 1
    fi
done
# No line is wider than 80 letters, and a row of a table that is wrapped goes on under its second column.
for tool in deepspeed ds_ssh ds_elastic ds_train ds_generate $serve ds_data ds_checkpoint zero_to_fp32 ds_encode ds_report ds_bench ds_plan ds_io \
    ds_nvme_tune ds_config; do
    if "$build/$tool" --help | LC_ALL=C.UTF-8 grep -E '^.{81,}'; then
        echo "$tool --help has lines that are too long" >&2
        exit 1
    fi
done
"$build/ds_checkpoint" --help | grep -A1 '^  export DIR OUT' | grep -qx '                             weights'
mandoc -T lint -W error "$DS_SOURCE_DIR"/man/*.1
