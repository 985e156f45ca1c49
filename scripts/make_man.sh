#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints a tool's man page, made of its --help. Usage: make_man.sh BUILD TOOL
set -euo pipefail
build=$1
tool=$2
case $tool in
ds_train) does="train a language model driven by a DeepSpeed configuration" see="ds_config ds_data ds_generate" ;;
ds_generate) does="generate text from a model folder or a training checkpoint" see="ds_serve ds_train" ;;
ds_serve) does="serve models over HTTP to OpenAI's clients" see="ds_generate ds_train ds_ssh" ;;
ds_data) does="tokenize text to indexed data, inspect it, and check rows of training data" see="ds_train" ;;
ds_checkpoint) does="list, inspect, verify and convert checkpoints" see="ds_train zero_to_fp32" ;;
zero_to_fp32) does="write the fp32 weights of a checkpoint" see="ds_checkpoint ds_train" ;;
deepspeed) does="start the ranks of a job, here or on many hosts" see="ds_train ds_ssh ds_elastic" ;;
ds_accel_test) does="check an accelerator, one of the library's or a shared object" see="ds_report ds_train" ;;
ds_ssh) does="run a command on every host of a hostfile" see="deepspeed" ;;
ds_quantize) does="write a GGUF file as a Hugging Face folder, or either as a GGUF file" see="ds_generate ds_train ds_checkpoint" ;;
ds_encode) does="vectors and classes of texts by an encoder" see="ds_train ds_generate" ;;
ds_elastic) does="show the batch and numbers of ranks of an elastic configuration" see="deepspeed ds_config" ;;
ds_bench) does="time the collectives of a job by message size, or a server under load" see="deepspeed ds_report ds_serve" ;;
ds_io) does="time asynchronous reads and writes of files" see="ds_nvme_tune ds_bench" ;;
ds_nvme_tune) does="search the settings of asynchronous file I/O for a disk" see="ds_io ds_config" ;;
ds_plan) does="tell what a run costs, before it runs" see="ds_train ds_config" ;;
ds_report) does="tell what this machine has and what the installation can do with it" see="ds_train" ;;
*) echo "unknown tool $tool" >&2; exit 2 ;;
esac
cat << EOF
.Dd November 21, 2026
.Dt ${tool^^} 1
.Os
.Sh NAME
.Nm $tool
.Nd $does
.Sh SYNOPSIS
.Nm
.Op Ar flags
.Sh DESCRIPTION
What
.Nm
.Fl Fl help
says:
.Bd -literal
EOF
"$build/$tool" --help | sed -e 's/\\/\\e/g' -e 's/^\([.'"'"']\)/\\\&\1/'
echo ".Ed"
echo ".Sh SEE ALSO"
set -- $see
while [ $# -gt 1 ]; do
    echo ".Xr $1 1 ,"
    shift
done
echo ".Xr $1 1"
