# SPDX-License-Identifier: Apache-2.0
# Sourced by tests of ds_train, with LAYERS WIDTH HEADS POSITIONS: moves into a scratch folder with a Llama over bytes, llama.json;
# fail shows the file `log`.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE DS_RESTART_COUNT
fail() { echo "FAILED: $*"; cat log; exit 1; }
cat > llama.json <<JSON
{"model_type": "llama", "vocab_size": 320, "hidden_size": $2, "intermediate_size": $((2 * $2)), "num_hidden_layers": $1,
 "num_attention_heads": $3, "num_key_value_heads": $3, "max_position_embeddings": $4, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}
JSON
