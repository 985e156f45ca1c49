/* SPDX-License-Identifier: Apache-2.0 */
/* Random adapters that are trained in one run, each on its own tokens, against a run of each alone
 * whose other tokens are no targets: the same bits. So many tokens are targets of each that the
 * means of the two losses differ by a power of two, which Adam does not see.
 *
 *     test_adapter_rows_random [CASES [SEED]]
 *
 * What the engine refuses is counted, and only by words that are known. test/long/adapter_rows.sh
 * takes many cases.
 */
#include "common/check.h"
#include "common/scratch.h"

#include <deepspeed/engine.h>
#include <deepspeed/safetensors.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 3, ROWS = 4, SEQ = 32, DOCUMENT = 8, N_DOCUMENTS = ROWS * SEQ / DOCUMENT };
enum { MOST = 4, MOST_TARGETS = 3, VOCAB = 256, PATH_BYTES = 1024 };

static const char *const names[MOST] = {"a", "b", "c", "d"};
static const char *const known[] = {"\"use_dora\"", "\"init_lora_weights\"", "\"modules_to_save\""};

static const struct {
    const char *name, *targets[8]; /* the last two are seldom drawn */
} families[] = {
    {"llama",
     {"q_proj", "v_proj", "down_proj", "up_proj", "o_proj", "layers.1.self_attn.k_proj",
      "embed_tokens", "lm_head"}},
    {"gpt2",
     {"c_attn", "c_fc", "attn.c_proj", "mlp.c_proj", "h.0.attn.c_attn", "h.1.mlp.c_fc", "wte",
      "lm_head"}},
    {"mixtral",
     {"q_proj", "k_proj", "v_proj", "o_proj", "layers.0.self_attn.q_proj",
      "layers.1.self_attn.o_proj", "embed_tokens", "lm_head"}},
    {"qwen3_moe",
     {"q_proj", "k_proj", "v_proj", "o_proj", "layers.0.self_attn.v_proj",
      "layers.1.self_attn.k_proj", "embed_tokens", "lm_head"}},
    {"gpt_oss",
     {"q_proj", "k_proj", "v_proj", "o_proj", "layers.0.self_attn.v_proj",
      "layers.1.self_attn.k_proj", "embed_tokens", "lm_head"}},
};
enum { N_FAMILIES = sizeof families / sizeof families[0], FIRST_MOE = 2 };

typedef struct random_case {
    uint64_t state;
    uint32_t family, n; /* adapters */
    bool again;         /* recomputed */
    bool bf16;
    double beta;
    int32_t owner[N_DOCUMENTS]; /* the document's adapter; -1: none */
    int32_t first[ROWS * SEQ], at[ROWS * SEQ];
    int32_t ids[STEPS][ROWS * SEQ], targets[STEPS][ROWS * SEQ];
} random_case;

static ds_ctx *ctx;

static uint32_t draw(random_case *c, uint32_t n)
{
    c->state = c->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(c->state >> 33) % n;
}

/* As many documents of each adapter, and all of them a power of two times those of one; of each
 * document as many targets. */
static void draw_tokens(random_case *c)
{
    const uint32_t shares = c->n == 2 && draw(c, 2) == 0 ? 2 : 4;
    for (uint32_t d = 0; d < N_DOCUMENTS; ++d) {
        c->owner[d] = d % shares < c->n ? (int32_t)(d % shares) : -1;
    }
    for (uint32_t d = N_DOCUMENTS; d-- > 1;) {
        const uint32_t other = draw(c, d + 1);
        const int32_t owner = c->owner[d];
        c->owner[d] = c->owner[other];
        c->owner[other] = owner;
    }
    const uint32_t skipped = draw(c, 3);
    for (int32_t i = 0; i < ROWS * SEQ; ++i) {
        c->at[i] = i % DOCUMENT;
        c->first[i] = i % SEQ - i % DOCUMENT;
    }
    for (int s = 0; s < STEPS; ++s) {
        for (int32_t i = 0; i < ROWS * SEQ; ++i) {
            c->ids[s][i] = (int32_t)draw(c, VOCAB);
        }
        for (int32_t i = 0; i < ROWS * SEQ; ++i) {
            const int32_t place = i % DOCUMENT;
            const bool is_target = place >= (int32_t)skipped && place < DOCUMENT - 1;
            c->targets[s][i] = is_target ? c->ids[s][i + 1] : -100;
        }
    }
}

static ds_adapter *draw_adapter(random_case *c)
{
    static const char *const saved[] = {"norm"};
    const char *targets[MOST_TARGETS];
    const bool odd = draw(c, 12) == 0; /* what is refused */
    ds_adapter_params params = {.method = draw(c, 2) == 0 ? DS_ADAPTER_LORA : DS_ADAPTER_RSLORA,
                                .rank = 1 + draw(c, 5),
                                .alpha = draw(c, 3) == 0 ? 0.0 : 0.5 + draw(c, 9),
                                .targets = targets,
                                .n_targets = 1 + draw(c, MOST_TARGETS)};
    for (uint32_t i = 0; i < params.n_targets; ++i) {
        const uint32_t which = draw(c, 4) == 0 ? draw(c, 8) : draw(c, 6);
        targets[i] = families[c->family].targets[which];
    }
    if (draw(c, 8) == 0 && c->family < FIRST_MOE) { /* every linear layer */
        params.targets = NULL;
        params.n_targets = 0;
    }
    if (odd) {
        const uint32_t what = draw(c, 3);
        params.method = what == 0 ? DS_ADAPTER_DORA : what == 1 ? DS_ADAPTER_PISSA : params.method;
        params.modules_to_save = what == 2 ? saved : NULL;
        params.n_modules_to_save = what == 2 ? 1 : 0;
    }
    ds_adapter *adapter = NULL;
    CHECK_OK(ctx, ds_adapter_create(ctx, &params, &adapter));
    return adapter;
}

static ds_status start(const random_case *c, ds_adapter *adapter, ds_model **model,
                       ds_engine **engine)
{
    char folder[PATH_BYTES];
    char path[PATH_BYTES + 16];
    char text[512];
    ds_config *config = NULL;
    const int n =
        snprintf(text, sizeof text,
                 "{\"train_micro_batch_size_per_gpu\": 4, \"bf16\": {\"enabled\": %s}, "
                 "\"activation_checkpointing\": {\"recompute\": \"%s\"}, "
                 "\"gradient_clipping\": 0.0, \"optimizer\": {\"type\": \"AdamW\", \"params\": "
                 "{\"lr\": 1e-2, \"eps\": 1e-30, \"betas\": [%g, 0.99]}}}",
                 c->bf16 ? "true" : "false", c->again ? "full" : "none", c->beta);
    (void)snprintf(folder, sizeof folder, DS_SOURCE_DIR "/test/golden/adapter/models/%s",
                   families[c->family].name);
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    CHECK_OK(ctx, ds_model_from_config(ctx, path, model));
    CHECK_OK(ctx, ds_adapter_fit(adapter, model));
    CHECK_OK(ctx, ds_config_load_text(ctx, "test", text, (size_t)n, NULL, &config));
    CHECK_OK(ctx, ds_config_resolve(config, 1, NULL));
    const ds_engine_params params = {.model = *model,
                                     .config = config,
                                     .seq_length = SEQ,
                                     .weights = folder,
                                     .adapter = adapter};
    const ds_status status = ds_initialize(ctx, &params, engine);
    ds_config_destroy(&config);
    return status;
}

static int32_t owner_of(const random_case *c, int32_t token)
{
    return c->owner[token / DOCUMENT];
}

/* Of all adapters (alone -1), or of one: its tokens alone are targets. Mean of the losses. */
static double train(const random_case *c, ds_engine *engine, int32_t alone)
{
    int32_t targets[ROWS * SEQ], adapters[ROWS * SEQ];
    const ds_meta meta = {DS_DTYPE_I32, ds_shape_2d(ROWS, SEQ)};
    double sum = 0.0;
    for (int s = 0; s < STEPS; ++s) {
        for (int32_t i = 0; i < ROWS * SEQ; ++i) {
            adapters[i] = owner_of(c, i);
            targets[i] = alone < 0 || adapters[i] == alone ? c->targets[s][i] : -100;
        }
        const ds_named_tensor tensors[] = {{"input_ids", {(void *)(uintptr_t)c->ids[s], meta}},
                                           {"targets", {targets, meta}},
                                           {"positions", {(void *)(uintptr_t)c->at, meta}},
                                           {"first", {(void *)(uintptr_t)c->first, meta}},
                                           {"adapters", {adapters, meta}}};
        const ds_batch batch = {tensors, alone < 0 ? 5 : 4};
        CHECK_OK(ctx, ds_engine_forward(engine, &batch));
        sum += ds_engine_loss(engine);
        CHECK_OK(ctx, ds_engine_backward(engine));
        CHECK_OK(ctx, ds_engine_step(engine));
    }
    return sum / STEPS;
}

static void check_same(const char *got_folder, const char *want_folder, const char *what)
{
    char path[2 * PATH_BYTES];
    ds_safetensors *got = NULL, *want = NULL;
    (void)snprintf(path, sizeof path, "%s/adapter_model.safetensors", got_folder);
    CHECK_OK(ctx, ds_safetensors_open(ctx, path, &got));
    (void)snprintf(path, sizeof path, "%s/adapter_model.safetensors", want_folder);
    CHECK_OK(ctx, ds_safetensors_open(ctx, path, &want));
    assert_int_equal(ds_safetensors_count(got), ds_safetensors_count(want));
    for (size_t i = 0; i < ds_safetensors_count(want); ++i) {
        const ds_safetensor *b = ds_safetensors_at(want, i);
        const ds_safetensor *a = ds_safetensors_find(got, b->name);
        if (a == NULL || a->bytes != b->bytes || memcmp(a->data, b->data, a->bytes) != 0) {
            double most = 0.0;
            for (size_t k = 0; a != NULL && k < a->bytes / sizeof(float); ++k) {
                most = fmax(most, fabs((double)((const float *)a->data)[k] -
                                       (double)((const float *)b->data)[k]));
            }
            fail_msg("%s: %s differs by %g", what, b->name, most);
        }
    }
    ds_safetensors_close(&got);
    ds_safetensors_close(&want);
}

/* false: refused. */
static bool run_case(uint64_t seed)
{
    random_case c = {.state = seed * 7919 + 17};
    ds_adapter *all[MOST] = {NULL};
    ds_model *model = NULL;
    ds_engine *engine = NULL;
    char what[128];
    c.family = draw(&c, N_FAMILIES);
    c.n = 2 + draw(&c, 3);
    c.again = draw(&c, 3) == 0;
    c.beta = draw(&c, 2) == 0 ? 0.9 : 0.5;
    c.bf16 = draw(&c, 2) == 0;
    draw_tokens(&c);
    for (uint32_t k = 0; k < c.n; ++k) {
        all[k] = draw_adapter(&c);
    }
    (void)snprintf(what, sizeof what, "case %llu, %s in %s, %u adapters%s",
                   (unsigned long long)seed, families[c.family].name, c.bf16 ? "bf16" : "fp32", c.n,
                   c.again ? ", recomputed" : "");
    ds_status status = ds_adapter_train_several(all, names, c.n);
    status = status < 0 ? status : start(&c, all[0], &model, &engine);
    if (status < 0) {
        bool is_known = false;
        for (size_t i = 0; i < sizeof known / sizeof known[0]; ++i) {
            is_known = is_known || strstr(ds_ctx_error(ctx), known[i]) != NULL;
        }
        if (!is_known) {
            fail_msg("%s: %s", what, ds_ctx_error(ctx));
        }
    } else {
        char *out = scratch_make();
        char got[PATH_BYTES], want[PATH_BYTES], path[PATH_BYTES];
        double losses = 0.0;
        uint32_t shares = 0;
        for (uint32_t d = 0; d < N_DOCUMENTS; ++d) {
            shares += c.owner[d] == 0;
        }
        shares = N_DOCUMENTS / shares;
        CHECK_OK(ctx, ds_engine_save_adapter(engine, scratch_path(out, "start")));
        const double whole = train(&c, engine, -1);
        CHECK_OK(ctx, ds_engine_save_adapter(engine, scratch_path(out, "end")));
        for (uint32_t k = 0; k < c.n; ++k) {
            ds_adapter *one = NULL;
            ds_model *own = NULL;
            ds_engine *alone = NULL;
            (void)snprintf(path, sizeof path, "%s/start/%s", out, names[k]);
            CHECK_OK(ctx, ds_adapter_open(ctx, path, &one));
            CHECK_OK(ctx, start(&c, one, &own, &alone));
            losses += train(&c, alone, (int32_t)k) / shares;
            (void)snprintf(want, sizeof want, "%s/alone%u", out, k);
            CHECK_OK(ctx, ds_engine_save_adapter(alone, want));
            (void)snprintf(got, sizeof got, "%s/end/%s", out, names[k]);
            check_same(got, want, what);
            ds_engine_destroy(&alone);
            ds_adapter_destroy(&one);
            ds_model_destroy(&own);
        }
        if (shares == c.n && !(fabs(losses - whole) <= 1e-5 * fabs(whole))) {
            fail_msg("%s: a loss of %.9g, of the adapters alone %.9g", what, whole, losses);
        }
        scratch_remove(out);
    }
    ds_engine_destroy(&engine);
    for (uint32_t k = 0; k < c.n; ++k) {
        ds_adapter_destroy(&all[k]);
    }
    ds_model_destroy(&model);
    return status >= 0;
}

static uint64_t n_cases = 8, first_seed = 1;

static void as_each_alone(void **state)
{
    uint64_t refused = 0;
    (void)state;
    for (uint64_t i = 0; i < n_cases; ++i) {
        refused += !run_case(first_seed + i);
    }
    print_message("%llu cases, %llu refused by name\n", (unsigned long long)n_cases,
                  (unsigned long long)refused);
    assert_true(refused * 3 <= n_cases);
}

int main(int argc, char **argv)
{
    n_cases = argc > 1 ? strtoull(argv[1], NULL, 10) : n_cases;
    first_seed = argc > 2 ? strtoull(argv[2], NULL, 10) : first_seed;
    const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 1};
    if (ds_ctx_create(&params, &ctx) < 0) {
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_each_alone)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ds_ctx_destroy(&ctx);
    return failed;
}
