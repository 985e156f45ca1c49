/* SPDX-License-Identifier: Apache-2.0 */
/* Parallelism beyond data parallelism, elasticity, compilation, tuning. */
#include "config/option_rows.h"

static const dsi_option pipeline_rows[] = {
    I("stages", "\"auto\"", IN_FORCE,
      "Stages that share the layers of the model; default: 1; \"auto\", said: the number with "
      "which a "
      "step is planned to be fastest for its samples in the memory that there is (ds_plan, "
      "ds_train; "
      "leave one of the three batch sizes open). Ranks = stages x data-parallel "
      "ranks "
      "x the other axes.",
      MIN(1), WITH(AUTO)),
    T("partition", "\"best\"", IN_FORCE,
      "How layers are dealt to stages: \"best\" or \"parameters\" (the heaviest stage has least), "
      "\"uniform\" (as many layers on each), \"profile\" (the stage with most planned operations "
      "of products and attention, the output projection with them, has least), \"type:REGEX\" (the "
      "stage with most layers of a type has least: the expression is searched, in any case, in the "
      "names of a layer's parameters and in ParallelTransformerLayerPipe, DecoderLayer and "
      "Block, which all are)."),
    E("schedule", "\"1f1b\"", IN_FORCE,
      "Order of micro-batches: \"1f1b\" keeps at most as many in flight as stages are left, "
      "\"gpipe\" "
      "all; \"interleaved\" gives each rank chunks of layers and so has less idle time and more "
      "messages (micro-batches a step: a multiple of stages); \"zb-h1\" puts the gradients of "
      "weights off into idle time; \"zb-v\" does so with two chunks a rank, the second on the way "
      "back from the last rank: least idle time, memory as \"1f1b\" on the first stage. The "
      "numbers are the same. \"auto\": the one, with its chunks, that is planned to be fastest "
      "among "
      "those that fit.",
      .choices = "1f1b|gpipe|interleaved|zb-h1|zb-v", WITH(AUTO), FIELD(pipeline_schedule)),
    I("chunks", "\"auto\"", IN_FORCE,
      "Chunks of layers of a rank with \"interleaved\": rank r of n has chunks r, r + n, ...; "
      "\"zb-v\": 2, r and 2n - 1 - r. \"auto\": 2 with these.",
      MIN(1), WITH(AUTO)),
    B("seed_layers", "false", NO_EFFECT, "A random seed for each layer.",
      NOTE("random numbers are keyed by parameter and sample, the same on any number of stages")),
    I("activation_checkpoint_interval", "0", NO_EFFECT, "Layers between kept activations.", MIN(0),
      NOTE("activation_checkpointing says what is recomputed")),
    B("pipe_partitioned", "true", NO_EFFECT, "Shard what is sent between stages.",
      NOTE("a rank sends what it has to the rank at the same place of the next stage")),
    B("grad_partitioned", "true", NO_EFFECT, "Shard gradients that are sent between stages.",
      NOTE("a rank sends what it has to the rank at the same place of the stage before")),
    B("use_reentrant", "null", NO_EFFECT, "PyTorch's form of recomputation.", WITH(NULLABLE),
      NOTE("there is one form of recomputation")),
};
const dsi_section dsi_section_pipeline = {
    .path = "pipeline",
    .doc = "Pipeline parallelism.",
    .flags = DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(pipeline_rows),
};

static const dsi_option sequence_rows[] = {
    E("attention", "\"ulysses\"", IN_FORCE,
      "\"ulysses\": all-to-alls give each rank whole sequences of a part of the heads; where the "
      "ranks do not divide the heads, keys and values are gathered. \"ring\": each rank keeps its "
      "positions, and keys and values travel from rank to rank, so that no rank ever has all of "
      "them; any number of heads.",
      .choices = "ulysses|ring", FIELD(sequence_attention)),
    B("load_balance", "true", IN_FORCE,
      "With \"ring\": a rank has a piece from the front of the sequence and its mirror image from "
      "the back, so that all have as much to do under a causal mask; false: one piece.",
      FIELD(sequence_balance)),
    I("chunk_size", "0", IN_FORCE,
      "Positions, of all ranks that share a sequence, that are computed at a time (FPDT, Ulysses-"
      "Offload): causal attention of a chunk meets the keys of one chunk before the other, so that "
      "memory is that of a chunk. The last chunk has what is left, and each is rounded down so "
      "that "
      "all sequence_parallel_size ranks have as much of it; 0: all at once. With \"ring\" keys and "
      "values of each pair of chunks travel, and load_balance changes nothing: chunks are shared. "
      "At most mlp_tile_tokens where that is set: a chunk is a tile.",
      MIN(0), FIELD(sequence_chunk)),
    E("offload", "\"none\"", IN_FORCE,
      "Where keys, values and their gradients of the chunks that are not being computed wait, with "
      "chunk_size. \"cpu\" needs device_memory.",
      .choices = "none|cpu|nvme", FIELD(sequence_offload)),
    T("nvme_path", "null", IN_FORCE, "Folder on a disk for offload \"nvme\".", WITH(NULLABLE),
      FIELD(sequence_path)),
};
const dsi_section dsi_section_sequence = {
    .path = "sequence_parallel",
    .doc = "How ranks share the attention of sequences that they share.",
    DSI_SECTION_ROWS(sequence_rows),
};

static const dsi_option tp_rows[] = {
    I("tp_size", "1", IN_FORCE, "Ranks that share each layer: 1, or autotp_size.", MIN(0)),
    I("tp_grain_size", "1", NO_EFFECT, "Granularity of the split.", MIN(1),
      NOTE("all shards are equal; what the ranks do not divide stays whole")),
    ANY("mpu", "null", NO_EFFECT, "Set by programs only.", WITH(NULLABLE),
        NOTE("the mesh is made from autotp_size")),
    ANY("tp_group", "null", NO_EFFECT, "Set by programs only.", WITH(NULLABLE),
        NOTE("the mesh is made from autotp_size")),
};
static const dsi_section tp = {
    .path = "tensor_parallel.tensor_parallel",
    .doc = "Size of the group.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(tp_rows),
};
static const dsi_option layer_spec_rows[] = {
    TEXTS("patterns", "[]", IN_FORCE,
          "Regular expressions of parameter names, matched from their first letter on; vectors "
          "(biases) go with their layer."),
    E("partition_type", "\"column\"", IN_FORCE,
      "How a matching matrix is split: its outputs, its inputs, or not at all.",
      .choices = "column|row|skip", WITH(ANY_CASE)),
    LIST("shape", "null", IN_FORCE,
         "[n, -1]: n equal parts side by side, each of which is split. The model's layers are "
         "known by themselves; another n is an error.",
         WITH(NULLABLE)),
    I("partition_dim", "null", IN_FORCE,
      "Dimension that is split, where outputs (column) or inputs (row) must be; null: there.",
      MIN(0), WITH(NULLABLE)),
    TEXTS("model_types", "null", IN_FORCE, "Model types the rule is for; null: any.",
          WITH(NULLABLE)),
    B("gather_output", "false", IN_FORCE,
      "Gather the result of a column split: an output head's only, of which losses take parts."),
    B("grad_allreduce", "false", NO_EFFECT, "Sum gradients over the group.",
      NOTE("every gradient is complete")),
};
static const dsi_section layer_spec = {
    .path = "tensor_parallel.partition_config.layer_specs[]",
    .doc = "One rule; the first that matches is taken.",
    .flags = DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(layer_spec_rows),
};
static const dsi_option partition_rows[] = {
    I("tp_size", "1", NO_EFFECT, "Overwritten by autotp_size.", MIN(0),
      NOTE("autotp_size says it")),
    RECORDS("layer_specs", "[]", IN_FORCE, "Rules.", .section = &layer_spec),
    I("embedding_partition_dim", "1", NO_EFFECT, "Not used by DeepSpeed.",
      NOTE("DeepSpeed does not use it either; rows of the vocabulary are split")),
    TEXTS("lm_head_patterns", "[\"lm_head\", \"embed_out\"]", NO_EFFECT,
          "Names of the output projection.", NOTE("the output head is found from the model")),
    B("use_default_specs", "true", IN_FORCE,
      "What no rule names is found from the model; false: it stays whole on every rank."),
    B("strict_mode", "false", IN_FORCE, "A linear layer without rule is an error."),
};
static const dsi_section partition = {
    .path = "tensor_parallel.partition_config",
    .doc = "Rules for the split.",
    .flags = DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(partition_rows),
};
static const dsi_option tensor_parallel_rows[] = {
    ANY("dtype", "null", NO_EFFECT, "Element type; DeepSpeed accepts only \"auto\" in a file.",
        WITH(NULLABLE), NOTE("bf16 and fp16 say it")),
    I("autotp_size", "0", IN_FORCE,
      "Ranks that share each layer, neighbours with the same samples; they divide the world. 0 and "
      "1: off. Which layers can be sharded is found from the model; the others are whole on every "
      "rank. Works with every ZeRO stage.",
      MIN(0)),
    B("tp_overlap_comm", "false", IN_FORCE,
      "Reductions run concurrently with computation that does not need them, ZeRO's too: as "
      "overlap_comm.",
      FIELD(tp_overlap_comm)),
    B("domino", "false", IN_FORCE,
      "The rows of a micro-batch, 2 at least, go through the layers in two halves that take turns: "
      "while one waits for the ranks of its layer, the other computes, forward and backward "
      "(DeepSpeed's Domino). Collectives overlap as with tp_overlap_comm. Losses and gradients are "
      "the same up to the order in which rows are summed.",
      FIELD(tp_domino)),
    S("tensor_parallel", NULL, IN_FORCE, "Size of the group.", .section = &tp, .aliases = "tp"),
    LIST("injection_policy_tuple", "null", NOT_BUILT, "PyTorch classes to split.", WITH(NULLABLE),
         .harmless = "[]",
         NOTE("it names PyTorch's modules; what can be sharded is found without")),
    S("partition_config", "null", IN_FORCE,
      "Rules for the split, beside what is found from the model. A rule that cannot be followed is "
      "an error that names the parameter.",
      WITH(NULLABLE), .section = &partition),
    T("preset_model", "null", NO_EFFECT,
      "Rules by model: llama, bloom, chatglm, mixtral, deepseek_v2, "
      "qwen2, phi3.",
      WITH(NULLABLE), NOTE("what can be sharded is found from the model")),
    B("keep_module_on_host", "false", NO_EFFECT, "Keep whole weights in host memory.",
      NOTE("a rank reads its own shards from the model's files")),
    B("replace_with_kernel_inject", "false", NO_EFFECT, "Use fused kernels.",
      .aliases = "kernel_inject", NOTE("kernels are fused wherever they can be")),
};
const dsi_section dsi_section_tensor_parallel = {
    .path = "tensor_parallel",
    .doc = "Automatic tensor parallelism.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(tensor_parallel_rows),
};

#define NAME_ROW(key, doc)                                                                         \
    T(key, "null", NO_EFFECT, doc, WITH(NULLABLE), NOTE("experts are found from the model"))
static const dsi_option expert_rows[] = {
    B("enabled", "false", IN_FORCE,
      "autoep_size ranks share the experts of each layer. Which parameters are experts is found "
      "from "
      "the model. Works with every ZeRO stage, offload and recomputation."),
    I("autoep_size", "1", IN_FORCE,
      "Ranks that share the experts, neighbours; it divides the experts of a layer. Where it "
      "divides "
      "the data-parallel ranks it is of those, else folded over tensor_parallel.autotp_size (of "
      "which it then is a multiple) and, where that does not suffice, sequence_parallel_size. "
      "Ranks "
      "that share sequences share the experts on top of it where that still divides them. Tokens "
      "are sent to the rank of their expert and back, none is dropped.",
      MIN(1)),
    I("expert_tensor_parallel_size", "null", IN_FORCE,
      "Ranks that share each expert: 1, the experts are folded over tensor_parallel.autotp_size, "
      "whose ranks have whole experts and each send a part of the tokens; or that number, they "
      "share each expert. Null: that number where autoep_size divides the data-parallel ranks.",
      MIN(1), WITH(NULLABLE)),
    B("validate_folding_routing", "false", NO_EFFECT, "Check the routing.",
      NOTE("every rank routes its own tokens, and all compare what they send")),
    E("preset_model", "null", NO_EFFECT, "Names by model.",
      .choices = "mixtral|qwen3_moe|qwen3_5_moe|deepseek_v2|deepseek_v3", WITH(NULLABLE),
      NOTE("experts are found from the model")),
    NAME_ROW("moe_layer_pattern", "Name of expert layers."),
    NAME_ROW("expert_pattern", "Name of the experts."),
    NAME_ROW("router_pattern", "Name of the router."),
    B("use_grouped_mm", "true", NO_EFFECT, "One product for all experts.",
      NOTE("all experts are one product; each row has the bits of a product by itself")),
    B("disable_triton_grouped_mm", "false", NO_EFFECT, "Not with Triton.",
      NOTE("there is no Triton")),
    B("route_norm", "null", IN_FORCE,
      "Whether a token's weights sum to 1; null: as the model says. What this key and the next "
      "ones "
      "say holds while the model trains; what is exported keeps the model's configuration.",
      WITH(NULLABLE)),
    R("route_scale", "1.0", IN_FORCE,
      "Factor of a token's weights, of models that have no routed_scaling_factor.", MIN(0),
      WITH(ABOVE)),
    E("score_apply", "\"auto\"", IN_FORCE,
      "What a token's weights are factors of: what its experts read (\"pre\") or what they make; "
      "\"auto\": as the model does.",
      .choices = "auto|pre|post", WITH(AUTO)),
    E("combine_impl", "\"auto\"", NO_EFFECT, "How results are added.",
      .choices = "auto|weighted_sum|fused_weighted_sum|legacy_bmm", WITH(AUTO),
      NOTE("results are added in fp32 in the order of a token's experts")),
    E("score_func", "\"auto\"", IN_FORCE,
      "What scores are of the router's logits; \"auto\": as the model says.",
      .choices = "auto|softmax|sigmoid", WITH(AUTO)),
    I("num_expert_groups", "null", IN_FORCE,
      "Equal groups of experts side by side, by the sum of whose best two experts "
      "num_limited_groups of them are chosen, and a token's experts among those; null: as the "
      "model "
      "says.",
      MIN(1), MAX(64), WITH(NULLABLE)),
    I("num_limited_groups", "null", IN_FORCE, "Groups that a token's experts are of.", MIN(1),
      WITH(NULLABLE)),
    I("top_k", "\"auto\"", IN_FORCE, "Experts a token goes to; \"auto\": as the model says.",
      MIN(1), WITH(AUTO)),
    R("load_balance_coeff", "null", NOT_BUILT, "Refused by DeepSpeed as well.", WITH(NULLABLE),
      NOTE("DeepSpeed refuses it as well; remove the key")),
    R("routed_scaling_factor", "\"auto\"", IN_FORCE,
      "Factor of a token's weights; \"auto\": the model's, or route_scale.", MIN(0),
      WITH(ABOVE | AUTO)),
    B("async_split_plan", "false", NO_EFFECT, "Plan exchanges beside computation.",
      NOTE("all exchanges are planned before the first step")),
    T("row_weighting_impl", "\"auto\"", NO_EFFECT, "Kernel that weighs rows.",
      NOTE("there is one kernel")),
    T("gate_up_impl", "\"separate\"", NO_EFFECT, "Whether gate and up are one product.",
      NOTE("they are as the model stores them")),
    T("comm_backend", "\"comm\"", NO_EFFECT, "Library that exchanges rows.",
      NOTE("the job's own transport does")),
    I("comm_num_sm", "12", NO_EFFECT, "Multiprocessors of DeepEP.", NOTE("there is no DeepEP")),
    I("comm_qp_margin", "4", NO_EFFECT, "Queue pairs of DeepEP.", NOTE("there is no DeepEP")),
    I("comm_max_tokens_per_rank", "0", NO_EFFECT, "Room of DeepEP's buffers.",
      NOTE("rows that arrive have a place for the most that there can be")),
    T("expert_activation", "null", NO_EFFECT, "Form of the experts' activation.", WITH(NULLABLE),
      NOTE("the model's own configuration says it")),
    NAME_ROW("expert_w1", "Name of the first weight."),
    NAME_ROW("expert_w2", "Name of the second weight."),
    NAME_ROW("expert_w3", "Name of the third weight; null: fused with the first."),
    NAME_ROW("num_experts_attr", "Name of the model's number of experts."),
    NAME_ROW("top_k_attr", "Name of the model's number of experts a token."),
    B("has_shared_experts", "null", NO_EFFECT, "Some experts serve every token.", WITH(NULLABLE),
      NOTE("experts are found from the model")),
    NAME_ROW("shared_experts_pattern", "Name of shared experts."),
    NAME_ROW("shared_experts_gate_pattern", "Name of their gate."),
};
const dsi_section dsi_section_expert_parallel = {
    .path = "expert_parallel",
    .doc = "Automatic expert parallelism.",
    .flags = DSI_SECTION_FEATURE | DSI_SECTION_GATED,
    DSI_SECTION_ROWS(expert_rows),
};

static const dsi_option elasticity_rows[] = {
    B("enabled", "false", IN_FORCE,
      "Choose the batch sizes so that many numbers of ranks can train with the same global batch; "
      "the three batch keys must then be absent."),
    I("max_train_batch_size", "2000", IN_FORCE, "Largest global batch. Required when enabled.",
      MIN(1), MAX(2147483647)),
    INTS("micro_batch_sizes", "[2, 4, 6]", IN_FORCE,
         "Micro batches to choose from. Required when enabled.", MIN(1)),
    I("min_gpus", "1", IN_FORCE, "Fewest ranks.", MIN(1), MAX(2147483647)),
    I("max_gpus", "10000", IN_FORCE, "Most ranks.", MIN(1), MAX(2147483647)),
    I("num_gpus_per_node", "1", IN_FORCE, "Ranks of a node; version 0.2 counts whole nodes.",
      MIN(1), MAX(2147483647)),
    I("model_parallel_size", "1", IN_FORCE, "Ranks of one model; more than 1 needs version 0.2.",
      MIN(1), MAX(2147483647)),
    I("min_time", "0", NO_EFFECT, "Shortest time between two changes of the number of ranks.",
      MIN(0), NOTE("DeepSpeed reads it and does nothing with it")),
    B("prefer_larger_batch", "true", IN_FORCE,
      "Among batches that equally many numbers of ranks divide take the largest; else the "
      "smallest.",
      .old = "prefer_large_batch"),
    B("ignore_non_elastic_batch_info", "false", IN_FORCE,
      "Let the three batch keys stand beside it, without effect."),
    ANY("version", "0.2", IN_FORCE, "Way of computing: 0.1, or 0.2, which knows of nodes."),
};
const dsi_section dsi_section_elasticity = {
    .path = "elasticity",
    .doc = "Batch sizes that many numbers of ranks can train with.",
    .flags = DSI_SECTION_GATED,
    DSI_SECTION_ROWS(elasticity_rows),
};

static const dsi_option sparse_rows[] = {
    E("mode", "\"fixed\"", PART, "Pattern.",
      .choices = "dense|fixed|variable|bigbird|bslongformer"),
    I("block", "16", PART, "Side of a block.", MIN(1)),
    B("different_layout_per_head", "false", PART, "A pattern for each head."),
    I("num_local_blocks", "4", PART, "Blocks of a local window.", MIN(1)),
    I("num_global_blocks", "1", PART, "Blocks that see all.", MIN(0)),
    E("attention", "\"bidirectional\"", PART, "Direction.",
      .choices = "bidirectional|unidirectional"),
    B("horizontal_global_attention", "false", PART, "Global blocks also attend to all."),
    I("num_different_global_patterns", "1", PART, "Patterns of global blocks.", MIN(1)),
    I("num_random_blocks", "0", PART, "Random blocks in a row.", MIN(0)),
    INTS("local_window_blocks", "[4]", PART, "Blocks of each local window.", MIN(1)),
    INTS("global_block_indices", "[0]", PART, "Global blocks.", MIN(0)),
    INTS("global_block_end_indices", "null", PART, "Ends of ranges of global blocks.",
         WITH(NULLABLE)),
    I("num_sliding_window_blocks", "3", PART, "Blocks of the sliding window.", MIN(1)),
};
const dsi_section dsi_section_sparse_attention = {
    .path = "sparse_attention",
    .doc = "Block-sparse attention. The section's presence turns it on.",
    .flags = DSI_SECTION_OPEN | DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(sparse_rows),
};

static const dsi_option hybrid_rows[] = {
    B("enabled", "false", IN_FORCE,
      "Generators and servers of the engine read its parameters where they train, as far as they "
      "are whole there (ds_generator_params.share).",
      FIELD(hybrid.enabled)),
    I("max_out_tokens", "512", IN_FORCE,
      "Positions of a text, prompt included, where ds_generator_params.max_length does not say.",
      MIN(1), FIELD(hybrid.max_out_tokens)),
    I("inference_tp_size", "1", PART, "Ranks that share each layer in generation.", MIN(1)),
    B("release_inference_cache", "false", PART, "Free the cache after a generation."),
    B("pin_parameters", "true", NO_EFFECT, "Gather all parameters at once.",
      NOTE("ranks gather what is cut a parameter at a time, whatever it says")),
    I("tp_gather_partition_size", "8", NO_EFFECT, "Layers gathered together.", MIN(1),
      NOTE("each rank generates by itself")),
    B("enable_cuda_graph", "false", PART, "CUDA graphs in generation."),
};
const dsi_section dsi_section_hybrid = {
    .path = "hybrid_engine",
    .doc = "Training and generation in one engine, for reinforcement learning.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(hybrid_rows),
};

#define COMPILE_NOTE NOTE("every step is compiled to a plan as it is")
static const dsi_option compile_rows[] = {
    B("deepcompile", "false", NO_EFFECT, "Compile the model's graph with ZeRO in it.",
      COMPILE_NOTE),
    B("free_activation", "false", PART, "Free activations early."),
    I("free_activation_threshold", "10485760", PART, "Bytes from which to free early.", MIN(0)),
    B("offload_activation", "false", NOT_BUILT, "Move activations to host memory.",
      NOTE("offload of activations is not built yet; set it to false")),
    B("offload_activation_pin_memory", "true", PART, "Page-locked host memory."),
    B("offload_opt_states", "false", NOT_BUILT, "Move optimizer state to host memory.",
      NOTE("this form of offload is not built yet; set it to false")),
    B("double_buffer", "true", NO_EFFECT, "Two buffers for gathers.", COMPILE_NOTE),
    B("symmetric_memory", "false", NO_EFFECT, "Symmetric memory of GPUs.", COMPILE_NOTE),
    B("debug_log", "false", NO_EFFECT, "Print graphs.", COMPILE_NOTE),
    B("offload_parameters", "false", NOT_BUILT, "Move parameters to host memory.",
      NOTE("this form of offload is not built yet; set it to false")),
    B("sync_before_reduce", "false", NO_EFFECT, "Wait before reductions.", COMPILE_NOTE),
    B("sync_after_reduce", "false", NO_EFFECT, "Wait after reductions.", COMPILE_NOTE),
    B("sync_before_allgather", "false", NO_EFFECT, "Wait before gathers.", COMPILE_NOTE),
    B("sync_after_allgather", "false", NO_EFFECT, "Wait after gathers.", COMPILE_NOTE),
    B("keep_int_input_tensors", "true", NO_EFFECT, "Keep integer inputs.", COMPILE_NOTE),
    B("keep_all_input_tensors", "false", NO_EFFECT, "Keep all inputs.", COMPILE_NOTE),
    B("enabled", "false", NO_EFFECT, "torch.compile, in DeepSpeed 0.14.", COMPILE_NOTE),
    B("disable", "false", NO_EFFECT, "No torch.compile, in DeepSpeed 0.14.", COMPILE_NOTE),
    T("backend", "null", NO_EFFECT, "Of torch.compile, in DeepSpeed 0.14.", WITH(NULLABLE),
      COMPILE_NOTE),
    OBJECT("kwargs", "null", NO_EFFECT, "Of torch.compile, in DeepSpeed 0.14.", WITH(NULLABLE),
           COMPILE_NOTE),
    TEXTS("passes", "null", NO_EFFECT, "Passes by name: z1, z3, autosp, autotp.", WITH(NULLABLE),
          COMPILE_NOTE),
};
const dsi_section dsi_section_compile = {
    .path = "compile",
    .doc = "DeepCompile.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(compile_rows),
};

static const dsi_option model_info_rows[] = {
    B("profile", "false", IN_FORCE,
      "Run the program once with micro-batch 1 and ZeRO 3 to learn parameters and activations; "
      "ds_train's model is planned and needs no such run.",
      FIELD(autotuning.profile_model)),
    I("num_params", "null", IN_FORCE, "Parameters of the model; saves that run.", MIN(0),
      WITH(NULLABLE), FIELD(autotuning.num_params)),
    I("hidden_size", "null", IN_FORCE,
      "Width: with fast false, the bucket sizes of stage 3 that are tried come from it.", MIN(0),
      WITH(NULLABLE), FIELD(autotuning.hidden_size)),
    I("num_layers", "null", NO_EFFECT, "Layers.", MIN(0), WITH(NULLABLE),
      NOTE("parameters and activations say what memory needs")),
};
static const dsi_section model_info = {
    .path = "autotuning.model_info",
    .doc = "What is known of the model, for programs whose model `deepspeed` cannot plan itself.",
    .flags = DSI_SECTION_OPEN | DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(model_info_rows),
};
static const dsi_option autotuning_rows[] = {
    B("enabled", "false", IN_FORCE,
      "deepspeed --autotuning may search; a run measures its steps and writes metric_path.",
      FIELD(autotuning.enabled)),
    B("fast", "true", IN_FORCE,
      "Tune stage, micro-batch, recomputation and offload only; false: bucket sizes and the other "
      "settings of ZeRO too.",
      FIELD(autotuning.fast)),
    T("results_dir", "\"autotuning_results\"", IN_FORCE, "Folder of results.", WITH(NULLABLE),
      FIELD(autotuning.results_dir)),
    T("exps_dir", "\"autotuning_exps\"", IN_FORCE, "Folder of the trials' descriptions.",
      WITH(NULLABLE), FIELD(autotuning.exps_dir)),
    B("overwrite", "false", IN_FORCE,
      "Run trials again whose results are there; else the search goes on from them.",
      FIELD(autotuning.overwrite)),
    I("start_profile_step", "3", IN_FORCE, "First measured step of a run, from 1.", MIN(0),
      FIELD(autotuning.start_profile_step)),
    I("end_profile_step", "5", IN_FORCE, "Last measured step; a trial ends after it.", MIN(0),
      FIELD(autotuning.end_profile_step)),
    E("metric", "\"throughput\"", IN_FORCE,
      "What is best: samples a second, operations a second (both: more), or time of a step, of its "
      "forward, backward or update (less).",
      .choices = "throughput|latency|flops|forward|backward|step", WITH(ANY_CASE),
      FIELD(autotuning.metric)),
    T("metric_path", "null", IN_FORCE,
      "Where a run writes what it measured; null: ./autotuning_metric.json. A trial's is in its "
      "folder.",
      WITH(NULLABLE), FIELD(autotuning.metric_path)),
    E("tuner_type", "\"model_based\"", IN_FORCE,
      "Order of trials: the best predicted first, corrected by what was measured; gridsearch: "
      "stage by stage; random.",
      .choices = "gridsearch|random|model_based", FIELD(autotuning.tuner)),
    I("tuner_early_stopping", "5", IN_FORCE, "Trials without gain before the end; 0: no such end.",
      MIN(0), FIELD(autotuning.early_stopping)),
    I("tuner_num_trials", "50", IN_FORCE, "Most trials.", MIN(1), FIELD(autotuning.num_trials)),
    OBJECT("arg_mappings", "null", IN_FORCE,
           "Keys to flags of the program: a trial sets the flag too. ds_train's are known.",
           WITH(NULLABLE)),
    S("model_info", "null", IN_FORCE, "What is known of the model.", WITH(NULLABLE),
      .section = &model_info),
    T("model_info_path", "null", IN_FORCE,
      "Where a run writes parameters and activations with model_info.profile; null: "
      "./autotuning_model_info.json.",
      WITH(NULLABLE), FIELD(autotuning.model_info_path)),
    I("mp_size", "1", NOT_BUILT, "Ranks of one model.", MIN(1), .harmless = "1",
      NOTE("ranks that share layers are tensor_parallel.autotp_size, which the autotuner "
           "tries where the file says nothing of it; set it to 1")),
    I("max_train_batch_size", "null", IN_FORCE, "Largest batch of all ranks.", MIN(1),
      WITH(NULLABLE), FIELD(autotuning.max_train_batch_size)),
    I("min_train_batch_size", "1", IN_FORCE, "Smallest batch of all ranks.", MIN(1),
      FIELD(autotuning.min_train_batch_size)),
    I("max_train_micro_batch_size_per_gpu", "1024", IN_FORCE, "Largest micro-batch.", MIN(1),
      FIELD(autotuning.max_micro_batch)),
    I("min_train_micro_batch_size_per_gpu", "1", IN_FORCE, "Smallest micro-batch.", MIN(1),
      FIELD(autotuning.min_micro_batch)),
    I("num_tuning_micro_batch_sizes", "3", IN_FORCE, "Micro-batches that are run for a stage.",
      MIN(1), FIELD(autotuning.num_micro_batches)),
};
const dsi_section dsi_section_autotuning = {
    .path = "autotuning",
    .doc = "Search for fast settings by `deepspeed --autotuning tune|run`, see "
           "docs/autotuning.md.",
    DSI_SECTION_ROWS(autotuning_rows),
};
