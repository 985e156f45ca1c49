#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ds_data as a newcomer meets it: what it writes whatever the number of threads, what it refuses and
# how, and that an interrupted run leaves nothing.
set -euo pipefail
build=$(cd "$1" && pwd)
source=$DS_SOURCE_DIR
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
data=$build/ds_data
tok=$source/test/golden/data/tokenizer-qwen2.json

fail() {
    echo "$0: $*" >&2
    exit 1
}

# bad CODE TEXT COMMAND…: one line on stderr that holds TEXT, that exit code, no file of the output.
bad() {
    local code=0 want=$1 text=$2
    shift 2
    "$@" > out.log 2> err.log || code=$?
    [ "$code" = "$want" ] || fail "$*: exit code $code, want $want: $(cat err.log)"
    grep -qF -- "$text" err.log || fail "$*: no \"$text\" in: $(cat err.log)"
    [ "$(wc -l < err.log)" = 1 ] || fail "$*: more than a line: $(cat err.log)"
    [ -z "$(find . -name '*out.*' ! -name out.log)" ] || fail "$*: left $(ls -A)"
}

# one text in several parts: the same files from any number of threads
for i in 1 2 3; do cat "$source/data/tinyshakespeare.txt"; done > big.txt
for n in 1 3; do
    "$data" tokenize big.txt --tokenizer "$tok" --output t$n --threads $n > /dev/null
done
cmp t1.bin t3.bin
cmp t1.idx t3.idx
"$data" inspect t3 --documents 0 | grep -q '^t3.idx: 1 documents, ' || fail "inspect takes a prefix"
printf 'hello\n' > a.txt
"$data" tokenize a.txt --tokenizer bytes --output a > /dev/null
"$data" inspect a.bin --tokenizer bytes | grep -qx hello || fail "inspect prints the text"

# refusals
: > empty.txt
: > a.docx
mkdir folder
cp a.txt folder/one.txt
printf '{"text":"hi"}' > folder/two.jsonl
: > folder/README.md
"$data" tokenize folder --tokenizer bytes --output f > out.log 2> err.log
grep -q '^f.bin, f.idx: 2 documents, ' out.log || fail "a folder: $(cat out.log)"
grep -q 'folder: 2 data files; 1 other files are left out: README.md' err.log || fail "left out: $(cat err.log)"
"$data" tokenize 'folder/*.txt' --tokenizer bytes --output p | grep -q ' 1 documents, ' || fail "a pattern"
printf '{"text":"a"}\n{"messages":[]}\n' > chat.jsonl
printf '{"text":"a"}\n{"text":\n' > broken.jsonl
bad 2 'tokenize needs files' "$data" tokenize --output out
bad 2 'expected the command' "$data" frobnicate
bad 2 'known by the ending' "$data" tokenize a.docx --tokenizer bytes --output out
bad 2 'a.bin: indexed data is tokenized already' "$data" tokenize a.bin --tokenizer bytes --output out
bad 2 'inspect reads indexed data' "$data" inspect a.txt
bad 1 'gone.bin' "$data" inspect gone
bad 1 'no-*.txt: no file has this name, nor matches it' "$data" tokenize 'no-*.txt' --tokenizer bytes --output out
bad 1 'gone.txt' "$data" tokenize gone.txt --tokenizer bytes --output out
bad 1 'no/such' "$data" tokenize a.txt --tokenizer bytes --output no/such/out
bad 1 'empty.txt: no text' "$data" tokenize empty.txt --tokenizer bytes --output out
bad 1 'chat.jsonl:2: a prompt or messages' "$data" tokenize chat.jsonl --tokenizer bytes --output out
bad 1 'broken.jsonl:2: column' "$data" tokenize broken.jsonl --tokenizer bytes --output out
bad 2 'end token' "$data" tokenize a.txt --tokenizer bytes --append_eos --output out
(ulimit -f 100 && bad 1 'out.bin' "$data" tokenize big.txt --tokenizer bytes --output out)

# check: a table of what rows there are, also of preferences
printf '%s\n' '{"prompt":"a","chosen":"b","rejected":"c"}' '{"content":"abc","id":1}' '{"content":7}' '{"instruction":"x","output":"y"}' \
    '{"prompt":"a","completion":"b","label":true}' > rows.jsonl
"$data" check rows.jsonl a.txt --tokenizer bytes --column_map text=content --skip_bad 1 > out.log 2> err.log || fail "check: $(cat err.log)"
printf '%s\n' rows.jsonl 'schema rows tokens in the loss' 'text 1 3 3' 'Alpaca 1 142 1' 'preference 1 4 2' 'unpaired preference 1 2 1' \
    'bad, left out 1' a.txt 'schema rows tokens in the loss' 'text 1 6 6' > want.log
sed -E 's/^ +//; s/ +/ /g; /^Preferences are trained on with/d' out.log | diff want.log - || fail "check prints another table"
grep -qF 'rows.jsonl:3: left out: "content" must be a string; found a number' err.log || fail "check names the bad row: $(cat err.log)"
grep -qF 'rows.jsonl:4: "instruction" and "output" are put into Alpaca' err.log || fail "check says what Alpaca's rows become: $(cat err.log)"
# Alpaca by the chat template, where there is one, is the chat that it stands for
echo '{"system":"s","instruction":"x","input":"z","output":"y","history":[["a","b"]]}' > alpaca.jsonl
echo '{"messages":[{"role":"system","content":"s"},{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"x\nz"},{"role":"assistant","content":"y"}]}' > chat.jsonl
for how in auto template stanford; do
    "$data" check alpaca.jsonl --tokenizer bytes --chat_template chatml --alpaca $how 2> $how.log | sed -E '1,2d; s/Alpaca  /messages/' > $how.out
done
"$data" check chat.jsonl --tokenizer bytes --chat_template chatml 2> err.log | sed 1,2d | diff -w - template.out || fail "Alpaca by the template is not the chat"
cmp auto.out template.out || fail "auto is not the template"
! cmp -s auto.out stanford.out || fail "stanford is the template"
grep -qF 'are a user'"'"'s message and its answer in the chat template' auto.log || fail "check does not say that the template is used"
bad 2 '--alpaca template needs a chat template' "$data" check alpaca.jsonl --tokenizer bytes --alpaca template
rm -f alpaca.jsonl chat.jsonl ./*.out auto.log template.log stanford.log
printf '{"text":"a"}\n{"text":7}\n{"text":"b"}\n' > some.jsonl
"$data" tokenize some.jsonl --tokenizer bytes --output some --skip_bad 1 2> err.log | grep -q '^1 bad rows were left out' || fail "tokenize counts bad rows"
bad 1 'rows.jsonl:1: a prompt or messages' "$data" tokenize rows.jsonl --tokenizer bytes --output out
bad 2 'check needs files and --tokenizer' "$data" check rows.jsonl
bad 2 '--column_map txt=a: expected FIELD=COLUMN' "$data" check rows.jsonl --tokenizer bytes --column_map txt=a
rm -f out.log err.log want.log some.*

# a pipe without a writer is not waited for
mkfifo pipe.txt pipe.jsonl pipe
mkdir piped
cp "$tok" piped/tokenizer.json
mkfifo piped/tokenizer_config.json
bad 1 'pipe.txt: it is a device or pipe' timeout 5 "$data" tokenize pipe.txt --tokenizer bytes --output out
bad 1 'pipe.jsonl: it is a device or pipe' timeout 5 "$data" tokenize pipe.jsonl --tokenizer bytes --output out
bad 1 'pipe: it is a device or pipe' timeout 5 "$data" tokenize a.txt --tokenizer pipe --output out
bad 1 'tokenizer_config.json: it is a device or pipe' timeout 5 "$data" tokenize a.txt --tokenizer piped --output out

# a signal ends a text that is read as a whole, in the middle of it
sed -E '0,/"normalizer": *null/s//"normalizer": {"type": "Strip", "strip_left": true, "strip_right": true}/' "$source/test/golden/data/tokenizer-gpt2.json" > strip.json
grep -q '"Strip"' strip.json || fail "the tokenizer has no normalizer to replace"
for i in $(seq 40); do cat big.txt; done > whole.txt
mkdir ended
(cd ended && exec "$data" tokenize ../whole.txt --tokenizer ../strip.json --output out --threads 1) > out.log 2> err.log &
pid=$!
sleep 0.5
since=$(date +%s%N)
kill -TERM $pid
code=0
wait $pid || code=$?
[ $code = 130 ] || fail "SIGTERM in a whole text: exit code $code: $(cat err.log)"
[ $((($(date +%s%N) - since) / 1000000)) -lt 1000 ] || fail "SIGTERM in a whole text was heeded late"
[ -z "$(ls -A ended)" ] || fail "SIGTERM in a whole text left $(ls -A ended)"
rm whole.txt

# Ctrl-C: what was there stays, nothing else does
for i in $(seq 400); do printf '{"text":"some words of a document, number %d"}\n' "$i"; done > line.jsonl
for i in $(seq 700); do cat line.jsonl; done > long.jsonl
cp t1.bin keep.bin
cp t1.idx keep.idx
mkdir kept
mv keep.* kept
for signal in INT TERM; do
    code=0
    (cd kept && exec env --default-signal=INT "$data" tokenize ../long.jsonl --tokenizer "$tok" \
        --output keep --overwrite --threads 1) > out.log 2> err.log &
    pid=$!
    for i in $(seq 200); do
        [ -n "$(find kept -name '.keep.bin*' -size +0)" ] && break
        sleep 0.02
    done
    kill -$signal $pid
    wait $pid || code=$?
    [ $code = 130 ] || fail "SIG$signal: exit code $code: $(cat err.log)"
    grep -q 'interrupted: nothing is written' err.log || fail "SIG$signal: $(cat err.log)"
    [ "$(ls -A kept | tr '\n' ' ')" = "keep.bin keep.idx " ] || fail "SIG$signal left $(ls -A kept)"
    cmp t1.bin kept/keep.bin
done
