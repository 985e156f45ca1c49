/* SPDX-License-Identifier: Apache-2.0 */
/* Changed configurations as text: what is set, replaced, taken away, and what stays. */
#include "common/check.h"
#include "tune/tune_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ds_ctx *ctx;

static dsi_buf raw_of(const char *text)
{
    dsi_buf raw = dsi_buf_make(1 << 16);
    dsi_buf_puts(&raw, text);
    return raw;
}

/* The text after settings, compared. */
static void expect(const char *from, const dsi_tune_setting *settings, uint32_t n, const char *to)
{
    dsi_buf raw = raw_of(from);
    dsi_buf out;
    assert_int_equal(dsi_tune_text(ctx, &raw, settings, n, &out), DS_OK);
    assert_string_equal(dsi_buf_text(&out), to);
    dsi_buf_free(&out);
    dsi_buf_free(&raw);
}

static void test_keeps(void **state)
{
    (void)state;
    expect(
        "{a: 0.1, b: [1, 2], // a comment\n c: 'auto', d: {}, e: null}", NULL, 0,
        "{\n  \"a\": 0.1,\n  \"b\": [1, 2],\n  \"c\": \"auto\",\n  \"d\": {},\n  \"e\": null\n}\n");
}

static void test_sets(void **state)
{
    (void)state;
    const dsi_tune_setting settings[] = {{"zero_optimization.stage", "3"},
                                         {"zero_optimization.offload_param.device", "\"cpu\""},
                                         {"new.deep.er", "true"},
                                         {"a", "2"}};
    expect("{\"a\": 1, \"zero_optimization\": {\"stage\": \"all\", \"x\": 5}, \"z\": 9}", settings,
           4,
           "{\n  \"a\": 2,\n  \"zero_optimization\": {\n    \"stage\": 3,\n    \"x\": 5,\n    "
           "\"offload_param\": {\n      \"device\": \"cpu\"\n    }\n  },\n  \"z\": 9,\n  \"new\": "
           "{\n    \"deep\": {\n      \"er\": true\n    }\n  }\n}\n");
    /* an old form that is no object gives way */
    expect("zero_optimization: true", settings, 1,
           "{\n  \"zero_optimization\": {\n    \"stage\": 3\n  }\n}\n");
    /* the last of a list is replaced in its place, and more follow */
    const dsi_tune_setting last[] = {{"b", "7"}, {"c", "8"}};
    expect("{\"a\": 1, \"b\": 2}", last, 2, "{\n  \"a\": 1,\n  \"b\": 7,\n  \"c\": 8\n}\n");
}

static void test_takes_away(void **state)
{
    (void)state;
    const dsi_tune_setting settings[] = {
        {"autotuning", ""}, {"none.of.this", ""}, {"x.y", ""}, {"x.z", "1"}, {"w", "2"}};
    expect("{\"x\": {\"y\": 1}, \"autotuning\": {\"enabled\": true}}", settings, 5,
           "{\n  \"x\": {\n    \"z\": 1\n  },\n  \"w\": 2\n}\n");
    expect("{\"autotuning\": 1}", settings, 1, "{}\n");
}

static void test_refuses(void **state)
{
    (void)state;
    dsi_buf raw = raw_of("{\"a\": 1, \"a\": 2}");
    dsi_buf out;
    assert_int_equal(dsi_tune_text(ctx, &raw, NULL, 0, &out), DS_ERR_CONFIG);
    assert_non_null(strstr(ds_ctx_error(ctx), "a"));
    dsi_buf_free(&raw);
    raw = raw_of("{\"a\": ");
    assert_int_equal(dsi_tune_text(ctx, &raw, NULL, 0, &out), DS_ERR_CONFIG);
    dsi_buf_free(&raw);
}

/* ---- commands ---- */

static void command_case(const char *words, const char *mapped, const char *to)
{
    dsi_words command = {0};
    dsi_words out = {0};
    assert_int_equal(dsi_shell_split(ctx, "test", words, &command), DS_OK);
    const char *pairs[] = {"train_micro_batch_size_per_gpu", mapped, NULL};
    dsi_tune t = {.ctx = ctx, .command = &command, .mapped = mapped != NULL ? pairs : pairs + 2};
    dsi_tune_candidate c = {0};
    dsi_buf text = dsi_buf_make(1 << 16);
    dsi_tune_set(&c, "train_micro_batch_size_per_gpu", "8");
    assert_int_equal(dsi_tune_find_config(&t), DS_OK);
    assert_int_equal(dsi_tune_command(&t, &c, "/new.json", &out), DS_OK);
    dsi_shell_join(&text, &out, 0);
    assert_string_equal(dsi_buf_text(&text), to);
    dsi_buf_free(&text);
    dsi_words_free(&out);
    dsi_words_free(&command);
    free(t.config_path);
}

static void test_commands(void **state)
{
    (void)state;
    command_case("p --deepspeed_config a.json -x", NULL, "p --deepspeed_config /new.json -x");
    command_case("p --deepspeed-config=a.json 'b c'", NULL, "p --deepspeed-config=/new.json 'b c'");
    /* --deepspeed names a file only where there is one */
    command_case("p --deepspeed /proc/version", NULL, "p --deepspeed /new.json");
    command_case("p --deepspeed --deepspeed_config a", NULL,
                 "p --deepspeed --deepspeed_config /new.json");
    /* flags of the user's: replaced, in either spelling, or added */
    command_case("p --deepspeed_config a --batch 3", "--batch",
                 "p --deepspeed_config /new.json --batch 8");
    command_case("p --deepspeed_config a --batch-size=3 --o", "--batch_size",
                 "p --deepspeed_config /new.json --batch-size=8 --o");
    command_case("p --deepspeed_config a", "--batch", "p --deepspeed_config /new.json --batch 8");
    command_case("p --deepspeed_config a --batch_other 3", "--batch",
                 "p --deepspeed_config /new.json --batch_other 3 --batch 8");
}

static void test_no_config(void **state)
{
    (void)state;
    dsi_words command = {0};
    dsi_tune t = {.ctx = ctx, .command = &command};
    assert_int_equal(dsi_shell_split(ctx, "test", "p --deepspeed 3 --deepspeed_config", &command),
                     DS_OK);
    assert_int_equal(dsi_tune_find_config(&t), DS_ERR_ARG);
    assert_non_null(strstr(ds_ctx_error(ctx), "--deepspeed_config FILE"));
    dsi_words_free(&command);
}

/* ---- what may vary ---- */

static dsi_tune *space_of(const char *text, int64_t most, ds_status *status_out)
{
    static const char *none[] = {NULL};
    dsi_tune *t = calloc(1, sizeof *t);
    assert_non_null(t);
    t->ctx = ctx;
    t->config_path = (char *)"ds.json";
    t->raw = raw_of(text);
    t->mapped = none;
    t->n_ranks = 2;
    t->options.min_micro_batch = t->options.min_train_batch_size = 1;
    t->options.max_micro_batch = most;
    t->options.fast = true;
    *status_out = dsi_tune_read_space(t);
    return t;
}

static void drop(dsi_tune *t)
{
    dsi_words_free(&t->texts);
    dsi_buf_free(&t->raw);
    free(t);
}

static void expect_batches(const char *text, int64_t most, uint32_t n, int64_t last)
{
    ds_status status;
    dsi_tune *t = space_of(text, most, &status);
    assert_int_equal(status, DS_OK);
    assert_int_equal(t->space.n_batches, n);
    assert_int_equal(t->space.batches[n - 1], last);
    drop(t);
}

static void test_batches(void **state)
{
    (void)state;
    expect_batches("{}", 8, 6, 8); /* 1, 2, 3, 4, 6, 8 */
    expect_batches("{train_batch_size: 24}", 1024, 6, 12);
    /* both ranks have the same rows */
    expect_batches("{train_batch_size: 24, tensor_parallel: {autotp_size: 2}}", 1024, 8, 24);
    expect_batches("{train_micro_batch_size_per_gpu: [4, 1, 4]}", 1024, 2, 4);
    /* bounds and batches without measure */
    expect_batches("{}", INT64_MAX, 49, 3 << 23);
    expect_batches("{train_batch_size: 9007199254740992}", 100, 7, 64);
    expect_batches("{gradient_accumulation_steps: 1000000000000000}", INT64_MAX, 4, 4);
}

static void expect_refused(const char *text, const char *says)
{
    ds_status status;
    dsi_tune *t = space_of(text, 64, &status);
    assert_int_equal(status, DS_ERR_CONFIG);
    if (strstr(ds_ctx_error(ctx), says) == NULL) {
        fail_msg("expected '%s' in: %s", says, ds_ctx_error(ctx));
    }
    drop(t);
}

/* Nothing of a list is cut off in silence. */
static void test_long_lists(void **state)
{
    char text[1024];
    (void)state;
    (void)snprintf(text, sizeof text,
                   "{zero_optimization: {offload_optimizer: {nvme_path: [\"/%050d\", \"/b\"]}}}",
                   1);
    expect_refused(text, "offload_optimizer.nvme_path: expected values of a list of at most 47");
    for (int which = 0; which < 2; ++which) {
        int n = snprintf(text, sizeof text, "%s",
                         which == 0 ? "{zero_optimization: {reduce_bucket_size: [1"
                                    : "{train_micro_batch_size_per_gpu: [1");
        for (int i = 2; i <= 65; ++i) {
            n += snprintf(text + n, sizeof text - (size_t)n, ", %d", i);
        }
        (void)snprintf(text + n, sizeof text - (size_t)n, which == 0 ? "]}}" : "]}");
        expect_refused(text, which == 0 ? "reduce_bucket_size: more values" : "at most 64 values");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keeps),      cmocka_unit_test(test_sets),
        cmocka_unit_test(test_takes_away), cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_commands),   cmocka_unit_test(test_no_config),
        cmocka_unit_test(test_batches),    cmocka_unit_test(test_long_lists),
    };
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
    if (ds_ctx_create(&params, &ctx) < 0) {
        return 1;
    }
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ds_ctx_destroy(&ctx);
    return failed;
}
