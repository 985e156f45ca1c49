# SPDX-License-Identifier: Apache-2.0
# Sourced by tests of encoders: bert_folder DIR TEXT makes a folder of BertTokenizer whose words are those of TEXT, and a config.json
# of a small BERT for it.
bert_folder() {
    mkdir -p "$1"
    { printf '[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n'; tr 'A-Z' 'a-z' < "$2" | grep -oE "[a-z]+|[^a-z[:space:]]" | LC_ALL=C sort -u; } |
        awk '{printf "%s%s\n", (NR > 1 ? "," : ""), ($0 == "\"" || $0 == "\\" ? "\"\\" $0 "\"" : "\"" $0 "\"") ":" NR - 1}' > "$1/vocab.part"
    cat > "$1/tokenizer.json" <<JSON
{"version": "1.0", "added_tokens": [
 {"id": 0, "content": "[PAD]", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
 {"id": 1, "content": "[UNK]", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
 {"id": 2, "content": "[CLS]", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
 {"id": 3, "content": "[SEP]", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
 {"id": 4, "content": "[MASK]", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
 "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true},
 "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": null, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
 "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": {
$(cat "$1/vocab.part")}}}
JSON
    cat > "$1/tokenizer_config.json" <<'JSON'
{"tokenizer_class": "BertTokenizer", "do_lower_case": true, "unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]",
 "cls_token": "[CLS]", "mask_token": "[MASK]", "model_max_length": 64}
JSON
    cat > "$1/config.json" <<JSON
{"architectures": ["BertForMaskedLM"], "model_type": "bert", "vocab_size": $(wc -l < "$1/vocab.part"), "hidden_size": 48,
 "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "max_position_embeddings": 64,
 "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "type_vocab_size": 2, "pad_token_id": 0}
JSON
    rm "$1/vocab.part"
}
