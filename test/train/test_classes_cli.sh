#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Classes of texts and of words: a small BERT is trained on both by ds_train, from a folder without such a head too; ds_encode reads what was
# learnt; the same weights at every ZeRO stage; rows that are wrong are refused by their place. Usage: test_classes_cli.sh BUILD
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
# A text is "yes" where it has an x; a word is a vowel or not, or has no class.
awk 'BEGIN {srand(4)
    for (i = 0; i < 2000; ++i) {
        text = words = tags = ""; label = "no"; n = 3 + int(rand() * 6)
        for (k = 0; k < n; ++k) {
            w = substr("abcdefghijklmnopqrst", 1 + int(rand() * 20), 1)
            if (rand() < 0.08) {w = "x"; label = "yes"}
            text = text (k ? " " : "") w; words = words (k ? ", " : "") "\"" w "\""
            tags = tags (k ? ", " : "") (rand() < 0.1 ? -100 : w ~ /[aeio]/ ? 1 : 0)
        }
        printf "{\"text\": \"%s\", \"label\": \"%s\"}\n", text, label > "texts.jsonl"
        printf "{\"tokens\": [%s], \"ner_tags\": [%s]}\n", words, tags > "words.jsonl"
        print text > "text.txt"
    }}'
bert_folder bert text.txt
config() { # FILE STAGE
    cat > "$1" <<JSON
{"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}}, "zero_optimization": {"stage": $2}}
JSON
}
common="--seq_length 32 --seed 7"
losses() { sed -nE 's/.*"eval_loss":([0-9.e-]+).*/\1/p' "$1.loss.jsonl"; }
weights() {
    "$build/ds_checkpoint" export "$1" "$1.model" --overwrite > /dev/null
    sha256sum < "$1.model/model.safetensors"
}

# shellcheck disable=SC2086
"$build/ds_train" --model_config bert/config.json --tokenizer bert --data text.txt $common --objective mlm --steps 5 --output base > base.log 2>&1 ||
    fail "mlm" base.log
for stage in 0 1 2 3; do
    config $stage.json $stage
    # shellcheck disable=SC2086
    "$build/deepspeed" --num_gpus 2 "$build/ds_train" --model base --data texts.jsonl $common --threads 1 --deepspeed_config $stage.json --steps 4 \
        --objective classes --labels no yes --lr_scheduler_type none --output stage$stage > stage.log 2>&1 || fail "stage $stage" stage.log
    [ "$(weights stage$stage)" = "$(weights stage0)" ] || fail "stage $stage differs from 0"
done
learn() { # NAME DATA FLAGS
    local name=$1 data=$2
    shift 2
    # shellcheck disable=SC2086
    "$build/ds_train" --model base --data "$data" $common --learning_rate 3e-3 --micro_batch 8 --steps 120 --eval_interval 60 --eval_fraction 0.1 \
        --output "$name" --metrics "$name.loss.jsonl" "$@" > "$name.log" 2>&1 || fail "$name" "$name.log"
    losses "$name" | awk '{last = $1} END {exit !(NR >= 2 && last < 0.1)}' || fail "$name: loss $(losses "$name" | xargs)" "$name.log"
}
learn texts texts.jsonl --objective classes --labels no yes
learn words words.jsonl --objective tags --num_labels 2 --column_map tags=ner_tags
# an adapter beside the same model, which has no pooler yet, so that it is trained and saved, too
if "$build/ds_train" --model base --data texts.jsonl $common --steps 1 --objective classes --labels no yes --lora 8 --output drawn > drawn.log 2>&1; then
    fail "a frozen pooler that nobody would keep is accepted"
fi
grep -q 'lack bert.pooler.dense.*modules_to_save' drawn.log || fail "another error" drawn.log
learn beside texts.jsonl --objective classes --labels no yes --lora 8 --modules_to_save pooler
grep -q '"SEQ_CLS"' beside/adapter_config.json || fail "its task" beside/adapter_config.json
tail -n 200 texts.jsonl > some.jsonl
"$build/ds_encode" --model base --adapter beside --file some.jsonl > said.txt 2> said.log || fail "ds_encode --adapter" said.log
paste <(sed -E 's/.*"label": "([a-z]+)".*/\1/' some.jsonl) <(sed -E 's/^\{"label":"LABEL_([01])".*/\1/; s/^0$/no/; s/^1$/yes/' said.txt) |
    awk '{n++; right += $1 == $2} END {exit !(n == 200 && right >= 196)}' || fail "the adapter does not say what was learnt" said.txt
"$build/ds_checkpoint" merge base beside merged > merge.log || fail "merge" merge.log
# an embedding that the adapter has with more rows takes the place of the model's
# shellcheck disable=SC2086
"$build/ds_train" --model base --data texts.jsonl $common --steps 1 --objective classes --labels no yes --lora 2 \
    --modules_to_save pooler word_embeddings --output rows > rows.log 2>&1 || fail "an adapter with an embedding" rows.log
python3 - rows/adapter_model.safetensors <<'END'
import json, struct, sys
text = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", text[:8])[0]
head, data, out = json.loads(text[8:8 + n]), text[8 + n:], b""
for name, t in head.items():
    if name != "__metadata__":
        part = data[t["data_offsets"][0]:t["data_offsets"][1]]
        if "word_embeddings" in name:
            part += part[:4 * 3 * t["shape"][1]]
            t["shape"][0] += 3
        t["data_offsets"] = [len(out), len(out) + len(part)]
        out += part
head = json.dumps(head).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(head)) + head + out)
END
"$build/ds_checkpoint" merge base rows longer > merge.log || fail "merge of an embedding with more rows" merge.log
"$build/ds_encode" --model longer "a b x" > longer.txt 2> longer.log || fail "a merged embedding with more rows" longer.log
"$build/ds_encode" --model merged --file some.jsonl > merged.txt 2> said.log || fail "ds_encode of the merged model" said.log
cmp <(cut -c1-18 said.txt) <(cut -c1-18 merged.txt) || fail "merged, it says another class"
grep -q '"BertForSequenceClassification"' texts/config.json || fail "config.json has another architecture" texts/config.json
grep -q '"BertForTokenClassification"' words/config.json || fail "config.json has another architecture" words/config.json
tail -n 200 texts.jsonl > some.jsonl
"$build/ds_encode" --model texts --file some.jsonl > said.txt 2> said.log || fail "ds_encode" said.log
paste <(sed -E 's/.*"label": "([a-z]+)".*/\1/' some.jsonl) <(sed -E 's/^\{"label":"([a-z]+)".*/\1/' said.txt) |
    awk '{n++; right += $1 == $2} END {exit !(n == 200 && right >= 196)}' || fail "ds_encode does not say what was learnt" said.txt
[ "$("$build/ds_encode" --model words "a b i x" | tr -d '\n')" = '{"tokens":["a","b","i","x"],"labels":["LABEL_1","LABEL_0","LABEL_1","LABEL_0"]}' ] ||
    fail "classes of words: $("$build/ds_encode" --model words "a b i x")"
# special tokens in a text are those tokens, as transformers takes them
[ "$("$build/ds_encode" --model words "a[SEP]b" | tr -d '\n')" = '{"tokens":["a","b"],"labels":["LABEL_1","LABEL_0"]}' ] ||
    fail "special tokens: $("$build/ds_encode" --model words "a[SEP]b")"
# a text's vector does not depend on the text before it; length 1
"$build/ds_encode" --model base --normalize "a b" "c d e" "a b" > vectors.txt || fail "vectors"
[ "$(sed -n 1p vectors.txt)" = "$(sed -n 3p vectors.txt)" ] || fail "a vector depends on the text before"
sed -n 2p vectors.txt | tr -cs '0-9.e-' '\n' | awk 'NF && $1 != "e" {s += $1 * $1} END {exit !(s > 0.9999 && s < 1.0001)}' || fail "a vector is not of length 1"

refused() { # WORDS PROGRAM FLAGS
    local words=$1
    shift
    if "$@" > refused.log 2>&1; then
        fail "accepted: $*"
    fi
    grep -q -- "$words" refused.log || fail "refused without \"$words\": $*" refused.log
}
bad() { # WORDS ROW
    echo "$2" > bad.jsonl
    refused "$1" "$build/ds_train" --model base --data bad.jsonl --seq_length 32 --steps 1 --objective "${3:-classes}" --labels no yes
}
bad 'bad.jsonl:1: class 2 is not below 2' '{"text": "a", "label": 2}'
bad '"maybe" is no name of a class' '{"text": "a", "label": "maybe"}'
bad 'expected a text and its "label"' '{"text": "a"}'
bad '"text" and "sentence2" are texts of two kinds of rows' '{"text": "a", "sentence2": "b", "label": 1}'
bad 'lists of the same length' '{"tokens": ["a", "b"], "tags": [1]}' tags
bad '"tokens" must be words; found a number' '{"tokens": ["a", 3], "tags": [1, 0]}' tags
train="$build/ds_train --data texts.jsonl --seq_length 32 --steps 1"
refused "how many classes there are" $train --model base --objective classes
refused "a name is there twice" $train --model base --objective classes --labels a a
refused "labels and --num_labels are of classification" $train --model base --objective mlm --labels a b
sed 's/"no"/0/; s/"yes"/1/' texts.jsonl > texts-numbers.jsonl
sed 's/ner_tags/tags/' words.jsonl > words-numbers.jsonl
refused "plain text has no classes" "$build/ds_train" --model base --data text.txt --seq_length 32 --steps 1 --objective classes --labels a b
refused "was not trained for this task" "$build/ds_encode" --model base --task classes a
for key in sentence2 hypothesis; do
    echo "{\"text\": \"a\", \"$key\": \"b\"}" > pair.jsonl
    refused "\"text\" and \"$key\" are texts of two kinds" "$build/ds_encode" --model base --file pair.jsonl
done
refused "gpt2 is no encoder" "$build/ds_encode" --model "$DS_SOURCE_DIR/test/golden/parity/gpt2" a
# a head whose names do not say whether it is of texts or of words
sed 's/"vocab_size": [0-9]*/"vocab_size": 300/' "$DS_SOURCE_DIR/test/golden/model_config/modernbert/config.json" > modern.json
for task in classes:texts:Sequence tags:words:Token; do
    IFS=: read -r objective rows class <<< "$task"
    "$build/ds_train" --model_config modern.json --tokenizer bytes --objective "$objective" --num_labels 2 --data "$rows-numbers.jsonl" \
        --seq_length 64 --steps 1 --output "modern-$objective" > modern.log 2>&1 || fail "ModernBERT, $objective" modern.log
    grep -q "\"ModernBertFor${class}Classification\"" "modern-$objective/config.json" || fail "ModernBERT's class of $objective"
done
echo "classes: stages give the same weights; loss of texts $(losses texts | xargs), of words $(losses words | xargs)"
