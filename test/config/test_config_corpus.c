/* SPDX-License-Identifier: Apache-2.0 */
/* Public example configurations of DeepSpeed, DeepSpeedExamples and transformers
 * (test/golden/config/corpus.jsonl): each is accepted, or refused for exactly the stated reasons;
 * and what is accepted comes to the values that DeepSpeed itself resolves. */
#include "common/check.h"

#include <deepspeed/config.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The trainer's values for what the file leaves open, as ds_train would give them. */
static ds_trainer_values trainer_for(const ds_config *config)
{
    ds_trainer_values t = {0};
    const struct {
        const char *path;
        ds_maybe *value;
        double number;
    } rows[] = {
        {"train_micro_batch_size_per_gpu", &t.micro_batch, 4},
        {"gradient_accumulation_steps", &t.gradient_accumulation_steps, 2},
        {"gradient_clipping", &t.max_grad_norm, 1},
        {"optimizer.params.lr", &t.learning_rate, 3e-4},
        {"scheduler.params.warmup_max_lr", &t.learning_rate, 3e-4},
        {"optimizer.params.weight_decay", &t.weight_decay, 0.01},
        {"optimizer.params.eps", &t.adam_epsilon, 1e-8},
        {"optimizer.params.betas", &t.adam_beta1, 0.9},
        {"optimizer.params.betas", &t.adam_beta2, 0.95},
        {"scheduler.params.warmup_num_steps", &t.warmup_steps, 10},
        {"scheduler.params.total_num_steps", &t.total_steps, 50},
        {"fp16.enabled", &t.fp16, 0},
        {"bf16.enabled", &t.bf16, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        const ds_config_item *item = ds_config_find(config, rows[i].path);
        if (item != NULL && strcmp(item->value, "\"auto\"") == 0) {
            *rows[i].value = ds_known(rows[i].number);
        }
    }
    t.hidden_size = ds_known(64);
    return t;
}

/* Whether each expected reason is in the message, and there are no more lines than reasons. */
static bool refuses_for(const char *message, const json_t *expect)
{
    size_t n_lines = message[0] != '\0';
    for (const char *p = message; (p = strchr(p, '\n')) != NULL; ++p) {
        ++n_lines;
    }
    bool same = n_lines == json_array_size(expect);
    for (size_t i = 0; i < json_array_size(expect); ++i) {
        same = same && strstr(message, json_string_value(json_array_get(expect, i))) != NULL;
    }
    return same;
}

static size_t compare_values(const ds_config *config, const json_t *values, const char *from)
{
    size_t n_wrong = 0;
    const char *path;
    const json_t *want;
    json_object_foreach((json_t *)values, path, want)
    {
        const ds_config_item *item = ds_config_find(config, path);
        json_t *got = item != NULL ? json_loads(item->value, JSON_DECODE_ANY, NULL) : NULL;
        const bool numbers = json_is_number(got) && json_is_number(want);
        const bool same = numbers ? json_number_value(got) == json_number_value(want)
                                  : json_equal(got, want) != 0;
        if (!same) {
            char *text = json_dumps(want, JSON_ENCODE_ANY);
            print_message("%s: %s is %s, DeepSpeed's %s\n", from, path,
                          item != NULL ? item->value : "absent", text);
            free(text);
            ++n_wrong;
        }
        json_decref(got);
    }
    return n_wrong;
}

static size_t check_entry(ds_ctx *ctx, const json_t *entry)
{
    const char *from = json_string_value(json_object_get(entry, "from"));
    const json_t *expect = json_object_get(entry, "expect");
    char *text = json_dumps(json_object_get(entry, "config"), JSON_INDENT(1));
    ds_config *config = NULL;
    ds_status status = ds_config_load_text(ctx, "c", text, strlen(text), NULL, &config);
    if (status >= 0) {
        const ds_trainer_values trainer = trainer_for(config);
        status = ds_config_resolve(config, 1, &trainer);
    }
    size_t n_wrong = 0;
    const char *message = status < 0 ? ds_ctx_error(ctx) : "";
    if (!refuses_for(message, expect)) {
        char *reasons = json_dumps(expect, JSON_ENCODE_ANY);
        print_message("%s: expected %s, found\n%s\n", from, reasons, message);
        free(reasons);
        n_wrong = 1;
    }
    if (status >= 0) {
        n_wrong += compare_values(config, json_object_get(entry, "values"), from);
    }
    ds_config_destroy(&config);
    free(text);
    return n_wrong;
}

static void judges_public_examples(void **state)
{
    FILE *file = fopen(DS_SOURCE_DIR "/test/golden/config/corpus.jsonl", "rb");
    assert_non_null(file);
    static char line[65536];
    size_t n_cases = 0;
    size_t n_wrong = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        json_t *entry = json_loads(line, 0, NULL);
        assert_non_null(entry);
        n_wrong += check_entry(*state, entry);
        ++n_cases;
        json_decref(entry);
    }
    (void)fclose(file);
    assert_true(n_cases > 150);
    assert_int_equal(n_wrong, 0);
}

static int set_up(void **state)
{
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
    return ds_ctx_create(&params, (ds_ctx **)state);
}

static int tear_down(void **state)
{
    ds_ctx_destroy((ds_ctx **)state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(judges_public_examples)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
