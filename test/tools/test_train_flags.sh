#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Each flag of ds_train does what it says: steps, evaluations, checkpoints and their number, metrics, resume
# by tag, seeds, epochs, the part held back; the reported loss is the mean of the micro-batches, the
# validation loss that of the tokens, the learning rate that of the step.
set -euo pipefail
bin=$1
root=$DS_SOURCE_DIR
work=$(mktemp -d "$1/train_flags.XXXXXX")
trap 'rm -rf "$work"' EXIT
fail() {
    echo "FAILED: $*"
    exit 1
}
equal() { # what, got, want
    [ "$2" = "$3" ] || fail "$1: '$2', expected '$3'"
}
close() { # what, got, want: to 1e-5 of the value
    awk -v a="$2" -v b="$3" 'BEGIN { d = a - b; exit !(a + 0 > 0 && d <= 1e-5 * b && d >= -1e-5 * b) }' ||
        fail "$1: '$2', expected '$3'"
}

cat > "$work/gpt.json" << END
{"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "vocab_size": 256,
 "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
END
config() { # name, batch, accumulation, learning rate
    cat > "$work/$1.json" << END
{"train_batch_size": $2, "gradient_accumulation_steps": $3, "optimizer": {"type": "AdamW", "params": {"lr": $4}},
 "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": $4, "warmup_num_steps": 12}}}
END
}
config train 4 1 0.01
config still 4 1 0.0
config still_two 4 2 0.0
config still_three 3 1 0.0
head -c 1000 "$root/data/tinyshakespeare.txt" > "$work/text.txt"

run() { # name, configuration, flags: the log and the metrics of that name
    local name=$1 config=$2
    shift 2
    "$bin/ds_train" --tokenizer bytes --seq_length 32 --threads 2 --deepspeed_config "$work/$config.json" \
        --metrics "$work/$name.jsonl" "$@" > "$work/$name.log" 2>&1 || fail "$name: $(cat "$work/$name.log")"
}
fresh=(--model_config "$work/gpt.json" --data "$work/text.txt" --eval_fraction 0.1)
column() { # name, key: the values, one a line, of the lines that have it
    sed -nE "s/.*\"$2\":([^,}]*).*/\1/p" "$work/$1.jsonl"
}
line() { tr '\n' ' ' | sed 's/ $//'; }
eval_steps() { grep eval_loss "$work/$1.jsonl" | sed -E 's/.*"step":([0-9]+).*/\1/' | line; }
loss_steps() { grep '"loss"' "$work/$1.jsonl" | sed -E 's/.*"step":([0-9]+).*/\1/' | line; }
tags() { (cd "$work/$1" && ls -d global_step* | sort -V | line); }

# The Trainer's names.
run names train --model_config "$work/gpt.json" --train_file "$work/text.txt" --max_steps 2 --block_size 32 \
    --per_device_train_batch_size 4 --output_dir "$work/names" --save_steps 1 --save_total_limit 1 \
    --validation_file "$work/text.txt" --eval_steps 1
equal "steps by another name" "$(loss_steps names)" "1 2"
equal "evaluations by another name" "$(eval_steps names)" "1 2"
equal "checkpoints by another name" "$(tags names)" "global_step2"
# Steps, evaluations, checkpoints.
run plain train "${fresh[@]}" --steps 10 --eval_interval 4 --save_interval 3 --output "$work/plain"
equal "steps" "$(loss_steps plain)" "1 2 3 4 5 6 7 8 9 10"
equal "evaluations" "$(eval_steps plain)" "4 8 10"
equal "checkpoints" "$(tags plain)" "global_step3 global_step6 global_step9 global_step10"
run kept train "${fresh[@]}" --steps 10 --save_interval 3 --keep_last 2 --output "$work/kept"
equal "one evaluation at the end" "$(eval_steps kept)" "10"
equal "checkpoints kept" "$(tags kept)" "global_step9 global_step10"
equal "evaluating changes nothing" "$(column kept loss | line)" "$(column plain loss | line)"

# The learning rate of a step is the schedule's.
"$bin/ds_config" lr "$work/train.json" --steps 10 | sed 1d | cut -d, -f2 | paste -d ' ' - <(column plain lr) |
    awk '{ d = $1 - $2; if (d > 1e-8 || d < -1e-8) bad = 1; n++ } END { exit bad || n != 10 }' ||
    fail "lr: $(column plain lr | line)"

# Resume: the newest, a tag; metrics go on in the same file; the data too.
run whole train "${fresh[@]}" --steps 14 --output "$work/whole"
run plain train "${fresh[@]}" --steps 14 --output "$work/plain" --resume
grep -q 'resumed after step 10' "$work/plain.log" || fail "resume: $(cat "$work/plain.log")"
equal "metrics over a resume" "$(loss_steps plain)" "1 2 3 4 5 6 7 8 9 10 11 12 13 14"
equal "losses over a resume" "$(column plain loss | line)" "$(column whole loss | line)"
equal "rates over a resume" "$(column plain lr | line)" "$(column whole lr | line)"
run tagged train "${fresh[@]}" --steps 14 --output "$work/plain" --resume global_step6
grep -q 'resumed after step 6' "$work/tagged.log" || fail "resume by tag: $(cat "$work/tagged.log")"
equal "steps after a tag" "$(loss_steps tagged)" "7 8 9 10 11 12 13 14"
equal "losses after a tag" "$(column tagged loss | line)" "$(column whole loss | tail -n 8 | line)"

# With a rate of 0 every evaluation is the same, over a tenth of the text; so is the mean over other batches.
run still still "${fresh[@]}" --steps 4 --eval_interval 1
equal "evaluations alike" "$(column still eval_loss | sort -u | wc -l)" 1
equal "tokens of evaluations" "$(column still eval_tokens | sort -u | line)" 99
run still_three still_three "${fresh[@]}" --steps 1
close "mean over tokens" "$(column still_three eval_loss)" "$(column still eval_loss | head -n 1)"
run still_two still_two "${fresh[@]}" --steps 4
paste -d ' ' <(column still_two loss) <(column still loss) | while read -r got want; do
    close "mean over micro-batches" "$got" "$want"
done

# Seeds: of the weights, seen in evaluation; of the data's order, seen with the weights of a folder.
run seed still "${fresh[@]}" --steps 4 --seed 3
run seed_again still "${fresh[@]}" --steps 4 --seed 3
run seed_other still "${fresh[@]}" --steps 4 --seed 4
equal "the same seed" "$(column seed_again loss | line)" "$(column seed loss | line)"
[ "$(column seed_other eval_loss)" != "$(column seed eval_loss)" ] || fail "--seed: the same weights"
folder=(--model "$work/whole" --data "$work/text.txt" --eval_fraction 0.1)
run order_a still "${folder[@]}" --steps 4 --seed 0
run order_b still "${folder[@]}" --steps 4 --seed 1
equal "the folder's weights" "$(column order_a eval_loss)" "$(column order_b eval_loss)"
[ "$(column order_a loss | line)" != "$(column order_b loss | line)" ] || fail "--seed: the same order"

# Epochs: 10 samples of 5 tokens are 10 rows of 8, 3 a step: 4 steps an epoch.
for i in 0 1 2 3 4 5 6 7 8 9; do echo "{\"prompt\": \"ab$i\", \"completion\": \"cd\"}"; done > "$work/samples.jsonl"
config epochs 3 1 0.01
run epochs epochs --model_config "$work/gpt.json" --data "$work/samples.jsonl" --epochs 1 --seq_length 8
equal "steps of an epoch" "$(loss_steps epochs)" "1 2 3 4"

# Frozen: by pattern, and a pattern that nothing matches is an error.
if "$bin/ds_train" --tokenizer bytes --seq_length 32 --deepspeed_config "$work/train.json" "${fresh[@]}" --steps 1 \
    --freeze 'no.such.*' > "$work/freeze.log" 2>&1; then
    fail "--freeze of nothing is accepted"
fi
grep -q 'no\.such' "$work/freeze.log" || fail "--freeze: $(cat "$work/freeze.log")"

# The mean over targets: rows of very uneven answers give the losses and norms of one large micro-batch, however they
# are dealt to micro-batches and ranks; the mean over micro-batches does not.
for i in 0 1 2 3 4 5 6 7 8 9 10 11; do
    echo "{\"prompt\": \"ab$i\", \"completion\": \"$(head -c $((1 + 17 * (i % 3))) "$work/text.txt" | tr '\n"' '  ')\"}"
done > "$work/uneven.jsonl"
dealt() { # name, accumulation, ranks, flags
    local name=$1 steps=$2 ranks=$3
    shift 3
    cat > "$work/dealt.json" << END
{"train_batch_size": 4, "gradient_accumulation_steps": $steps, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
END
    "$bin/deepspeed" --num_gpus "$ranks" "$bin/ds_train" --tokenizer bytes --seq_length 40 --threads 1 --model_config "$work/gpt.json" \
        --data "$work/uneven.jsonl" --deepspeed_config "$work/dealt.json" --steps 3 --overwrite --metrics "$work/$name.jsonl" "$@" \
        > "$work/$name.log" 2>&1 || fail "$name: $(cat "$work/$name.log")"
}
near() { # name, key: as of the run whole_rows
    paste -d ' ' <(column "$1" "$2") <(column whole_rows "$2") | awk '{ d = ($1 - $2) / $2; if (d > 1e-4 || d < -1e-4) bad = 1; n++ }
        END { exit bad || n != 3 }'
}
dealt whole_rows 1 1
for shape in '4 1' '2 1' '2 2' '1 2'; do
    # shellcheck disable=SC2086
    dealt dealt_rows $shape --loss_average targets
    { near dealt_rows loss && near dealt_rows grad_norm; } || fail "targets $shape: $(cat "$work/dealt_rows.jsonl" "$work/whole_rows.jsonl")"
done
dealt dealt_rows 4 1
! near dealt_rows grad_norm || fail "the mean over micro-batches is that over targets"

# Weight decay on all parameters is another run, unless there is none; a checkpoint keeps the rule.
decayed() { # name, decay, flags
    local name=$1
    cat > "$work/decay.json" << END
{"train_batch_size": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": $2}}}
END
    shift 2
    run "$name" decay "${fresh[@]}" --steps 3 "$@"
}
decayed some 0.5 --output "$work/some"
decayed all 0.5 --decay_all
decayed no_some 0
decayed no_all 0 --decay_all
[ "$(column some eval_loss)" != "$(column all eval_loss)" ] || fail "--decay_all does nothing"
equal "no decay" "$(column no_all eval_loss)" "$(column no_some eval_loss)"
if "$bin/ds_train" --tokenizer bytes --seq_length 32 --threads 2 --deepspeed_config "$work/decay.json" "${fresh[@]}" --steps 4 \
    --output "$work/some" --resume --decay_all > "$work/rule.log" 2>&1; then
    fail "resumed with another rule of weight decay"
fi
grep -q 'decay_all' "$work/rule.log" || fail "rule: $(cat "$work/rule.log")"
