#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Pairs of texts, numbers, many labels and embeddings: a small BERT learns each by ds_train, ds_encode reads what was learnt from rows that it was
# not trained on; embeddings have the same weights at every ZeRO stage; what is wrong is refused. Usage: test_encoder_tasks_cli.sh BUILD
set -euo pipefail
build=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
. "$DS_SOURCE_DIR/test/tools/bert_folder.sh"
cd "$scratch"
fail() {
    echo "FAIL: $1"
    [ ! -e "${2:-}" ] || tail -n 20 "$2"
    exit 1
}
# A pair is "yes" where the second text has an x, whatever the first has; a number is how often x is there, by 2; labels say whether x and y are;
# a question about q and a letter belongs to the answer with d and that letter.
awk 'BEGIN {srand(4)
    letters = "abcdefghijklmnopqrst"
    for (i = 0; i < 1200; ++i) {
        for (t = 0; t < 2; ++t) {
            text[t] = ""; x[t] = y[t] = 0
            for (k = 0; k < 5; ++k) {
                w = substr(letters, 1 + int(rand() * 20), 1)
                if (rand() < 0.15) {w = "x"; x[t]++} else if (rand() < 0.15) {w = "y"; y[t]++}
                text[t] = text[t] (k ? " " : "") w
            }
        }
        to = i < 1100 ? "" : "new-"
        printf "{\"premise\": \"%s\", \"hypothesis\": \"%s\", \"label\": \"%s\"}\n", text[0], text[1], x[1] ? "yes" : "no" > to "pairs.jsonl"
        printf "{\"text\": \"%s\", \"label\": %s}\n", text[0], x[0] / 2 > to "numbers.jsonl"
        printf "{\"text\": \"%s\", \"label\": [%s%s%s]}\n", text[0], x[0] ? "\"x\"" : "", x[0] && y[0] ? ", " : "", y[0] ? "\"y\"" : "" > to "many.jsonl"
        topic = substr(letters, 1 + i % 20, 1)
        printf "{\"query\": \"%s q%s\", \"positive\": \"d%s %s\"}\n", text[0], topic, topic, text[1] > to "topics.jsonl"
        print text[0], text[1], "q" topic, "d" topic > "text.txt"
    }}'
bert_folder bert text.txt
common="--seq_length 32 --seed 7"
"$build/ds_train" --model_config bert/config.json --tokenizer bert --data text.txt --seq_length 32 --objective mlm --steps 1 --output base > base.log 2>&1 ||
    fail "mlm" base.log
learn() { # NAME STEPS FLAGS
    local name=$1 steps=$2
    shift 2
    # shellcheck disable=SC2086
    "$build/ds_train" --model base --data "$name.jsonl" $common --learning_rate 3e-3 --micro_batch 8 --steps "$steps" --output "$name" "$@" > "$name.log" 2>&1 ||
        fail "$name" "$name.log"
    sed -E 's/, "label".*/}/' "new-$name.jsonl" > rows.jsonl
    "$build/ds_encode" --model "$name" --file rows.jsonl > "$name.said" 2> said.log || fail "ds_encode of $name" said.log
}
right() { # NAME WANTED SAID: of how many of the 100 new rows the two expressions give the same
    paste <(sed -E "$2" "new-$1.jsonl") <(sed -E "$3" "$1.said") | awk '{n += $1 == $2} END {print n + 0}'
}
learn pairs 120 --objective classes --labels no yes
pairs=$(right pairs 's/.*"label": "([a-z]+)".*/\1/' 's/^\{"label":"([a-z]+)".*/\1/')
[ "$pairs" -ge 97 ] || fail "pairs: $pairs of 100 are right" pairs.log
learn numbers 150 --objective classes --num_labels 1
grep -q '"problem_type": "regression"' numbers/config.json || fail "config.json has no problem_type" numbers/config.json
numbers=$(paste <(sed -E 's/.*"label": ([0-9.]+).*/\1/' new-numbers.jsonl) <(sed -E 's/.*:([-0-9.e]+)\}\}$/\1/' numbers.said) |
    awk '{s += ($1 - $2) ^ 2; m += $1; q += $1 ^ 2; n++} END {v = q / n - (m / n) ^ 2; print 1 - s / n / v}')
awk "BEGIN {exit !($numbers > 0.9)}" || fail "numbers: R2 $numbers" numbers.log
learn many 300 --objective classes --labels x y --problem_type multi_label_classification
many=$(right many 's/.*"label": (\[.*\]).*/\1/; s/ //' 's/^\{"labels":(\[[^]]*\]).*/\1/')
[ "$many" -ge 97 ] || fail "many labels: $many of 100 are right" many.log

# the nearest of the answers to 20 new questions
learn_topics() { # FLAGS
    # shellcheck disable=SC2086
    "$build/ds_train" --model base --data topics.jsonl $common --learning_rate 3e-3 --micro_batch 16 --steps 150 --output topics --objective embeddings \
        --column_map anchor=query > topics.log 2>&1 || fail "topics" topics.log
}
recall() { # MODEL
    local part
    for part in query positive; do
        head -n 20 new-topics.jsonl | sed -E "s/.*\"$part\": \"([^\"]*)\".*/\1/" > texts.txt
        "$build/ds_encode" --model "$1" --task embedding --pooling mean --normalize --file texts.txt 2> said.log | tr -d '{}[]":a-df-z' | sed 's/^e*//' > "$part.vectors"
    done
    awk -F, 'NR == FNR {for (i = 1; i <= NF; ++i) d[FNR, i] = $i; next}
        {best = -2; for (k = 1; k <= 20; ++k) {s = 0; for (i = 1; i <= NF; ++i) s += $i * d[k, i]; if (s > best) {best = s; at = k}} n += at == FNR}
        END {print n}' positive.vectors query.vectors
}
before=$(recall base)
learn_topics
after=$(recall topics)
[ "$before" -le 8 ] && [ "$after" -ge 18 ] || fail "of 20 new questions $before find their answer before and $after after" topics.log

for stage in 0 1 2 3; do
    cat > $stage.json <<JSON
{"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}}, "zero_optimization": {"stage": $stage}}
JSON
    # shellcheck disable=SC2086
    "$build/deepspeed" --num_gpus 2 "$build/ds_train" --model base --data topics.jsonl $common --threads 1 --deepspeed_config $stage.json --steps 3 \
        --objective embeddings --column_map anchor=query --lr_scheduler_type none --output stage$stage > stage.log 2>&1 || fail "stage $stage" stage.log
    "$build/ds_checkpoint" export stage$stage stage$stage.model --overwrite > /dev/null
    cmp stage0.model/model.safetensors stage$stage.model/model.safetensors || fail "stage $stage differs from 0"
done


# compared with the rows of all ranks: one row a rank is enough, a run of its own, the same at every stage
for stage in 1 3; do
    # shellcheck disable=SC2086
    "$build/deepspeed" --num_gpus 2 "$build/ds_train" --model base --data topics.jsonl $common --threads 1 --deepspeed_config $stage.json --steps 3 \
        --objective embeddings --column_map anchor=query --lr_scheduler_type none --gather_across_devices --output all$stage > stage.log 2>&1 ||
        fail "gathered, stage $stage" stage.log
    "$build/ds_checkpoint" export all$stage all$stage.model --overwrite > /dev/null
done
cmp all1.model/model.safetensors all3.model/model.safetensors || fail "gathered: stage 3 differs from 1"
if cmp -s all1.model/model.safetensors stage1.model/model.safetensors; then fail "--gather_across_devices changes nothing"; fi

refused() { # WORDS FLAGS
    local words=$1
    shift
    if "$build/ds_train" --model base --seq_length 32 --steps 1 "$@" > refused.log 2>&1; then
        fail "accepted: $*"
    fi
    grep -q -- "$words" refused.log || fail "refused without \"$words\": $*" refused.log
}
refused "must be above 1" --data topics.jsonl --objective embeddings --column_map anchor=query --micro_batch 1
refused "must be above 1" --data topics.jsonl --objective embeddings --column_map anchor=query --micro_batch 1 --gather_across_devices
refused "are of --objective embeddings" --data topics.jsonl --objective classes --labels a b --gather_across_devices
refused "not trained; give another --pooling" --data topics.jsonl --objective embeddings --pooling max
refused "are of --objective embeddings" --data topics.jsonl --objective classes --labels a b --scale 3
refused "are of --objective embeddings" --data topics.jsonl --objective classes --labels a b --mini_batch 3
refused "is of --objective classes" --data topics.jsonl --objective mlm --problem_type regression
refused "classes are 2 or more" --data pairs.jsonl --objective classes --labels a --problem_type single_label_classification
refused 'expected "negative", a string' --data topics.jsonl --objective embeddings --column_map anchor=query --negatives 1
# what an adapter learnt stands in the config.json beside it: ds_encode, further training and merging read it there
adapter() { # NAME STEPS FLAGS
    local name=$1 steps=$2
    shift 2
    # shellcheck disable=SC2086
    "$build/ds_train" --model base --data "$name.jsonl" $common --learning_rate 3e-3 --micro_batch 8 --steps "$steps" --objective classes --output "$name.adapter" \
        "$@" > "$name.log" 2>&1 || fail "adapter of $name" "$name.log"
    sed -E 's/, "label".*/}/' "new-$name.jsonl" > rows.jsonl
    "$build/ds_encode" --model base --adapter "$name.adapter" --file rows.jsonl > "$name.said" 2> said.log || fail "ds_encode --adapter of $name" said.log
    "$build/ds_checkpoint" merge base "$name.adapter" "$name.merged" > merge.log 2>&1 || fail "merge of $name" merge.log
    "$build/ds_encode" --model "$name.merged" --file rows.jsonl > "$name.merged.said" 2> said.log || fail "ds_encode of $name, merged" said.log
    cmp <(sed -E 's/(\.[0-9]{3})[0-9]*/\1/g; s/"scores".*//' "$name.said") <(sed -E 's/(\.[0-9]{3})[0-9]*/\1/g; s/"scores".*//' "$name.merged.said") ||
        fail "$name says another thing when it is merged"
}
adapter many 50 --labels x y --problem_type multi_label_classification --lora 8 --modules_to_save pooler
grep -q '"problem_type": "multi_label_classification"' many.merged/config.json || fail "the merged config.json" many.merged/config.json
[ "$(grep -c '^{"labels":\[' many.said)" = "$(grep -c . rows.jsonl)" ] || fail "many labels by an adapter" many.said
grep -q '"1": "y"' many.merged/config.json || fail "merged, the names of classes are the model's" many.merged/config.json
grep -q '^{"labels":\["[xy]"' many.said || fail "ds_encode --adapter has other names of classes" many.said
refused "learnt multi_label_classification" --data many.jsonl --objective classes --labels x y --problem_type regression --adapter many.adapter
refused "learnt other classes, or in another order" --data many.jsonl --objective classes --labels y x --adapter many.adapter
"$build/ds_train" --model base --data many.jsonl $common --learning_rate 1e-3 --micro_batch 8 --steps 2 --objective classes --adapter many.adapter \
    --output many.more > more.log 2>&1 || fail "further training of many labels" more.log
grep -q '"problem_type": "multi_label_classification"' many.more/config.json || fail "what further training learns"
grep -q '"1": "y"' many.more/config.json || fail "further training forgets the names of classes" many.more/config.json
# one label of each text, by an adapter of a model whose config.json says many
cp -r base base.many
sed -i 's/^{/{"problem_type": "multi_label_classification", /' base.many/config.json
# shellcheck disable=SC2086
"$build/ds_train" --model base.many --data pairs.jsonl $common --learning_rate 1e-3 --micro_batch 8 --steps 1 --objective classes --labels no yes --lora 4 --modules_to_save pooler \
    --problem_type single_label_classification --output single.adapter > single.log 2>&1 || fail "one label of each text" single.log
grep -q '"problem_type": "single_label_classification"' single.adapter/config.json || fail "one label: config.json says the model's" single.log
refused "an adapter (--lora) is not built" --data topics.jsonl --objective embeddings --column_map anchor=query --lora 4 --micro_batch 4
echo "of 100 new rows $pairs pairs and $many of many labels are right, numbers have R2 $numbers, $before and then $after of 20 questions find their answer"
