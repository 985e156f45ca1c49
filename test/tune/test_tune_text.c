/* Changed configurations as text: what is set, replaced, taken away, and what stays. */
#include "common/check.h"
#include "tune/tune_impl.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keeps),      cmocka_unit_test(test_sets),
        cmocka_unit_test(test_takes_away), cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_commands),   cmocka_unit_test(test_no_config),
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
