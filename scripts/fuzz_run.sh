#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/fuzz_run.sh FOLDER SECONDS JOBS [NAME…]: runs the fuzzers that scripts/check-long.sh built in FOLDER
# (all, or those named), SECONDS each, JOBS at a time. It needs no compiler: FOLDER may come from another
# machine. A fuzzer's corpus is kept in FOLDER/corpus and grows from run to run; findings are in
# FOLDER/findings, logs in FOLDER/NAME.log. An input that takes longer than
# FUZZ_TIMEOUT seconds (default 20; more on a busy machine) is a finding. The exit status is 1 when there was one.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 3 ] || { sed -n '3,7s/^# //p' "$0" >&2; exit 2; }
out=$1 seconds=$2 jobs=$3
shift 3
mkdir -p "$out/findings" "$out/seeds" "$out/corpus"

# One seed of several files, separated as the fuzzers do: NAME-OF-SEED FILE…; "-" is an absent file.
parts() {
    local to=$1 first=1 file
    shift
    for file in "$@"; do
        [ "$first" = 1 ] || printf '%%%%%%%%'
        first=0
        [ "$file" = - ] || cat "$file"
    done > "$to"
}

# The golden files that a fuzzer begins with, as files of FOLDER/seeds/NAME.
seeds() {
    local name=$1 to=$out/seeds/$1 golden=test/golden n=0 file line
    rm -rf "$to"
    mkdir -p "$to"
    case $name in
    fuzz_config)
        while read -r line; do
            n=$((n + 1))
            printf '%s' "$line" > "$to/$n"
        done < <(sed -nE 's/^\{"config": (.*), "deepspeed": .*/\1/p' $golden/config/corpus.jsonl)
        ;;
    fuzz_body)
        printf '\000{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c","content":"b"}],"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":{}}}}],"tool_choice":"auto","chat_template_kwargs":{"enable_thinking":true},"max_completion_tokens":3,"stream":true,"stream_options":{"include_usage":true}}' > "$to/chat"
        printf '\1{"model":"m","prompt":["a",[1,2]],"n":2,"best_of":3,"seed":1,"temperature":0.5,"top_p":0.9,"top_k":3,"min_p":0.1,"typical_p":0.5,"logit_bias":{"97":5},"stop":["e"],"stop_token_ids":[1],"min_tokens":1,"max_tokens":3,"logprobs":2,"dry_multiplier":1,"dry_base":2,"dry_sequence_breakers":["."],"presence_penalty":1,"frequency_penalty":1,"repetition_penalty":1.5,"ignore_eos":true,"echo":false,"structured_outputs":{"regex":"[ab]+"},"user":"u"}' > "$to/completion"
        printf '\1{"model":"m","prompt":"a","use_beam_search":true,"n":2,"length_penalty":2,"early_stopping":"never","mirostat":0}' > "$to/beams"
        printf '\1{"model":"m","prompt":"a","mirostat":2,"mirostat_tau":3,"mirostat_eta":0.1,"response_format":{"type":"json_schema","json_schema":{"name":"s","schema":{"type":"object"},"strict":false}}}' > "$to/mirostat"
        printf '\2{"model":"m","instructions":"b","input":[{"role":"user","content":[{"type":"input_text","text":"a"}],"id":"i","status":"x"}],"text":{"format":{"type":"json_schema","name":"s","schema":{"const":1}}},"max_output_tokens":2,"store":true}' > "$to/response"
        printf '\3{"prompts":["a","b"],"max_length":20,"max_new_tokens":3,"min_new_tokens":1,"do_sample":false,"return_full_text":true,"temperature":1}' > "$to/mii"
        printf '\4{"model":"m","input":[[1,2],"a"],"encoding_format":"base64","dimensions":3}' > "$to/vectors"
        printf '\5{"messages":[{"role":"system","content":"a","name":"n"}],"tools":[],"chat_template_kwargs":{}}' > "$to/messages"
        ;;
    fuzz_guide)
        while IFS=$'\t' read -r n line; do
            file=$((${file:-0} + 1))
            printf "\\x0$n%b" "$line" > "$to/$file"
        done < $golden/serve/forms.tsv
        ;;
    fuzz_jinja) cp $golden/data/templates/* "$to" ;;
    fuzz_graph_text) cp $golden/ir/*.txt "$to" ;;
    fuzz_gguf) cp $golden/gguf/*.gguf $golden/io/*.gguf "$to" ;;
    fuzz_parquet) cp $golden/data/rows/*.parquet "$to" ;;
    fuzz_rows)
        printf '\001[{"a":"b\\"]"},\n{"a":[{}]}]' > "$to/json"
        printf '\002a,b\n"x""\n",NA\n1\n' > "$to/csv"
        ;;
    fuzz_manifest) cp $golden/ckpt/*/ds_manifest.json "$to" ;;
    fuzz_safetensors) cp $golden/io/*.safetensors "$to" ;;
    fuzz_torch)
        cp $golden/io/torch/*/*.bin "$to"
        for file in "$to"/*.bin; do # the pickle alone, behind 0xff
            command -v unzip > /dev/null || break
            n=$((n + 1))
            { printf '\377' && unzip -p "$file" '*/data.pkl'; } > "$to/pickle$n"
        done
        ;;
    fuzz_tokenizer_json) cp $golden/data/tokenizer-*.json "$to" ;;
    fuzz_model_config)
        for file in $golden/*/*/config.json; do
            n=$((n + 1))
            cp "$file" "$to/$n"
        done
        ;;
    fuzz_safetensors_index)
        file=$golden/io/llama_sharded
        parts "$to/two" <(sed -E 's/model-0000[1-3]-of-00006/a/; s/model-0000[4-6]-of-00006/b/' \
            $file/model.safetensors.index.json) $file/model-00001-of-00006.safetensors $file/model-00004-of-00006.safetensors
        parts "$to/texts" <(printf '{"weight_map":{"x":"a.safetensors"}}') $golden/io/texts.safetensors
        ;;
    fuzz_tokenizer_files)
        printf '{"a":0,"b":1,"ab":2,"\\u0120":3,"\\u0120a":4,"<s>":5,"</s>":6,"<|im_end|>":7}' > "$to/.vocab"
        printf '#version: 0.2\na b\n\\u0120 a\n' | sed 's/\\u0120/\xc4\xa0/' > "$to/.merges"
        printf '{"tokenizer_class":"GPT2Tokenizer","bos_token":"<s>","eos_token":{"content":"</s>"},"pad_token":"a","add_bos_token":true,"add_prefix_space":true,"model_max_length":1e30,"chat_template":[{"name":"default","template":"x"}]}' > "$to/.config"
        printf '{"eos_token_id":[6,7],"bos_token_id":5,"pad_token_id":0}' > "$to/.generation"
        parts "$to/small" "$to/.vocab" "$to/.merges"
        for file in $golden/data/templates/*.jinja; do
            n=$((n + 1))
            parts "$to/$n" "$to/.vocab" "$to/.merges" "$to/.config" "$to/.config" "$to/.generation" "$file"
        done
        rm "$to"/.[a-z]*
        ;;
    fuzz_spiece)
        for line in $(head -n 1 $golden/data/tokenizer_folders_spiece.jsonl | grep -oE '"model":"[^"]*"' | cut -d'"' -f4); do
            n=$((n + 1))
            { printf "\\x0$((n % 4))"; tr -- '-_' '+/' <<< "$line" | base64 -d; } > "$to/$n"
        done
        printf '\x00\x0a\x0e\x0a\x05<unk>\x15\x00\x00\x00\x00\x18\x02\x0a\x06\x0a\x01a\x15\x00\x00\x80\xbf\x12\x02\x18\x02' > "$to/small"
        ;;
    fuzz_tokenizer_encode | fuzz_jsonl)
        for file in README.md $golden/data/templates/llama3.jinja; do
            for n in 0 1 2 3 4 5 6 7 8 9; do
                { printf "\\x0${n}"; head -c 700 "$file"; } > "$to/$n-$(basename "$file")"
            done
        done
        [ "$name" = fuzz_jsonl ] || return 0
        for n in 0 1 2 3 4 5 6; do
            for file in 00 01 04 08 0c 10 14 18 1c 20 24 28 2c 30; do
                {
                    printf "\\x0${n}\\x$file"'{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi \\ud83d\\ude00"},{"role":"assistant","content":"Yes?"}]}\n'
                    printf '{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"},{"role":"assistant","content":"<think>\\nd</think>\\n\\ne"}]}\n'
                } > "$to/chat-$n-$file"
            done
            printf "\\x0${n}\\x02"'{"prompt":"ab c","completion":" d\\u00e9\\n"}\n\n{"prompt":"","completion":""}\r\n' > "$to/pair-$n"
            printf "\\x0${n}\\x02"'{"text":"once upon a time"}\n{"text":""}\n{"text":"\\u0000 x"}\n' > "$to/text-$n"
            printf "\\x0${n}\\x0f"'plain text\nof two lines\n' > "$to/txt-$n"
        done
        n=0
        while read -r line; do
            n=$((n + 1))
            { printf '\x02\x04'; printf '%s\n' "$line"; } > "$to/schema-$n"
        done < <(sed -nE 's/^\{"of":"[^"]*","line":(.*),"schema":"[^"]*","ids".*/\1/p' $golden/data/schemas.json)
        ;;
    fuzz_indexed)
        for file in $golden/data/indexed/*.idx; do
            [ ! -e "$file" ] || parts "$to/$(basename "$file")" "$file" "${file%.idx}.bin"
        done
        {
            printf 'MMIDIDX\0\0\1\0\0\0\0\0\0\0\6\2\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0'
            printf '\3\0\0\0\2\0\0\0\0\0\0\0\0\0\0\0\6\0\0\0\0\0\0\0'
            printf '\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0%%%%%%%%abcdefghij'
        } > "$to/small"
        ;;
    fuzz_loader_cursor)
        for n in 0 1 2 3 4 5; do
            file=43 line=1
            [ $((n % 2)) = 0 ] || { file=12 line=3; }
            printf "\\x0$n"'{"epoch":1,"next":2,"seed":5,"seq_length":6,"n_tokens":%d,"n_documents":%d,"shuffle":true}' \
                $file $line > "$to/$n"
        done
        ;;
    fuzz_host_state)
        printf "{\"global_steps\":2,\"skipped_steps\":1,\"global_samples\":8,\"lr_override\":-1}%%%%%%%%{\"seed\":\"7\"}" > "$to/two"
        { cat "$to/two"; printf "%%%%%%%%{\"scale\":65536.0,\"iteration\":5,\"last_overflow\":-1,\"hysteresis_left\":2}"; } > "$to/three"
        ;;
    fuzz_flags)
        printf '%s\n' --model m --data a.jsonl b.txt --epochs=3 --learning_rate 2e-5 --deepspeed_config d.json --output o --resume > "$to/1"
        printf '%s\n' --model_config c.json --tokenizer bytes --data t.txt --eval_fraction 0.1 --steps 100 --deepspeed_config d --bf16 true --seed 3 --threads 2 > "$to/2"
        printf '%s\n' --model m --data a.jsonl --output o > "$to/3" # without a configuration and a length
        ;;
    esac
}

# The words of the seeds and of test/fuzz/NAME.dict, for mutations.
words() {
    local name=$1 extra=test/fuzz/$1.dict
    { find "$out/seeds/$name" -type f -exec grep -aohE '[A-Za-z_][A-Za-z_0-9.]{2,40}' {} + || true; } | sort | uniq -c |
        sort -rn | head -n 600 | sed -E 's/^ *[0-9]+ (.*)/"\1"/'
    [ ! -e "$extra" ] || cat "$extra"
}

fuzz() {
    local name=$1 dictionary=()
    seeds "$name"
    words "$name" > "$out/seeds/$name.dict"
    [ ! -s "$out/seeds/$name.dict" ] || dictionary=("-dict=$out/seeds/$name.dict")
    mkdir -p "$out/corpus/$name"
    if "$out/$name" -max_total_time="$seconds" -timeout="${FUZZ_TIMEOUT:-20}" -rss_limit_mb=4096 -print_final_stats=1 \
        "${dictionary[@]}" -artifact_prefix="$out/findings/$name-" "$out/corpus/$name" "$out/seeds/$name" \
        > "$out/$name.log" 2>&1; then
        echo "$name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$out/$name.log") inputs, no finding"
    else
        echo "$name: FINDING"
        grep -vE '^#[0-9]+[[:space:]]+(NEW|REDUCE|pulse|RELOAD)' "$out/$name.log" | tail -n 40
        return 1
    fi
}

names=("$@")
if [ $# = 0 ]; then
    for file in "$out"/fuzz_*; do
        [ ! -x "$file" ] || [ -d "$file" ] || names+=("$(basename "$file")")
    done
fi
[ ${#names[@]} -gt 0 ] || { echo "fuzz_run: no fuzzer in $out" >&2; exit 1; }
export -f fuzz seeds parts words
export out seconds
printf '%s\n' "${names[@]}" | xargs -P "$jobs" -I{} bash -euo pipefail -c 'fuzz {}'
