/* SPDX-License-Identifier: Apache-2.0 */
/* See served_models.h. */
#include "common/served_models.h"

#include "common/check.h"
#include "common/golden.h"
#include "common/serve_crowd.h"
#include "common/small_run.h"

#include <deepspeed/engine.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { TEXT = 2048, PAIRS = 10 }; /* the first ones are T5, or are made */

static const served_family families[] = {
    {.folder = "t5/t5", .adapters = {"t5/adapters/encoder", "t5/adapters/cross"}},
    {.folder = "t5/t5", .adapters = {"t5/adapters/decoder", "adapter/t5_lora/end"}},
    {.folder = "t5/t5_untied"},
    {.folder = "t5/t5_start"},
    {.folder = "t5/t5_shared"},
    {.folder = "t5/blocks_tied"},
    {.folder = "t5/blocks_untied"},
    {.folder = NULL},
    {.folder = NULL},
    {.folder = NULL},
    {.folder = "adapter/models/llama", .adapters = {"adapter/lora/start", "adapter/lora/end"}},
    {.name = "bloom"},
    {.name = "cohere"},
    {.name = "cohere2"},
    {.name = "cohere_norms"},
    {.name = "deepseek_v2"},
    {.name = "deepseek_v2_groups"},
    {.name = "deepseek_v3"},
    {.name = "deepseek_v3_halves"},
    {.name = "falcon"},
    {.name = "falcon_groups"},
    {.name = "falcon_heads"},
    {.name = "falcon_rw"},
    {.name = "gemma"},
    {.name = "gemma2"},
    {.name = "gemma3"},
    {.name = "glm"},
    {.name = "glm4"},
    {.name = "glm4_moe"},
    {.name = "gpt2"},
    {.name = "gpt_neox"},
    {.name = "gpt_oss"},
    {.name = "gptj"},
    {.name = "granite"},
    {.name = "granitemoe"},
    {.name = "llama2"},
    {.name = "llama3"},
    {.name = "llama3_tied"},
    {.name = "mistral"},
    {.name = "mixtral"},
    {.name = "mpt"},
    {.name = "olmo"},
    {.name = "olmo2"},
    {.name = "olmoe"},
    {.name = "opt"},
    {.name = "opt_behind"},
    {.name = "phi3"},
    {.name = "phi3_heads"},
    {.name = "phi3_longrope"},
    {.name = "qwen2"},
    {.name = "qwen2_moe"},
    {.name = "qwen3"},
    {.name = "qwen3_moe"},
    {.name = "qwen3_next"},
    {.name = "rope_dynamic"},
    {.name = "rope_linear"},
    {.name = "rope_yarn"},
    {.name = "smollm3"},
    {.name = "stablelm"},
    {.name = "stablelm_norms"},
    {.name = "stablelm_parallel"},
    {.name = "starcoder2"},
};
enum { FAMILIES = sizeof families / sizeof families[0] };

const served_family *served_draw(uint64_t *seed)
{
    return &families[crowd_below(seed, 3) == 0 ? crowd_below(seed, PAIRS)
                                               : crowd_below(seed, FAMILIES)];
}

static const char *either(uint64_t *seed, const char *a, const char *b)
{
    return crowd_below(seed, 2) ? a : b;
}

static void draw_pairs(uint64_t *seed, char *text, size_t room)
{
    static const char *const forms[] = {"relu", "gated-gelu", "gated-silu", "gelu_new"};
    static const uint32_t widths[] = {4, 8, 10, 16, 24, 64};
    (void)snprintf(
        text, room,
        "{\"model_type\":\"t5\",\"architectures\":[\"T5ForConditionalGeneration\"],"
        "\"vocab_size\":%u,\"d_model\":%u,\"d_kv\":%u,\"d_ff\":%u,\"num_layers\":%u,"
        "\"num_decoder_layers\":%u,\"num_heads\":%u,\"dropout_rate\":0.0,"
        "\"feed_forward_proj\":\"%s\",\"tie_word_embeddings\":%s,\"pad_token_id\":0,"
        "\"eos_token_id\":1,\"decoder_start_token_id\":0,\"relative_attention_num_buckets\":%u,"
        "\"relative_attention_max_distance\":%u,\"initializer_factor\":%u.0}",
        40 + crowd_below(seed, 90), 8 * (2 + crowd_below(seed, 8)), widths[crowd_below(seed, 6)],
        8 * (1 + crowd_below(seed, 12)), 1 + crowd_below(seed, 3), 1 + crowd_below(seed, 3),
        1 + crowd_below(seed, 5), forms[crowd_below(seed, 4)], either(seed, "true", "false"),
        4 * (1 + crowd_below(seed, 6)), 24 + crowd_below(seed, 100), 1 + crowd_below(seed, 3));
}

static void draw_decoder(uint64_t *seed, char *text, size_t room)
{
    static const char *const types[] = {"llama", "qwen3", "mistral", "mixtral"};
    static const uint32_t widths[] = {4, 10, 16, 24, 64, 128};
    const uint32_t keys = 1 + crowd_below(seed, 3);
    (void)snprintf(
        text, room,
        "{\"model_type\":\"%s\",\"vocab_size\":%u,\"hidden_size\":%u,\"intermediate_size\":%u,"
        "\"num_hidden_layers\":%u,\"num_attention_heads\":%u,\"num_key_value_heads\":%u,"
        "\"head_dim\":%u,\"max_position_embeddings\":256,\"rms_norm_eps\":1e-5,"
        "\"hidden_act\":\"silu\",\"sliding_window\":%u,\"num_local_experts\":4,"
        "\"num_experts_per_tok\":2,\"initializer_range\":0.2,\"tie_word_embeddings\":%s}",
        types[crowd_below(seed, 4)], 40 + crowd_below(seed, 90), 8 * (2 + crowd_below(seed, 8)),
        8 * (1 + crowd_below(seed, 12)), 1 + crowd_below(seed, 3),
        keys * (1 + crowd_below(seed, 4)), keys, widths[crowd_below(seed, 6)],
        5 + crowd_below(seed, 40), either(seed, "true", "false"));
}

/* A model that nobody has seen, with weights at random. */
static void make_model(ds_ctx *ctx, uint64_t *seed, const char *folder)
{
    static const char how[] = "{\"train_micro_batch_size_per_gpu\":1,\"optimizer\":{\"type\":"
                              "\"SGD\",\"params\":{\"lr\":0.1}}}";
    char text[TEXT];
    ds_config *config = NULL;
    ds_engine *engine = NULL;
    (crowd_below(seed, 3) > 0 ? draw_pairs : draw_decoder)(seed, text, sizeof text);
    ds_model *model = small_model(ctx, folder, text);
    CHECK_OK(ctx, ds_config_load_text(ctx, "a test", how, strlen(how), NULL, &config));
    CHECK_OK(ctx, ds_config_resolve(config, 1, NULL));
    const ds_engine_params params = {.model = model,
                                     .config = config,
                                     .seq_length = 16,
                                     .seed = 1 + crowd_below(seed, 1000),
                                     .accelerator = "cpu"};
    CHECK_OK(ctx, ds_initialize(ctx, &params, &engine));
    CHECK_OK(ctx, ds_engine_save_16bit_model(engine, folder, NULL));
    ds_engine_destroy(&engine);
    ds_config_destroy(&config);
    ds_model_destroy(&model);
}

void served_folder(ds_ctx *ctx, const served_family *family, uint64_t *seed, const char *scratch,
                   char *folder, size_t room)
{
    if (family->name != NULL) {
        golden_path(folder, room, "parity/%s", family->name);
    } else if (family->folder != NULL) {
        golden_path(folder, room, "%s", family->folder);
    } else {
        (void)snprintf(folder, room, "%s", scratch);
        make_model(ctx, seed, scratch);
    }
}

void served_add(served_distance *d, const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; ++i) {
        d->sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    }
    d->n += n;
}

double served_root(const served_distance *d)
{
    return d->n > 0 ? sqrt(d->sum / (double)d->n) : 0.0;
}
