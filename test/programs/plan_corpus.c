/* SPDX-License-Identifier: Apache-2.0 */
/* The corpus of plans: what ranks run, for models × stages × ranks × types × options, in a text
 * that says operators, operands, order and bytes, and leaves out what a lowering may choose freely:
 * numbers of buckets, waits, addresses, kernels.
 *
 *     plan_corpus              a line a plan: its name, a hash of the text, steps, bytes of memory
 *     plan_corpus show NAME    the text of one
 *
 * Kernels are those of the null accelerator, so the answers do not depend on the machine. The
 * options of a plan follow from its number. test_plan_corpus.sh compares with
 * test/golden/plan_corpus.txt.
 */
#include "base/buf.h"
#include "common/config_plan.h"
#include "op/ops.h"
#include "report/plan_report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- what is planned ------------------------------------------------------------------------- */

static const struct {
    const char *name, *json, *frozen;
} models[] = {
    {"gpt2",
     "{\"model_type\":\"gpt2\",\"architectures\":[\"GPT2LMHeadModel\"],\"vocab_size\":211,"
     "\"n_positions\":64,\"n_embd\":48,\"n_layer\":3,\"n_head\":4,\"resid_pdrop\":0.1,"
     "\"embd_pdrop\":0.1,\"attn_pdrop\":0.1}",
     NULL},
    {"gpt2_frozen",
     "{\"model_type\":\"gpt2\",\"architectures\":[\"GPT2LMHeadModel\"],\"vocab_size\":256,"
     "\"n_positions\":64,\"n_embd\":64,\"n_layer\":2,\"n_head\":2,\"resid_pdrop\":0.0,"
     "\"embd_pdrop\":0.0,\"attn_pdrop\":0.0}",
     "transformer.h.0.*"},
    {"llama",
     "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"vocab_size\":131,"
     "\"hidden_size\":48,\"intermediate_size\":88,\"num_hidden_layers\":3,"
     "\"num_attention_heads\":6,\"num_key_value_heads\":2,\"max_position_embeddings\":64,"
     "\"rms_norm_eps\":1e-5,\"hidden_act\":\"silu\",\"tie_word_embeddings\":false}",
     NULL},
    {"qwen2",
     "{\"model_type\":\"qwen2\",\"architectures\":[\"Qwen2ForCausalLM\"],\"vocab_size\":128,"
     "\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":2,"
     "\"num_attention_heads\":4,\"num_key_value_heads\":4,\"max_position_embeddings\":64,"
     "\"rms_norm_eps\":1e-6,\"hidden_act\":\"silu\",\"tie_word_embeddings\":true}",
     NULL},
};

static const char *const types[] = {"f32", "bf16", "fp16"};
static const uint32_t ranks[] = {1, 2, 3, 4, 8};

/* Options: each a row of alternatives, of which a plan's number picks one. */
static const char *const optimizers[] = {"AdamW", "AdamW", "AdamW", "SGD", "Lion", "Adagrad"};
static const char *const recomputes[] = {"none", "none", "selective", "full"};
static const char *const buckets[] = {"1000", "20000", "500000000"};
static const char *const thresholds[] = {"2000", "0", "100000"};
static const char *const offloads[] = {"none", "none", "none", "cpu"};
static const char *const zenflow =
    "\"zenflow\":{\"select_strategy\":\"step\",\"select_interval\":4,"
    "\"update_interval\":2,\"topk_ratio\":0.1},";

enum { MODELS = 4, STAGES = 4, TYPES = 3, RANKS = 5, VARIANTS = 4, SEQ = 32 };
#define COUNT(list) (sizeof(list) / sizeof(list)[0])

typedef struct plan_case {
    uint32_t model, stage, type, ranks, variant;
    char name[96];
    char config[2048];
} plan_case;

/* A number below n that follows from the case and the row of options; variant 0 has all the first.
 */
static uint32_t pick(const plan_case *c, uint32_t row, uint32_t n)
{
    const uint32_t key[] = {c->model, c->stage, c->type, c->ranks, c->variant, row};
    return c->variant == 0 ? 0 : (uint32_t)(XXH64(key, sizeof key, 7) % n);
}

static void write_config(plan_case *c)
{
    const uint32_t stage = c->stage;
    const bool has_zenflow = stage > 0 && pick(c, 1, 6) == 5;
    const bool cpu = stage > 0 && (has_zenflow || pick(c, 2, COUNT(offloads)) == 3);
    const bool params_cpu = stage == 3 && pick(c, 3, 4) == 3;
    const char *any = optimizers[pick(c, 4, COUNT(optimizers))];
    const char *optimizer = has_zenflow                         ? "AdamW"
                            : stage == 0 && pick(c, 19, 6) == 5 ? "Lamb"
                                                                : any;
    char type[96] = "";
    if (c->type > 0) {
        (void)snprintf(type, sizeof type, "\"%s\":{\"enabled\":true},", types[c->type]);
    }
    (void)snprintf(
        c->config, sizeof c->config,
        "{\"zero_allow_untested_optimizer\":true,\"train_micro_batch_size_per_gpu\":%u,\"gradient_"
        "accumulation_steps\":%u,%s"
        "\"deterministic\":%s,\"gradient_clipping\":%s,\"prescale_gradients\":%s,"
        "\"optimizer\":{\"type\":\"%s\",\"params\":{\"lr\":1e-3,\"weight_decay\":%s}},"
        "\"activation_checkpointing\":{\"recompute\":\"%s\"},"
        "\"zero_optimization\":{\"stage\":%u,\"overlap_comm\":%s,%s"
        "\"offload_optimizer\":{\"device\":\"%s\"},\"offload_param\":{\"device\":\"%s\"},"
        "\"reduce_bucket_size\":%s,\"allgather_bucket_size\":%s,"
        "\"stage3_prefetch_bucket_size\":%s,\"stage3_param_persistence_threshold\":%s,"
        "\"stage3_max_live_parameters\":%s,\"stage3_max_reuse_distance\":%s}}",
        1 + pick(c, 5, 3), pick(c, 6, 2) != 0 ? 4 : 1, type, pick(c, 7, 2) != 0 ? "true" : "false",
        pick(c, 8, 2) != 0 ? "0.0" : "1.0", pick(c, 9, 4) == 3 ? "true" : "false", optimizer,
        pick(c, 10, 2) != 0 ? "0.01" : "0.0", recomputes[pick(c, 11, COUNT(recomputes))], stage,
        pick(c, 12, 2) != 0 ? "false" : "true", has_zenflow ? zenflow : "", cpu ? "cpu" : "none",
        params_cpu ? "cpu" : "none", buckets[pick(c, 13, COUNT(buckets))],
        buckets[pick(c, 14, COUNT(buckets))], buckets[pick(c, 15, COUNT(buckets))],
        thresholds[pick(c, 16, COUNT(thresholds))], pick(c, 17, 2) != 0 ? "0" : "1000000000",
        pick(c, 18, 2) != 0 ? "0" : "1000000000");
    (void)snprintf(c->name, sizeof c->name, "%s/zero%u/%u_ranks/%s/%u", models[c->model].name,
                   stage, ranks[c->ranks], types[c->type], c->variant);
}

/* ---- the text of a plan ---------------------------------------------------------------------- */

typedef struct writer {
    const dsi_plan *plan;
    dsi_buf *text;
    uint32_t *number; /* per value of the graph: in the order of first sight; 0: not seen */
    uint32_t n_values, seen;
} writer;

static void write_operand(writer *w, const dsi_ref *ref)
{
    char meta[96];
    if (ref->space == DSI_SPACE_NONE) {
        dsi_buf_puts(w->text, " -");
        return;
    }
    (void)ds_meta_text(ref->meta, meta, sizeof meta);
    if (ref->space == DSI_SPACE_CELL) {
        const ds_cell_info *cell = ds_cells_get(w->plan->cells, ref->cell);
        dsi_buf_printf(w->text, " %s.%d:%s", cell->name, (int)cell->kind, meta);
        return;
    }
    if (w->number[ref->value] == 0) {
        w->number[ref->value] = ++w->seen;
    }
    dsi_buf_printf(w->text, " %%%u:%s", w->number[ref->value], meta);
}

static void write_attrs(writer *w, const dsi_step *step)
{
    if ((step->op->flags & DS_OP_COMM) != 0) { /* how many, and what becomes of the sums */
        const dsi_comm_attrs *comm = step->attrs;
        dsi_buf_printf(w->text, " over=%lld factor=%.17g parts=%u", (long long)comm->n_ranks,
                       comm->factor, step->n_parts);
        return;
    }
    for (uint32_t i = 0; i < step->op->n_attrs; ++i) {
        const ds_attr *attr = &step->op->attrs[i];
        const char *at = (const char *)step->attrs + attr->offset;
        if (attr->type == DS_ATTR_INT) {
            dsi_buf_printf(w->text, " %s=%lld", attr->name, (long long)*(const int64_t *)at);
        } else {
            dsi_buf_printf(w->text, " %s=%.17g", attr->name, *(const double *)at);
        }
    }
}

/* Waits are left out: they say when a step has ended, not what it does. */
static uint32_t write_steps(writer *w)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < w->plan->n_steps; ++s) {
        const dsi_step *step = &w->plan->steps[s];
        if (step->kind == DSI_STEP_WAIT) {
            continue;
        }
        dsi_buf_printf(w->text, "%s %s%s", w->plan->phases.items[step->phase].name, step->op->name,
                       step->recomputed ? " again" : "");
        write_attrs(w, step);
        dsi_buf_puts(w->text, " (");
        for (uint32_t i = 0; i < step->n_in; ++i) {
            write_operand(w, &w->plan->refs[step->in_at + i]);
        }
        dsi_buf_puts(w->text, " ) ->");
        for (uint32_t i = 0; i < step->n_out; ++i) {
            write_operand(w, &w->plan->refs[step->out_at + i]);
        }
        dsi_buf_printf(w->text, " bytes=%.17g @%s\n", step->cost.bytes, step->scope);
        ++n;
    }
    for (uint32_t i = 0; i < w->plan->n_outputs; ++i) {
        dsi_buf_printf(w->text, "output %s", w->plan->outputs[i].name);
        write_operand(w, &w->plan->outputs[i].ref);
        dsi_buf_puts(w->text, "\n");
    }
    return n;
}

static uint32_t most_value(const dsi_plan *plan)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < plan->n_refs; ++i) {
        const ds_value v = plan->refs[i].value;
        most = v != DS_NONE && v >= most ? v + 1 : most;
    }
    for (uint32_t i = 0; i < plan->n_outputs; ++i) {
        const ds_value v = plan->outputs[i].ref.value;
        most = v != DS_NONE && v >= most ? v + 1 : most;
    }
    return most;
}

static uint32_t write_plan(const dsi_plan *plan, const char *title, dsi_buf *text)
{
    writer w = {.plan = plan, .text = text, .n_values = most_value(plan)};
    w.number = calloc((size_t)w.n_values + 1, sizeof *w.number);
    if (w.number == NULL) {
        exit(1);
    }
    dsi_buf_printf(text, "== %s\n", title);
    const uint32_t n = write_steps(&w);
    free(w.number);
    return n;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static ds_status build(ds_ctx *ctx, const ds_model *model, const plan_case *c, dsi_rank_plan *plan)
{
    const config_plan what = {.name = c->name,
                              .config = c->config,
                              .frozen = models[c->model].frozen,
                              .n_ranks = ranks[c->ranks],
                              .seq_length = SEQ};
    return config_plan_build(ctx, model, &what, plan);
}

/* A line for the case; the text too, when `show`. A case that is refused has the reason instead. */
static int tell(ds_ctx *ctx, const ds_model *model, const plan_case *c, bool show)
{
    dsi_buf text = dsi_buf_make(64 << 20);
    dsi_rank_plan plan = {.ctx = ctx};
    if (build(ctx, model, c, &plan) < 0) {
        (void)printf("%s refused: %s\n", c->name, ds_ctx_error(ctx));
        return 0;
    }
    uint32_t steps = write_plan(plan.train_plan, "training", &text);
    steps += write_plan(plan.eval_plan, "evaluation", &text);
    if (show) {
        (void)printf("%s\n%s", c->config, dsi_buf_text(&text));
    }
    (void)printf("%s %016llx %u %zu %zu %zu\n", c->name,
                 (unsigned long long)XXH64(dsi_buf_text(&text), text.size, 0), steps,
                 plan.train_plan->arena_bytes, plan.train_plan->shared_bytes,
                 plan.eval_plan->arena_bytes);
    const int failed = text.failed ? 1 : 0;
    dsi_buf_free(&text);
    dsi_rank_plan_free(&plan);
    return failed;
}

/* The cases of a model, or the one of that name. */
static int tell_all(ds_ctx *ctx, uint32_t model, const char *only)
{
    ds_model *made = NULL;
    int failed = config_plan_model(ctx, models[model].json, &made) < 0;
    for (uint32_t i = 0; i < STAGES * RANKS * TYPES * VARIANTS && failed == 0; ++i) {
        plan_case c = {.model = model,
                       .stage = i / (RANKS * TYPES * VARIANTS),
                       .ranks = i / (TYPES * VARIANTS) % RANKS,
                       .type = i / VARIANTS % TYPES,
                       .variant = i % VARIANTS};
        write_config(&c);
        const bool single = ranks[c.ranks] == 1 && c.stage % 3 != 0; /* as stage 0 */
        if (only == NULL ? !single : strcmp(only, c.name) == 0) {
            failed = tell(ctx, made, &c, only != NULL);
        }
    }
    ds_model_destroy(&made);
    return failed;
}

int main(int argc, char **argv)
{
    ds_ctx_params params = ds_ctx_params_default();
    ds_ctx *ctx = NULL;
    int failed = 0;
    params.level = DS_LOG_ERROR;
    params.n_threads = 1;
    if ((argc != 1 && (argc != 3 || strcmp(argv[1], "show") != 0)) ||
        ds_ctx_create(&params, &ctx) < 0) {
        (void)fprintf(stderr, "usage: plan_corpus [show NAME]\n");
        return 2;
    }
    for (uint32_t m = 0; m < MODELS && failed == 0; ++m) {
        failed = tell_all(ctx, m, argc == 3 ? argv[2] : NULL);
    }
    if (failed != 0) {
        (void)fprintf(stderr, "plan_corpus: %s\n", ds_ctx_error(ctx));
    }
    ds_ctx_destroy(&ctx);
    return failed;
}
