/* SPDX-License-Identifier: Apache-2.0 */
/* The oracles of ref/ against transformers' results: logits, loss, gradients, AdamW steps, greedy
 * text. Goldens: test/golden/parity.
 * labels: slow */
#include "common/check.h"
#include "common/ref_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const variants[] = {"gpt2",      "llama2",       "llama3",      "llama3_tied",
                                       "mistral",   "qwen2",        "qwen3",       "rope_linear",
                                       "rope_yarn", "rope_dynamic", "packed_gpt2", "packed_llama"};
enum { N_VARIANTS = sizeof variants / sizeof *variants, PATH_BYTES = 256 };

typedef struct parity {
    ref_model model;
    golden_file golden;
    json_t *scalars;
    ref_batch batch;
} parity;

static parity load(const char *variant)
{
    char folder[PATH_BYTES];
    parity p;
    snprintf(folder, sizeof folder, "parity/%s", variant);
    ref_model_load(&p.model, folder);
    p.golden = golden_read("%s/golden.safetensors", folder);
    p.scalars = golden_json("%s/golden.json", folder);
    p.batch = ref_batch_of(&p.golden);
    return p;
}

static void unload(parity *p)
{
    ref_model_close(&p->model);
    golden_close(&p->golden);
    json_decref(p->scalars);
}

static void check_close(const char *variant, const char *what, double got, double limit)
{
    print_message("%-14s %-40s %.2e\n", variant, what, got);
    if (!(got <= limit)) {
        fail_msg("%s: %s: %g is above %g", variant, what, got, limit);
    }
}

/* |got - want| over |want|; the plain norm where the true gradient is zero, that is, where the
 * golden one is nothing but rounding. */
static double gradient_error(const float *got, const float *want, size_t n)
{
    double difference = 0.0;
    double norm = 0.0;
    for (size_t i = 0; i < n; ++i) {
        difference += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        norm += (double)want[i] * (double)want[i];
    }
    return sqrt(norm) < 1e-7 ? sqrt(difference) : sqrt(difference / norm);
}

static void check_gradients(const char *variant, parity *p)
{
    golden_file grads = golden_read("parity/%s/grads.safetensors", variant);
    const char *worst_name = "";
    double worst = 0.0;
    assert_true(grads.n_tensors > 0);
    for (size_t i = 0; i < grads.n_tensors; ++i) {
        const golden_tensor *want = &grads.tensors[i];
        const float *got = ref_model_grad(&p->model, want->name);
        assert_non_null(got);
        const double error = gradient_error(got, want->data, want->count);
        if (!(error <= worst)) {
            worst = error;
            worst_name = want->name;
        }
    }
    check_close(variant, worst_name, worst, 1e-4);
    golden_close(&grads);
}

static void logits_loss_and_gradients(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_VARIANTS; ++i) {
        parity p = load(variants[i]);
        const size_t n = (size_t)(p.batch.b * p.batch.t * p.model.vocab_size);
        float *logits = malloc(n * sizeof *logits);
        assert_non_null(logits);
        const double loss = (double)ref_model_run(&p.model, &p.batch, logits, true);
        check_close(variants[i], "logits",
                    check_relative_difference(logits, golden_f32(&p.golden, "logits"), n), 1e-5);
        check_close(variants[i], "loss", fabs(loss - golden_number(p.scalars, "loss")), 1e-5);
        check_gradients(variants[i], &p);
        free(logits);
        unload(&p);
    }
}

/* One step on every parameter. */
static void step(ref_model *model, float **m, float **v, int64_t at)
{
    const ref_adamw_params params = {
        .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01, .step = at};
    for (size_t i = 0; i < model->weights.n_tensors; ++i) {
        const golden_tensor *t = &model->weights.tensors[i];
        ref_adamw(ref_model_weight(model, t->name), m[i], v[i], model->grads[i], (int64_t)t->count,
                  &params);
    }
}

static float **zeros_like(const ref_model *model)
{
    float **all = calloc(model->weights.n_tensors, sizeof *all);
    assert_non_null(all);
    for (size_t i = 0; i < model->weights.n_tensors; ++i) {
        all[i] = calloc(model->weights.tensors[i].count, sizeof(float));
        assert_non_null(all[i]);
    }
    return all;
}

static void free_all(const ref_model *model, float **all)
{
    for (size_t i = 0; i < model->weights.n_tensors; ++i) {
        free(all[i]);
    }
    free(all);
}

static void twenty_adamw_steps(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_VARIANTS; ++i) {
        parity p = load(variants[i]);
        float **m = zeros_like(&p.model);
        float **v = zeros_like(&p.model);
        const json_t *losses = json_object_get(p.scalars, "adamw_losses");
        double worst = 0.0;
        assert_int_equal(json_array_size(losses), 20);
        for (int64_t s = 0; s < 20; ++s) {
            const double want = json_number_value(json_array_get(losses, (size_t)s));
            const double got = (double)ref_model_run(&p.model, &p.batch, NULL, true);
            step(&p.model, m, v, s + 1);
            worst = fmax(worst, fabs(got - want) / want);
            if (s == 9) {
                check_close(variants[i], "AdamW losses", worst, 1e-5);
            }
        }
        check_close(variants[i], "twenty AdamW losses", worst, 1e-4);
        free_all(&p.model, m);
        free_all(&p.model, v);
        unload(&p);
    }
}

/* The likeliest token after the first n. */
static int32_t next_token(ref_model *model, const int32_t *tokens, int64_t n, const int32_t *places,
                          const int32_t *ignored, float *logits)
{
    const ref_batch batch = {
        .b = 1, .t = n, .tokens = tokens, .targets = ignored, .positions = places};
    ref_model_run(model, &batch, logits, false);
    const float *last = logits + (n - 1) * model->vocab_size;
    int32_t best = 0;
    for (int32_t v = 1; v < model->vocab_size; ++v) {
        best = last[v] > last[best] ? v : best;
    }
    return best;
}

static void check_greedy(const char *variant)
{
    enum { N_MAX = 128 };
    int32_t tokens[N_MAX];
    int32_t places[N_MAX];
    int32_t ignored[N_MAX];
    parity p = load(variant);
    const json_t *prompt = json_object_get(p.scalars, "prompt");
    const json_t *greedy = json_object_get(p.scalars, "greedy");
    const size_t n_prompt = json_array_size(prompt);
    const size_t n = json_array_size(greedy);
    float *logits = malloc(N_MAX * (size_t)p.model.vocab_size * sizeof *logits);
    assert_non_null(logits);
    assert_int_equal(n, 64);
    for (size_t i = 0; i < N_MAX; ++i) {
        places[i] = (int32_t)i;
        ignored[i] = REF_IGNORE;
        tokens[i] = (int32_t)json_integer_value(json_array_get(prompt, i));
    }
    for (size_t i = 0; i < n; ++i) {
        tokens[n_prompt + i] =
            next_token(&p.model, tokens, (int64_t)(n_prompt + i), places, ignored, logits);
        assert_int_equal(tokens[n_prompt + i], json_integer_value(json_array_get(greedy, i)));
    }
    free(logits);
    unload(&p);
}

static void greedy_text(void **state)
{
    (void)state;
    check_greedy("gpt2");
    check_greedy("llama3_tied");
}

/* A wrong sign in one weight must show: the comparison itself can fail. */
static void comparison_can_fail(void **state)
{
    (void)state;
    parity p = load("qwen3");
    const size_t n = (size_t)(p.batch.b * p.batch.t * p.model.vocab_size);
    float *logits = malloc(n * sizeof *logits);
    assert_non_null(logits);
    ref_model_weight(&p.model, "model.layers.2.self_attn.k_norm.weight")[3] *= 1.01f;
    (void)ref_model_run(&p.model, &p.batch, logits, false);
    assert_true(check_relative_difference(logits, golden_f32(&p.golden, "logits"), n) > 1e-5);
    free(logits);
    unload(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_loss_and_gradients),
        cmocka_unit_test(twenty_adamw_steps),
        cmocka_unit_test(greedy_text),
        cmocka_unit_test(comparison_can_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
