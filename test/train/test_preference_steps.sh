#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# The same ten steps as TRL's DPOTrainer and KTOTrainer (test/golden/preference/steps), from the text of the rows to the update: losses
# and rewards within 2e-5, log-probabilities and norms within a part of 1e-5. Usage: test_preference_steps.sh BUILD
set -euo pipefail
build=$1
golden=$DS_SOURCE_DIR/test/golden/preference/steps
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*"; exit 1; }

echo '{"train_batch_size": 4, "gradient_clipping": 0, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0}}}' > "$work/ds.json"
train() { # OBJECTIVE LOSS DATA FLAGS…
    rm -f "$work/m.jsonl"
    "$build/ds_train" --model "$golden" --tokenizer bytes --data "$golden/$3" --seq_length 32 --steps 10 --threads 1 --lr_scheduler_type constant \
        --deepspeed_config "$work/ds.json" --objective "$1" --loss_type "$2" --beta 0.2 --metrics "$work/m.jsonl" "${@:4}" > "$work/log" 2>&1 ||
        fail "$1 $2: $(cat "$work/log")"
}
# Whether each metric of a loss is TRL's.
same() { # OBJECTIVE LOSS
    local name
    for name in loss rewards/margins rewards/chosen logps/rejected grad_norm; do
        paste -d ' ' <(sed -nE "s#.*\"$name\":([^,}]*).*#\1#p" "$work/m.jsonl") \
            <(sed -n "s#^$1 $2 $name ##p" "$golden/steps.txt" | tr ' ' '\n') | awk '
            { by = ($2 < 0 ? -$2 : $2) * 1e-5 + 2e-5; bad = bad || NF != 2 || $1 - $2 > by || $2 - $1 > by }
            END { exit bad || NR != 10 }' || return 1
    done
}
for loss in sigmoid ipo apo_zero; do
    train dpo $loss rows.jsonl
    same dpo $loss || fail "$loss: $(cat "$work/m.jsonl")"
done
train kto kto labelled.jsonl
same kto kto || fail "kto: $(cat "$work/m.jsonl")"

# Another factor, rate or reference is another run: the comparison can fail.
for other in "--beta 0.21" "--learning_rate 1.1e-3 --deepspeed_config $work/auto.json" "--reference_free" "--label_smoothing 0.01"; do
    sed 's/"lr": 1e-3/"lr": "auto"/' "$work/ds.json" > "$work/auto.json"
    # shellcheck disable=SC2086
    train dpo sigmoid rows.jsonl $other
    ! same dpo sigmoid || fail "$other changes nothing"
done
