/* SPDX-License-Identifier: Apache-2.0 */
/* Predictions against published figures: data parallel, ZeRO and FSDP in bf16 on A100 and H100.
 *
 * usage: bench_published [--only TEXT] [--timeline]
 * Nothing is run: each configuration is planned for its world size from its config.json and
 * simulated on the shipped profile of its device. Prints tokens a second and device, predicted and
 * published, and MFU by our count (causal attention counts half). docs/measurements/plan.md
 * discusses the differences. Sources:
 *   M  MosaicML llm-foundry, scripts/train/benchmarking/README.md (FSDP full shard; MPT, whose
 * layers are GPT-2's without biases; the count of parameters is theirs) T  torchtitan,
 * benchmarks/llama3_h100_202412_torchtitan.md (FSDP2, compiled; H100 of 500 W with 2.4 TB/s;
 * op-selective checkpointing repeats half of the products, ours none) L  llm.c,
 * scripts/run_gpt2_124M.sh and run_gpt2_1558M.sh (ZeRO-1)
 */
#include "base/clock.h"
#include "common/plan_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES = 512 };

typedef struct published {
    const char *source, *device;
    const char *family; /* "gpt2", "llama3" */
    int64_t width, heads, layers;
    plan_case c;
    double tokens_per_second; /* of a device */
} published;

#define GPT(width, heads, layers) "gpt2", (width), (heads), (layers)
#define MPT_1B                    GPT(2048, 16, 24)
#define MPT_3B                    GPT(2560, 32, 32)
#define MPT_7B                    GPT(4096, 32, 32)
#define MPT_13B                   GPT(5120, 40, 40)
#define MPT_30B                   GPT(7168, 56, 48)
#define MPT_70B                   GPT(8192, 64, 80)
#define LLAMA_8B                  "llama3", 4096, 32, 32

#define RUN(text, stage, ranks, batch, seq, accumulation, recompute)                               \
    {                                                                                              \
        (text), NULL, DS_DTYPE_BF16, (stage), (ranks), (batch), (seq), (accumulation),             \
            DS_RECOMPUTE_##recompute, true                                                         \
    }

#define H100_500W                                                                                  \
    "{\"base\": \"h100-sxm\", \"name\": \"h100-500w\", \"memory\": {\"bytes\": 1.02e11, "          \
    "\"bandwidth\": 2.4e12}}"
#define A100_ROCE "{\"base\": \"a100-80g\", \"name\": \"a100-80g-roce\", \"network\": \"roce-200\"}"

static const published rows[] = {
    {"T", H100_500W, LLAMA_8B, RUN("llama3 8B", 3, 8, 2, 8192, 1, SELECTIVE), 6667.0},
    {"T", H100_500W, LLAMA_8B, RUN("llama3 8B", 3, 128, 2, 8192, 1, SELECTIVE), 6514.0},
    {"M", "h100-sxm", MPT_1B, RUN("mpt 1b", 3, 8, 14, 2048, 1, NONE), 45455.0},
    {"M", "h100-sxm", MPT_1B, RUN("mpt 1b", 3, 64, 20, 2048, 1, NONE), 44402.0},
    {"M", "h100-sxm", MPT_3B, RUN("mpt 3b", 3, 16, 10, 2048, 3, NONE), 24142.0},
    {"M", "h100-sxm", MPT_3B, RUN("mpt 3b", 3, 64, 6, 2048, 3, NONE), 22525.0},
    {"M", "h100-sxm", MPT_7B, RUN("mpt 7b", 3, 8, 6, 2048, 1, NONE), 10643.0},
    {"M", "h100-sxm", MPT_7B, RUN("mpt 7b", 3, 8, 8, 8192, 2, FULL), 6935.0},
    {"M", "h100-sxm", MPT_13B, RUN("mpt 13b", 3, 8, 2, 2048, 1, NONE), 4792.0},
    {"M", "h100-sxm", MPT_13B, RUN("mpt 13b", 3, 64, 2, 2048, 1, NONE), 4800.0},
    {"M", "h100-sxm", MPT_30B, RUN("mpt 30b", 3, 32, 14, 2048, 3, FULL), 2308.0},
    {"M", "h100-sxm", MPT_70B, RUN("mpt 70b", 3, 32, 2, 2048, 16, FULL), 882.0},
    {"M", "h100-sxm", MPT_70B, RUN("mpt 70b", 3, 64, 8, 2048, 4, FULL), 1039.0},
    {"M", A100_ROCE, MPT_1B, RUN("mpt 1b", 3, 8, 14, 2048, 4, NONE), 20513.0},
    {"M", A100_ROCE, MPT_3B, RUN("mpt 3b", 3, 8, 10, 2048, 2, NONE), 10811.0},
    {"M", A100_ROCE, MPT_7B, RUN("mpt 7b", 3, 8, 6, 2048, 2, NONE), 4641.0},
    {"M", A100_ROCE, MPT_7B, RUN("mpt 7b", 3, 8, 8, 8192, 2, FULL), 3206.0},
    {"M", A100_ROCE, MPT_13B, RUN("mpt 13b", 3, 8, 2, 2048, 3, NONE), 2262.0},
    {"M", A100_ROCE, MPT_30B, RUN("mpt 30b", 3, 8, 3, 2048, 21, FULL), 916.0},
    {"M", A100_ROCE, MPT_70B, RUN("mpt 70b", 3, 32, 2, 2048, 16, FULL), 373.0},
    {"M", A100_ROCE, MPT_70B, RUN("mpt 70b", 3, 64, 8, 2048, 4, FULL), 410.0},
    {"M", "a100-40g", MPT_7B, RUN("mpt 7b", 3, 128, 18, 2048, 1, FULL), 3623.0},
    {"M", "a100-40g", MPT_70B, RUN("mpt 70b", 3, 128, 4, 2048, 1, FULL), 376.0},
    {"L", "a100-80g", GPT(768, 12, 12), RUN("gpt2 124M", 1, 8, 64, 1024, 1, NONE), 218000.0},
    {"L", "h100-sxm", GPT(1600, 25, 48), RUN("gpt2 1558M", 1, 8, 16, 1024, 8, NONE), 46800.0},
};

static void config_text(const published *p, char *text)
{
    if (strcmp(p->family, "gpt2") == 0) {
        (void)snprintf(text, TEXT_BYTES,
                       "{\"model_type\":\"gpt2\",\"architectures\":[\"GPT2LMHeadModel\"],"
                       "\"vocab_size\":%d,\"n_positions\":%lld,\"n_embd\":%lld,\"n_layer\":%lld,"
                       "\"n_head\":%lld,\"resid_pdrop\":0.0,\"embd_pdrop\":0.0,\"attn_pdrop\":0.0,"
                       "\"activation_function\":\"gelu_new\"}",
                       50368, (long long)p->c.seq_length, (long long)p->width, (long long)p->layers,
                       (long long)p->heads);
        return;
    }
    (void)snprintf(text, TEXT_BYTES,
                   "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],"
                   "\"vocab_size\":128256,\"hidden_size\":%lld,\"intermediate_size\":14336,"
                   "\"num_hidden_layers\":%lld,\"num_attention_heads\":%lld,"
                   "\"num_key_value_heads\":8,\"max_position_embeddings\":8192,"
                   "\"rms_norm_eps\":1e-5,\"rope_theta\":500000.0,\"hidden_act\":\"silu\","
                   "\"tie_word_embeddings\":false}",
                   (long long)p->width, (long long)p->layers, (long long)p->heads);
}

static ds_status find_device(ds_ctx *ctx, const char *device, dsi_device *out)
{
    return device[0] == '{' ? dsi_device_parse(ctx, "profile", device, strlen(device), out)
                            : dsi_device_find(ctx, device, out);
}

static ds_status run_row(ds_ctx *ctx, const published *p, bool timeline, double *ratio_out)
{
    char text[TEXT_BYTES];
    dsi_device device;
    ds_model *model = NULL;
    plan_prediction prediction = {.plan = {.ctx = ctx}};
    const double start = dsi_clock_seconds();
    config_text(p, text);
    DS_TRY(find_device(ctx, p->device, &device));
    DS_TRY(plan_case_model(ctx, text, &model));
    const ds_status status = plan_case_predict(ctx, &p->c, model, &device, p->c.ranks, &prediction);
    if (status >= 0) {
        const dsi_timeline *t = prediction.timeline;
        *ratio_out = t->tokens_per_second / p->tokens_per_second;
        (void)printf("%s %-11s %4u x %-14s %2lld x %-5lld %-9s %8.0f %9.0f %6.2f %5.1f%% %5.1f%% "
                     "%6.1f%% %5.2f\n",
                     p->source, p->c.name, p->c.ranks, device.name, (long long)p->c.batch,
                     (long long)p->c.seq_length,
                     p->c.recompute == DS_RECOMPUTE_FULL   ? "full"
                     : p->c.recompute == DS_RECOMPUTE_NONE ? "none"
                                                           : "selective",
                     p->tokens_per_second, t->tokens_per_second, *ratio_out, 100.0 * t->mfu,
                     100.0 * t->hfu, 100.0 * t->step.exposed_comm / t->step.seconds,
                     dsi_clock_seconds() - start);
        if (timeline) {
            dsi_buf page = dsi_buf_make(1 << 20);
            dsi_timeline_print(t, &page);
            (void)fputs(dsi_buf_text(&page), stdout);
            dsi_buf_free(&page);
        }
    }
    plan_case_free(&prediction);
    ds_model_destroy(&model);
    return status;
}

int main(int argc, char **argv)
{
    ds_ctx *ctx = NULL;
    ds_ctx_params params = ds_ctx_params_default();
    const char *only = NULL;
    bool timeline = false;
    double sum = 0.0;
    int n = 0;
    params.level = DS_LOG_WARN;
    for (int i = 1; i < argc; ++i) {
        timeline = timeline || strcmp(argv[i], "--timeline") == 0;
        only = strcmp(argv[i], "--only") == 0 && i + 1 < argc ? argv[i + 1] : only;
    }
    if (ds_ctx_create(&params, &ctx) < 0) {
        return 1;
    }
    (void)printf("  %-11s %-21s %-10s %-9s %8s %9s %6s %6s %6s %7s %5s\n", "model", "devices",
                 "batch", "recompute", "tokens/s", "predicted", "ratio", "MFU", "HFU", "exposed",
                 "plan s");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        double ratio = 0.0;
        if (only != NULL && strstr(rows[i].c.name, only) == NULL) {
            continue;
        }
        if (run_row(ctx, &rows[i], timeline, &ratio) < 0) {
            (void)fprintf(stderr, "bench_published: %s: %s\n", rows[i].c.name, ds_ctx_error(ctx));
            return 1;
        }
        sum += log(ratio);
        ++n;
    }
    if (n > 0) {
        (void)printf("geometric mean of predicted/published: %.2f over %d\n", exp(sum / n), n);
    }
    ds_ctx_destroy(&ctx);
    return 0;
}
