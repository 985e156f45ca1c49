/* SPDX-License-Identifier: Apache-2.0 */
/* See trainer_names.h. The names are those of transformers' TrainingArguments and example scripts,
 * TRL, LLaMA-Factory and the training scripts of model families. */
#include "common/trainer_names.h"

#include <stddef.h>

#define SAME(theirs, ours)                                                                         \
    {                                                                                              \
        .name = (theirs), .same = (ours)                                                           \
    }
#define INSTEAD(theirs, text)                                                                      \
    {                                                                                              \
        .name = (theirs), .instead = (text)                                                        \
    }

#define ADAPTERS  "--lora RANK trains an adapter, --adapter DIR goes on with one"
#define QUANTIZED "--lora RANK --load_in_4bit (or --load_in_8bit) is QLoRA"
#define LOADER    "batches are made while a step runs; leave it out"
#define HUB       "nothing is sent to a hub; --output is a folder that can be uploaded"
#define EVALUATE                                                                                   \
    "--eval_interval N evaluates every N steps, 0 at the end, on --eval_data or --eval_fraction"
#define SAVING                                                                                     \
    "--save_interval N saves every N steps, 0 at the end; --load_best_model_at_end each new "      \
    "best, "                                                                                       \
    "too"
#define PRINTING "\"steps_per_print\" in the configuration says how often a line is printed"
#define MONITORS                                                                                   \
    "--metrics FILE writes every step; \"tensorboard\" and \"csv_monitor\" are sections of the "   \
    "configuration"
#define ROWS                                                                                       \
    "samples are packed into full rows of --seq_length tokens, which see only themselves; "        \
    "--packing false gives each a row"
#define FETCHING  "--data names files or folders; data sets are not downloaded"
#define RESUMING  "--resume [TAG] goes on from a checkpoint of --output, the newest without a tag"
#define RECOMPUTE "\"activation_checkpointing\": {\"recompute\": \"full\"} in the configuration"
#define KERNELS   "there is one implementation, the fastest for this processor; leave it out"
#define FOLDER    "a model folder is read as it is; leave it out"
#define ONE_LOSS  "there is one loss at a time, by --objective and --loss_type"
#define REFERENCE                                                                                  \
    "the reference is the model of the start, whose log-probabilities are computed once before "   \
    "training; leave it out"
#define PROMPTS                                                                                    \
    "--seq_length bounds prompt and answer together, --truncation_mode says what stays of them"
#define UNWEIGHTED "all tokens of an answer count alike; leave it out"
#define LOSS       "the loss is the cross entropy of the counted tokens; leave it out"

const dsi_arg_other trainer_names[] = {
    SAME("model_name_or_path", "model"),
    SAME("tokenizer_name", "tokenizer"),
    SAME("tokenizer_name_or_path", "tokenizer"),
    INSTEAD("config_name", "--model_config FILE trains a new model of that config.json"),
    INSTEAD("config_overrides", "--model_config FILE names a config.json, to be edited"),
    INSTEAD("model_type", "--model_config FILE names a config.json, which has it"),
    INSTEAD("torch_dtype", "--bf16 and --fp16 say what weights compute in"),
    INSTEAD("attn_implementation", KERNELS),
    INSTEAD("use_flash_attn", KERNELS),
    INSTEAD("flash_attn", KERNELS),
    INSTEAD("enable_liger_kernel", KERNELS),
    INSTEAD("use_liger_kernel", KERNELS),
    INSTEAD("torch_compile", KERNELS),
    INSTEAD("tf32", KERNELS),
    INSTEAD("use_fast_tokenizer", FOLDER),
    INSTEAD("trust_remote_code", FOLDER),
    INSTEAD("low_cpu_mem_usage", FOLDER),
    SAME("revision", "model_revision"),
    INSTEAD("cache_dir", "HF_HUB_CACHE names the folder of the Hugging Face cache"),
    INSTEAD("use_peft", ADAPTERS),
    INSTEAD("use_lora", ADAPTERS),
    SAME("lora_r", "lora"),
    SAME("lora_rank", "lora"),
    SAME("lora_target_modules", "lora_targets"),
    SAME("lora_modules_to_save", "modules_to_save"),
    SAME("adapter_name_or_path", "adapter"),
    INSTEAD("use_rslora", "--lora_method rslora"),
    INSTEAD("use_dora", "--lora_method dora"),
    INSTEAD("q_lora", QUANTIZED),
    SAME("use_bnb_nested_quant", "bnb_4bit_use_double_quant"),
    SAME("double_quantization", "bnb_4bit_use_double_quant"),
    INSTEAD("quantization_bit", QUANTIZED),
    INSTEAD("bnb_4bit_compute_dtype", "--bf16 and --fp16 say what products compute in"),
    INSTEAD("bnb_4bit_quant_storage", "4-bit weights are stored as bytes; leave it out"),

    SAME("train_file", "data"),
    SAME("validation_file", "eval_data"),
    SAME("data_path", "data"),
    SAME("eval_data_path", "eval_data"),
    INSTEAD("dataset_name", FETCHING),
    INSTEAD("dataset_config_name", FETCHING),
    INSTEAD("dataset_dir", FETCHING),
    INSTEAD("dataset", FETCHING),
    INSTEAD("val_size", "--eval_fraction F holds back a part, such as 0.05; a number of rows: "
                        "--eval_data of a file of them"),
    INSTEAD("dataset_text_field", "--column_map text=COLUMN names the column of the text"),
    INSTEAD("template", "--chat_template NAME; without it the tokenizer's own is taken"),
    INSTEAD("chat_template_path", "--chat_template NAME; without it the tokenizer's own is taken"),
    INSTEAD("eos_token", "the tokenizer's folder says which tokens end a text"),
    INSTEAD("assistant_only_loss", "of messages only the assistant's turns count; leave it out"),
    INSTEAD("completion_only_loss",
            "of prompt and completion only the latter counts; leave it out"),
    INSTEAD("train_on_prompt",
            "of a chat only the assistant's turns count; rows of \"text\" count whole"),
    INSTEAD("mask_history", "turns with \"train\": false do not count"),
    INSTEAD("validation_split_percentage", "--eval_fraction F holds back a part, such as 0.05"),
    INSTEAD("max_train_samples", "--steps N ends the run earlier"),
    SAME("block_size", "seq_length"),
    SAME("max_seq_length", "seq_length"),
    SAME("max_length", "seq_length"),
    SAME("model_max_length", "seq_length"),
    SAME("cutoff_len", "seq_length"),
    INSTEAD("group_by_length", ROWS),
    INSTEAD("pad_to_max_length", ROWS),
    INSTEAD("lazy_preprocess", "data is tokenized once, at the start; leave it out"),
    INSTEAD("preprocessing_num_workers", "--threads N says how many threads work"),
    INSTEAD("dataloader_num_workers", LOADER),
    INSTEAD("dataloader_pin_memory", LOADER),
    INSTEAD("dataloader_drop_last", LOADER),
    INSTEAD("remove_unused_columns", LOADER),
    INSTEAD("overwrite_cache", LOADER),
    INSTEAD("data_seed", "--seed is that of the data's order too"),

    INSTEAD(
        "stage",
        "--objective says what is trained: sft (pt too), dpo, kto, reward (rm), …; ZeRO's stage "
        "is in the configuration"),
    SAME("pref_beta", "beta"),
    INSTEAD("pref_loss", "--objective and --loss_type, by TRL's names"),
    INSTEAD("pref_ftx", ONE_LOSS),
    INSTEAD("rpo_alpha", ONE_LOSS),
    INSTEAD("cpo_alpha", ONE_LOSS),
    INSTEAD("loss_weights", ONE_LOSS),
    SAME("kto_chosen_weight", "desirable_weight"),
    SAME("kto_rejected_weight", "undesirable_weight"),
    INSTEAD("precompute_ref_log_probs", REFERENCE),
    INSTEAD("precompute_ref_batch_size", REFERENCE),
    INSTEAD("ref_model", REFERENCE),
    INSTEAD("sync_ref_model", REFERENCE),
    INSTEAD("max_prompt_length", PROMPTS),
    INSTEAD("max_completion_length", PROMPTS),
    INSTEAD("disable_dropout", "preference training has no dropout; leave it out"),
    INSTEAD("f_divergence_type", "the divergence is reverse_kl, TRL's default; leave it out"),
    INSTEAD("ld_alpha", UNWEIGHTED),
    INSTEAD("use_weighting", UNWEIGHTED),
    INSTEAD("finetuning_type", "all parameters are trained (full), --freeze leaves some out, "
                               "--lora RANK trains an adapter"),
    INSTEAD("freeze_trainable_layers", "--freeze PATTERN leaves parameters out"),
    INSTEAD("do_train", "ds_train trains; leave it out"),
    INSTEAD("do_eval", EVALUATE),
    INSTEAD("do_predict", "ds_generate writes text with the trained model"),
    {.name = "deepspeed", .same = "deepspeed_config", .may_be_alone = true},
    SAME("per_device_train_batch_size", "micro_batch"),
    INSTEAD("per_device_eval_batch_size", "evaluations take --micro_batch rows too"),
    SAME("num_train_epochs", "epochs"),
    SAME("max_steps", "steps"),
    INSTEAD("auto_find_batch_size",
            "deepspeed --autotuning run finds the largest micro-batch that fits"),
    INSTEAD("full_determinism", "every run has the same bits; leave it out"),
    INSTEAD("gradient_checkpointing", RECOMPUTE),
    INSTEAD("gradient_checkpointing_kwargs", RECOMPUTE),
    INSTEAD("local_rank", "deepspeed gives ranks their numbers through LOCAL_RANK"),
    INSTEAD("ddp_find_unused_parameters", LOADER),
    INSTEAD("ddp_timeout", "DEEPSPEED_TIMEOUT in the environment counts minutes"),
    INSTEAD("bf16_full_eval", "evaluations compute as steps do; leave it out"),
    INSTEAD("fp16_full_eval", "evaluations compute as steps do; leave it out"),
    INSTEAD("pure_bf16",
            "bf16 with a configuration whose bf16.bf16_master_weights_and_grads is true"),
    INSTEAD("label_smoothing_factor", LOSS),
    INSTEAD("neftune_noise_alpha", LOSS),
    INSTEAD("average_tokens_across_devices", "--loss_average targets"),

    SAME("output_dir", "output"),
    INSTEAD("overwrite_output_dir",
            "--overwrite begins anew in an --output that holds an earlier run"),
    INSTEAD("resume_from_checkpoint", RESUMING),
    SAME("save_steps", "save_interval"),
    INSTEAD("save_strategy", SAVING),
    INSTEAD("save_only_model", SAVING),
    INSTEAD("save_safetensors", "every file of weights is safetensors; leave it out"),
    SAME("save_total_limit", "keep_last"),
    SAME("early_stopping_steps", "early_stopping_patience"),
    SAME("eval_steps", "eval_interval"),
    INSTEAD("eval_strategy", EVALUATE),
    INSTEAD("evaluation_strategy", EVALUATE),
    INSTEAD("logging_steps", PRINTING),
    INSTEAD("logging_strategy", PRINTING),
    INSTEAD("logging_first_step", PRINTING),
    INSTEAD("include_num_input_tokens_seen", MONITORS),
    INSTEAD("include_tokens_per_second", MONITORS),
    INSTEAD("log_level", PRINTING),
    INSTEAD("disable_tqdm", "there are plain lines where the output is no terminal"),
    INSTEAD("logging_dir", MONITORS),
    INSTEAD("report_to", MONITORS),
    INSTEAD("run_name", MONITORS),
    INSTEAD("plot_loss", MONITORS),
    INSTEAD("push_to_hub", HUB),
    INSTEAD("hub_model_id", HUB),
    {0},
};
