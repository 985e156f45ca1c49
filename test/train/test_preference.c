/* SPDX-License-Identifier: Apache-2.0 */
/* The losses of preference training against TRL's trainers (test/golden/preference): loss, norm of
 * the whole gradient, gradients of a few parameters, what is logged; and log-probabilities. */
#include "accel/cpu/cpu_features.h"
#include "common/parity.h"

#include <deepspeed/engine_states.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The rows of a batch as the engine takes them. */
typedef struct rows {
    int64_t n, length;
    int32_t *ids, *targets, *positions, *first, *completion;
    float *ref;
    int32_t *labels;
    float kl;
} rows;

static void rows_make(rows *r, int64_t n, int64_t length)
{
    *r = (rows){.n = n, .length = length};
    int32_t **planes[] = {&r->ids, &r->targets, &r->positions, &r->first, &r->completion};
    for (size_t i = 0; i < sizeof planes / sizeof planes[0]; ++i) {
        *planes[i] = calloc((size_t)(n * length), sizeof(int32_t));
        assert_non_null(*planes[i]);
    }
    r->ref = calloc((size_t)n, sizeof *r->ref);
    r->labels = calloc((size_t)n, sizeof *r->labels);
    assert_true(r->ref != NULL && r->labels != NULL);
}

static void rows_free(rows *r)
{
    free(r->ids);
    free(r->targets);
    free(r->positions);
    free(r->first);
    free(r->completion);
    free(r->ref);
    free(r->labels);
}

/* Targets are the next tokens where `mask` has them; padding is a document of its own. */
static void fill(rows *r, const int32_t *ids, const int32_t *mask, const int32_t *seen)
{
    for (int64_t row = 0; row < r->n; ++row) {
        const int64_t at = row * r->length;
        int64_t last = 0;
        for (int64_t t = 0; t < r->length; ++t) {
            const bool next = t + 1 < r->length;
            r->ids[at + t] = ids[at + t];
            r->targets[at + t] = next && mask[at + t + 1] != 0 ? ids[at + t + 1] : -100;
            r->completion[at + t] = r->targets[at + t];
            r->positions[at + t] = (int32_t)t;
            last = mask[at + t] != 0 || (seen != NULL && seen[at + t] != 0) ? t : last;
        }
        for (int64_t t = last + 1; t < r->length; ++t) {
            r->first[at + t] = (int32_t)(last + 1);
        }
    }
}

static ds_batch view(rows *r, const ds_preference *p, ds_named_tensor out[8])
{
    const ds_meta plane = {DS_DTYPE_I32, ds_shape_2d(r->n, r->length)};
    const ds_meta line = {DS_DTYPE_F32, ds_shape_1d(r->n)};
    uint32_t n = 0;
    out[n++] = (ds_named_tensor){"input_ids", {r->ids, plane}};
    out[n++] = (ds_named_tensor){"targets", {r->targets, plane}};
    out[n++] = (ds_named_tensor){"positions", {r->positions, plane}};
    out[n++] = (ds_named_tensor){"first", {r->first, plane}};
    if (p->loss == DS_PREFERENCE_ORPO) {
        out[n++] = (ds_named_tensor){"completion", {r->completion, plane}};
    }
    if (ds_preference_has_reference(p)) {
        out[n++] = (ds_named_tensor){"ref_logps", {r->ref, line}};
    }
    if (!ds_preference_is_paired(p->loss)) {
        out[n++] = (ds_named_tensor){"labels", {r->labels, {DS_DTYPE_I32, line.shape}}};
    }
    if (p->loss == DS_PREFERENCE_KTO) {
        out[n++] = (ds_named_tensor){"kl", {&r->kl, {DS_DTYPE_F32, {0}}}};
    }
    return (ds_batch){out, n};
}

static ds_preference read_settings(const json_t *s)
{
    const char *name = json_string_value(json_object_get(s, "loss"));
    int k = 1;
    while (k < DS_PREFERENCE_LOSSES &&
           strcmp(ds_preference_loss_name((ds_preference_loss)k), name) != 0) {
        ++k;
    }
    assert_true(k < DS_PREFERENCE_LOSSES);
    ds_preference p = ds_preference_default((ds_preference_loss)k);
    p.beta = golden_number(s, "beta");
    p.label_smoothing = json_number_value(json_object_get(s, "label_smoothing"));
    p.gamma = json_number_value(json_object_get(s, "gamma"));
    p.center = json_number_value(json_object_get(s, "center"));
    p.reference_free = json_is_true(json_object_get(s, "reference_free"));
    if (json_object_get(s, "undesirable_weight") != NULL) {
        p.undesirable_weight = golden_number(s, "undesirable_weight");
    }
    return p;
}

static bool close_to(double got, double want)
{
    return fabs(got - want) <= 1e-5 * (fabs(want) > 1.0 ? fabs(want) : 1.0);
}

/* A metric of TRL's; one that it does not log is not compared. */
static void compare_metric(const json_t *metrics, const char *name, double got)
{
    const json_t *want = json_object_get(metrics, name);
    if (want != NULL &&
        fabs(got - json_number_value(want)) > 2e-5 * fmax(1.0, fabs(json_number_value(want)))) {
        fail_msg("%s is %.9g, TRL's %.9g", name, got, json_number_value(want));
    }
}

static void compare_metrics(const json_t *m, const ds_preference *p, const ds_tensor *sums)
{
    const float *s = sums->data;
    const bool reward = p->loss == DS_PREFERENCE_REWARD;
    const double n = (double)s[6];
    const double n_rejected = (double)s[7];
    const double chosen = (double)s[0] / n;
    const double rejected = (double)s[1] / n_rejected;
    compare_metric(m, "rewards/chosen", chosen);
    compare_metric(m, "rewards/rejected", rejected);
    compare_metric(m, "logps/chosen", (double)s[4] / n);
    compare_metric(m, "logps/rejected", (double)s[5] / n_rejected);
    if (ds_preference_is_paired(p->loss)) {
        compare_metric(m, reward ? "accuracy" : "rewards/accuracies", (double)s[2] / n);
        compare_metric(m, reward ? "margin" : "rewards/margins", (double)s[3] / n);
        compare_metric(m, "nll_loss", (double)s[8] / n);
        compare_metric(m, "log_odds_chosen", (double)s[9] / n);
    } else {
        compare_metric(m, "rewards/margins", chosen - rejected);
        compare_metric(m, "kl", (double)s[10] / (n + n_rejected));
    }
    if (reward) {
        compare_metric(m, "mean_reward", (chosen + rejected) / 2.0);
    }
}

/* A gradient that the golden has of this loss. */
static void compare_gradient(ds_ctx *ctx, ds_engine *engine, const golden_tensor *want,
                             const char *name)
{
    float *got = malloc(want->count * sizeof *got);
    assert_non_null(got);
    CHECK_OK(ctx, ds_engine_get_full_grad(engine, name, got, want->count));
    const double off = check_relative_difference(got, want->data, want->count);
    if (off > 2e-5) {
        fail_msg("%s is off by %g", want->name, off);
    }
    free(got);
}

/* z of KTO as ds_engine_eval_batch and the reference give it. */
static double divergence(ds_ctx *ctx, ds_engine *engine, const golden_file *g, rows *like)
{
    const ds_preference p = {.loss = DS_PREFERENCE_KTO, .beta = 1.0};
    const golden_tensor *ids = golden_find(g, "kto/KL_input_ids");
    const float *ref = golden_f32(g, "kto/ref_KL_logps");
    rows r;
    ds_named_tensor tensors[8];
    ds_tensor logps;
    double sum = 0.0;
    rows_make(&r, ids->dims[0], like->length);
    for (int64_t row = 0; row < r.n; ++row) { /* as wide as the other batch */
        int32_t padded[3][64] = {{0}};
        const int32_t *mask = golden_i32(g, "kto/KL_completion_mask");
        rows one;
        assert_true(r.length <= 64 && ids->dims[1] <= r.length);
        memcpy(padded[0], (const int32_t *)ids->data + row * ids->dims[1],
               (size_t)ids->dims[1] * sizeof(int32_t));
        memcpy(padded[1], mask + row * ids->dims[1], (size_t)ids->dims[1] * sizeof(int32_t));
        one = r;
        one.n = 1;
        one.ids += row * r.length;
        one.targets += row * r.length;
        one.positions += row * r.length;
        one.first += row * r.length;
        one.completion += row * r.length;
        fill(&one, padded[0], padded[1], NULL);
    }
    const ds_batch batch = view(&r, &p, tensors);
    CHECK_OK(ctx, ds_engine_eval_batch(engine, &batch, NULL, NULL));
    CHECK_OK(ctx, ds_engine_eval_output(engine, "logps", &logps));
    for (int64_t row = 0; row < r.n; ++row) {
        sum += (double)((const float *)logps.data)[row] - (double)ref[row];
    }
    const double kl = sum / (double)r.n;
    rows_free(&r);
    return kl;
}

static void read_rows(const golden_file *g, const ds_preference *p, rows *r)
{
    const bool kto = !ds_preference_is_paired(p->loss);
    const char *name = kto                               ? "kto/input_ids"
                       : p->loss == DS_PREFERENCE_REWARD ? "reward/input_ids"
                                                         : "input_ids";
    const golden_tensor *ids = golden_find(g, name);
    rows_make(r, ids->dims[0], ids->dims[1]);
    if (kto) {
        fill(r, ids->data, golden_i32(g, "kto/completion_mask"), NULL);
        memcpy(r->ref, golden_f32(g, "kto/ref_logps"), (size_t)r->n * sizeof(float));
        memcpy(r->labels, golden_i32(g, "kto/labels"), (size_t)r->n * sizeof(int32_t));
    } else if (p->loss == DS_PREFERENCE_REWARD) {
        const int32_t *seen = golden_i32(g, "reward/attention_mask");
        fill(r, ids->data, seen, seen);
        for (int64_t i = 0; i < r->n * r->length; ++i) { /* the last token alone */
            const bool last = seen[i] != 0 && ((i + 1) % r->length == 0 || seen[i + 1] == 0);
            r->targets[i] = last ? 0 : -100;
        }
    } else {
        fill(r, ids->data, golden_i32(g, "completion_mask"), golden_i32(g, "attention_mask"));
        memcpy(r->ref, golden_f32(g, "ref_logps"), (size_t)r->n * sizeof(float));
    }
    if (p->loss == DS_PREFERENCE_ORPO) { /* its nll is of prompts, too */
        int32_t *answers = malloc((size_t)(r->n * r->length) * sizeof *answers);
        assert_non_null(answers);
        memcpy(answers, r->completion, (size_t)(r->n * r->length) * sizeof *answers);
        const int32_t *seen = golden_i32(g, "attention_mask");
        fill(r, ids->data, seen, seen);
        memcpy(r->completion, answers, (size_t)(r->n * r->length) * sizeof *answers);
        free(answers);
    }
}

static void one_loss(ds_ctx *ctx, const char *variant, const golden_file *g, const char *key,
                     const json_t *s)
{
    const ds_preference p = read_settings(s);
    parity_case c;
    rows r;
    ds_named_tensor tensors[8];
    ds_tensor sums;
    char prefix[80];
    parity_open(ctx, variant, &c);
    read_rows(g, &p, &r);
    dsi_engine_spec spec = parity_spec(&c, DS_DTYPE_F32, dsi_cpu_isa());
    spec.train.preference = p;
    spec.train.batch = ds_preference_is_paired(p.loss) ? r.n / 2 : r.n;
    spec.train.seq_length = r.length;
    c.n_seq = r.length;
    ds_engine *engine = parity_engine(ctx, &c, &spec);
    if (p.loss == DS_PREFERENCE_REWARD) {
        const golden_tensor *score = golden_find(g, "reward/score.weight");
        CHECK_OK(ctx,
                 ds_engine_set(engine, DS_CELL_PARAM, "score.weight", score->data, score->count));
    }
    r.kl = p.loss == DS_PREFERENCE_KTO ? (float)divergence(ctx, engine, g, &r) : 0.0f;
    const ds_batch batch = view(&r, &p, tensors);
    CHECK_OK(ctx, ds_engine_forward(engine, &batch));
    const double loss = ds_engine_loss(engine);
    CHECK_OK(ctx, ds_engine_output(engine, "preference_sums", &sums));
    print_message("%s %s: loss %.9g, TRL's %.9g\n", variant, key, loss,
                  golden_number(s, "loss_value"));
    assert_true(close_to(loss, golden_number(s, "loss_value")));
    compare_metrics(json_object_get(s, "metrics"), &p, &sums);
    CHECK_OK(ctx, ds_engine_backward(engine));
    (void)snprintf(prefix, sizeof prefix, "%s/", key);
    uint32_t n = 0;
    for (size_t i = 0; i < g->n_tensors; ++i) {
        const golden_tensor *t = &g->tensors[i];
        if (strncmp(t->name, prefix, strlen(prefix)) == 0 && strstr(t->name, ".weight") != NULL &&
            strstr(t->name, "score") == NULL) {
            compare_gradient(ctx, engine, t, t->name + strlen(prefix));
            ++n;
        }
    }
    assert_true(n >= 2);
    CHECK_OK(ctx, ds_engine_step(engine));
    assert_true(close_to(ds_engine_grad_norm(engine) / golden_number(s, "norm"), 1.0));
    ds_engine_destroy(&engine);
    rows_free(&r);
    parity_close(&c);
}

static void losses_are_trls(void **state)
{
    static const char *const variants[] = {"gpt2", "llama3_tied"};
    for (size_t v = 0; v < 2; ++v) {
        golden_file g = golden_read("preference/%s.safetensors", variants[v]);
        json_t *all = golden_json("preference/%s.json", variants[v]);
        const char *key;
        json_t *settings;
        json_object_foreach(all, key, settings)
        {
            one_loss(*state, variants[v], &g, key, settings);
        }
        json_decref(all);
        golden_close(&g);
    }
}

static int set_up(void **state)
{
    ds_ctx_params params = ds_ctx_params_default();
    params.level = DS_LOG_ERROR;
    params.n_threads = 2;
    return ds_ctx_create(&params, (ds_ctx **)state) < 0;
}

static int tear_down(void **state)
{
    ds_ctx_destroy((ds_ctx **)state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_are_trls),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
