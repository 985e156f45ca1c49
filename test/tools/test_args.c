/* SPDX-License-Identifier: Apache-2.0 */
/* tools/common/args: every way to write a flag, and what a wrong one is told. */
#include "common/check.h"
#include "tools/common/args.h"

#include <math.h>
#include <string.h>

typedef struct flags {
    bool verbose, verbose_given;
    int64_t steps;
    double lr;
    const char *config;
    const char *kind;
    const char *resume;
    dsi_arg_list data;
    bool abbreviates;
} flags;

#define MAX_ROWS 8

static ds_status parse(ds_ctx *ctx, flags *f, dsi_args *args, const char **words)
{
    const dsi_arg rows[] = {
        {.type = DSI_ARG_HEADING, .doc = "Training:"},
        {.name = "verbose",
         .type = DSI_ARG_SWITCH,
         .out = &f->verbose,
         .def = "false",
         .given_out = &f->verbose_given,
         .doc = "Talk."},
        {.name = "steps",
         .type = DSI_ARG_INT,
         .out = &f->steps,
         .def = "100",
         .min = 1,
         .max = 1000,
         .doc = "Steps."},
        {.name = "learning_rate",
         .type = DSI_ARG_REAL,
         .out = &f->lr,
         .def = "1e-3",
         .doc = "Rate."},
        {.name = "deepspeed_config", .type = DSI_ARG_TEXT, .out = &f->config, .doc = "File."},
        {.name = "kind",
         .type = DSI_ARG_TEXT,
         .out = &f->kind,
         .def = "adam",
         .choices = "adam|adamw",
         .doc = "Kind."},
        {.name = "resume",
         .type = DSI_ARG_TEXT,
         .out = &f->resume,
         .alone = "newest",
         .doc = "Tag."},
        {.name = "data", .type = DSI_ARG_LIST, .out = &f->data, .doc = "Files."},
        {.name = "device", .type = DSI_ARG_TEXT, .out = &f->resume, .doc = "Device."},
        {.name = "stop", .type = DSI_ARG_TEXT, .out = &f->resume, .in_full = true, .doc = "Stop."},
    };
    static const dsi_arg_other others[] = {
        {.name = "max_steps", .same = "steps"},
        {.name = "deepspeed", .same = "deepspeed_config", .may_be_alone = true},
        {.name = "do_train", .instead = "x trains; leave it out"},
        {.name = "elsewhere", .same = "of_another_tool"},
        {0}};
    const dsi_args_spec spec = {.usage = "x",
                                .rows = rows,
                                .n_rows = sizeof rows / sizeof rows[0],
                                .others = others,
                                .abbreviates = f->abbreviates};
    int argc = 0;
    while (words[argc] != NULL) {
        ++argc;
    }
    *f = (flags){.abbreviates = f->abbreviates};
    return dsi_args_parse(ctx, &spec, argc, (char **)words, args);
}

/* Other programs' names: the same flag, or what to do instead. */
static void knows_other_names(void **state)
{
    flags f = {0};
    dsi_args args;
    const char *same[] = {"x", "--deepspeed", "--max-steps=7", "--deepspeed", "ds.json", NULL};
    const char *other[] = {"x", "--do_train", NULL};
    const char *unknown[] = {"x", "--elsewhere", NULL};
    CHECK_OK(*state, parse(*state, &f, &args, same));
    assert_int_equal(f.steps, 7);
    assert_string_equal(f.config, "ds.json");
    dsi_args_free(&args);
    CHECK_FAILS(*state, parse(*state, &f, &args, other), DS_ERR_ARG,
                "--do_train is not a flag here: x trains; leave it out");
    CHECK_FAILS(*state, parse(*state, &f, &args, unknown), DS_ERR_ARG, "unknown flag --elsewhere");
    /* all of them at once, each once; what is behind "--" is none */
    const char *many[] = {"x",          "--do_train",  "--steps", "7",  "--elsewhere=3",
                          "--do_train", "--max_steps", "2",       "--", "--not_one",
                          NULL};
    CHECK_FAILS(
        *state, parse(*state, &f, &args, many), DS_ERR_ARG,
        "--do_train is not a flag here: x trains; leave it out\n  unknown flag --elsewhere");
    assert_null(strstr(ds_ctx_error(*state), "not_one"));
    assert_null(strstr(strstr(ds_ctx_error(*state), "do_train") + 1, "do_train"));
}

/* As argparse: the only flag that begins so. */
static void takes_abbreviations(void **state)
{
    flags f = {.abbreviates = true};
    dsi_args args;
    const char *words[] = {"x", "--st=7", "--learning-r", "2", "--k", "adamw", "--verb", NULL};
    const char *own[] = {"x", "--res", "--kind", "adam", NULL};
    const char *two[] = {"x", "--de", "a", NULL};
    const char *full[] = {"x", "--kin", "adam", NULL};
    CHECK_OK(*state, parse(*state, &f, &args, words));
    assert_true(f.steps == 7 && f.lr == 2 && f.verbose);
    assert_string_equal(f.kind, "adamw");
    dsi_args_free(&args);
    CHECK_OK(*state, parse(*state, &f, &args, own));
    assert_string_equal(f.resume, "newest");
    dsi_args_free(&args);
    CHECK_FAILS(*state, parse(*state, &f, &args, two), DS_ERR_ARG,
                "--de may be --deepspeed_config or --device; write more of it");
    f.abbreviates = false;
    CHECK_FAILS(*state, parse(*state, &f, &args, full), DS_ERR_ARG, "did you mean --kind");
}

static void reads_every_spelling(void **state)
{
    flags f = {0};
    dsi_args args;
    const char *words[] = {
        "x",         "first",  "--steps", "7", "--learning_rate=-2e-4", "--data", "a",       "b",
        "--verbose", "second", "--data",  "c", "--kind=adamw",          "--",     "--steps", NULL};
    CHECK_OK(*state, parse(*state, &f, &args, words));
    assert_int_equal(f.steps, 7);
    assert_true(f.lr == -2e-4);
    assert_true(f.verbose && f.verbose_given);
    assert_string_equal(f.kind, "adamw");
    assert_null(f.config);
    assert_int_equal(f.data.n, 3);
    assert_string_equal(f.data.items[2], "c");
    assert_int_equal(args.words.n, 3);
    assert_string_equal(args.words.items[1], "second");
    assert_string_equal(args.words.items[2], "--steps");
    dsi_args_free(&args);
    dsi_arg_list_free(&f.data);
}

static void switches_take_a_value(void **state)
{
    flags f = {0};
    dsi_args args;
    const char *off[] = {"x", "--verbose=false", "word", NULL};
    CHECK_OK(*state, parse(*state, &f, &args, off));
    assert_true(!f.verbose && f.verbose_given && args.words.n == 1);
    dsi_args_free(&args);
    const char *on[] = {"x", "--verbose", "True", NULL};
    CHECK_OK(*state, parse(*state, &f, &args, on));
    assert_true(f.verbose && args.words.n == 0 && f.steps == 100 && f.lr == 1e-3);
    dsi_args_free(&args);
}

/* DeepSpeed's own tools write both. */
static void dashes_are_underscores(void **state)
{
    flags f = {0};
    dsi_args args;
    const char *words[] = {"x", "--learning-rate", "0.5", NULL};
    CHECK_OK(*state, parse(*state, &f, &args, words));
    assert_true(f.lr == 0.5);
    dsi_args_free(&args);
}

static void values_may_be_optional(void **state)
{
    flags f = {0};
    dsi_args args;
    const char *alone[] = {"x", "--resume", "--steps", "3", NULL};
    CHECK_OK(*state, parse(*state, &f, &args, alone));
    assert_string_equal(f.resume, "newest");
    assert_int_equal(f.steps, 3);
    dsi_args_free(&args);
    const char *tagged[] = {"x", "--resume", "step7", NULL};
    CHECK_OK(*state, parse(*state, &f, &args, tagged));
    assert_string_equal(f.resume, "step7");
    dsi_args_free(&args);
}

static void refuses(void **state)
{
    const struct {
        const char *words[4];
        const char *text;
    } cases[] = {
        {{"x", "--step", "3"}, "did you mean --steps?"},
        {{"x", "--learning-rates", "3"}, "did you mean --learning_rate?"},
        {{"x", "--zzzzzzz"}, "--help lists all"},
        {{"x", "--steps"}, "--steps needs a value"},
        {{"x", "--steps", "--verbose"}, "--steps needs a value"},
        {{"x", "--steps", "1.5"}, "expected a whole number, found '1.5'"},
        {{"x", "--steps", "0"}, "expected at least 1, found 0"},
        {{"x", "--steps", "1001"}, "expected at most 1000"},
        {{"x", "--steps", "99999999999999999999"}, "expected a whole number"},
        {{"x", "--learning_rate", "nan"}, "expected a number"},
        {{"x", "--learning_rate", "inf"}, "expected a number"},
        {{"x", "--learning_rate", "1e999"}, "expected a number"},
        {{"x", "--learning_rate", "0x10"}, "expected a number"},
        {{"x", "--learning_rate", " 1"}, "expected a number"},
        {{"x", "--steps", " 7"}, "expected a whole number"},
        {{"x", "--steps", "0"}, "it goes from 1 to 1000"},
        {{"x", "--kind", "ada"}, "expected one of adam|adamw, found 'ada'"},
        {{"x", "--verbose=maybe"}, "expected true or false"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        flags f = {0};
        dsi_args args;
        const char *words[MAX_ROWS] = {0};
        memcpy(words, cases[i].words, sizeof cases[i].words);
        CHECK_FAILS(*state, parse(*state, &f, &args, words), DS_ERR_ARG, cases[i].text);
    }
}

static void help_wins(void **state)
{
    flags f = {0};
    dsi_args args;
    const char *words[] = {"x", "--nonsense", "-h", NULL};
    CHECK_OK(*state, parse(*state, &f, &args, words));
    assert_true(args.help);
    dsi_args_free(&args);
}

static void some_take_only_flags(void **state)
{
    const dsi_args_spec spec = {.usage = "ds_x --steps N [FLAGS]", .about = ""};
    char *words[] = {"x", "stray", NULL};
    bool help = true;
    CHECK_FAILS(*state, dsi_args_parse_flags(*state, &spec, 2, words, &help), DS_ERR_ARG,
                "unexpected word \"stray\"; ds_x takes only flags");
    CHECK_OK(*state, dsi_args_parse_flags(*state, &spec, 1, words, &help));
    assert_false(help);
    words[1] = "--help";
    CHECK_OK(*state, dsi_args_parse_flags(*state, &spec, 2, words, &help));
    assert_true(help);
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_every_spelling),
        cmocka_unit_test(knows_other_names),
        cmocka_unit_test(takes_abbreviations),
        cmocka_unit_test(switches_take_a_value),
        cmocka_unit_test(dashes_are_underscores),
        cmocka_unit_test(values_may_be_optional),
        cmocka_unit_test(refuses),
        cmocka_unit_test(some_take_only_flags),
        cmocka_unit_test(help_wins),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
