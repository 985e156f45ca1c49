/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of the launcher by themselves: words for a shell (through a real sh), environments, env
 * files, core lists, out-of-memory evidence, outputs. */
#include "base/processor.h"
#include "common/check.h"
#include "common/scratch.h"
#include "launch/bind.h"
#include "launch/exports.h"
#include "launch/launch.h"
#include "launch/oom.h"
#include "launch/supervise.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- words for a shell ----------------------------------------------------------------------- */

/* What a shell must hand on unchanged. */
static const char *const hostile[] = {
    "",
    " ",
    "plain",
    "a b",
    "'",
    "''",
    "\"",
    "\\",
    "\\'",
    "$HOME",
    "${PATH}",
    "$(touch owned)",
    "`id`",
    ";id",
    "&& id",
    "| cat",
    "> owned",
    "< /etc/passwd",
    "*",
    "~",
    "~root",
    "!!",
    "#no",
    "a#b",
    "a\nb",
    "\n",
    "a\tb",
    "=ls",
    "-n",
    "--",
    "%h%n%%",
    "{a,b}",
    "[a]",
    "?",
    "\xc3\xa4\xff",
    "a'b\"c\\d$e`f",
    "'; id; '",
    "$'\\x41'",
    "\\\n",
    "x=y",
    "a=b c",
    "()",
};
enum { N_HOSTILE = sizeof hostile / sizeof hostile[0] };

static void quotes_for_a_real_shell(void **state)
{
    (void)state;
    dsi_words words = {0};
    dsi_buf text = dsi_buf_make(1 << 16);
    dsi_words_add(&words, "printf");
    dsi_words_add(&words, "%s\\001");
    for (size_t i = 0; i < N_HOSTILE; ++i) {
        dsi_words_add(&words, hostile[i]);
    }
    dsi_shell_join(&text, &words, 0);
    FILE *shell = popen(dsi_buf_text(&text), "r"); /* sh -c */
    assert_non_null(shell);
    char got[4096];
    const size_t n = fread(got, 1, sizeof got - 1, shell);
    assert_int_equal(pclose(shell), 0);
    got[n] = '\0';
    const char *at = got;
    for (size_t i = 0; i < N_HOSTILE; ++i) {
        const size_t length = strlen(hostile[i]);
        if (strncmp(at, hostile[i], length) != 0 || at[length] != '\001') {
            fail_msg("word %zu, '%s', came back as '%.20s'", i, hostile[i], at);
        }
        at += length + 1;
    }
    assert_int_equal(*at, '\0');
    dsi_buf_free(&text);
    dsi_words_free(&words);
}

static void quotes_twice(void **state)
{
    (void)state;
    dsi_words inner = {0};
    dsi_words outer = {0};
    dsi_buf text = dsi_buf_make(1 << 16);
    dsi_words_add(&inner, "printf");
    dsi_words_add(&inner, "%s");
    dsi_words_add(&inner, "it's $HOME `id`");
    dsi_shell_join(&text, &inner, 0);
    dsi_words_add(&outer, "sh");
    dsi_words_add(&outer, "-c");
    dsi_words_add(&outer, dsi_buf_text(&text));
    dsi_buf_clear(&text);
    dsi_shell_join(&text, &outer, 0);
    FILE *shell = popen(dsi_buf_text(&text), "r");
    char got[64] = "";
    assert_non_null(shell);
    assert_non_null(fgets(got, sizeof got, shell));
    assert_int_equal(pclose(shell), 0);
    assert_string_equal(got, "it's $HOME `id`");
    dsi_buf_free(&text);
    dsi_words_free(&inner);
    dsi_words_free(&outer);
}

static void splits(void **state)
{
    ds_ctx *ctx = *state;
    dsi_words words = {0};
    CHECK_OK(ctx, dsi_shell_split(ctx, "--x", " a 'b c' \"d 'e\\\"\" f\\ g h'i'\"j\" '' ", &words));
    static const char *const want[] = {"a", "b c", "d 'e\"", "f g", "hij", ""};
    assert_int_equal(words.n, 6);
    for (size_t i = 0; i < words.n; ++i) {
        assert_string_equal(words.items[i], want[i]);
    }
    dsi_words_free(&words);
    CHECK_FAILS(ctx, dsi_shell_split(ctx, "--x", "a 'b", &words), DS_ERR_ARG, "' is not closed");
    CHECK_FAILS(ctx, dsi_shell_split(ctx, "--x", "a; b", &words), DS_ERR_ARG, "found ';'");
    CHECK_FAILS(ctx, dsi_shell_split(ctx, "--x", "\"$A\"", &words), DS_ERR_ARG, "found '$'");
    CHECK_FAILS(ctx, dsi_shell_split(ctx, "--x", "a\\", &words), DS_ERR_ARG, "backslash");
    dsi_words_free(&words);
}

/* A word list that was quoted splits into the same words. */
static void split_undoes_quote(void **state)
{
    ds_ctx *ctx = *state;
    for (size_t i = 0; i < N_HOSTILE; ++i) {
        dsi_buf text = dsi_buf_make(256);
        dsi_words words = {0};
        dsi_shell_quote(&text, hostile[i]);
        CHECK_OK(ctx, dsi_shell_split(ctx, "--x", dsi_buf_text(&text), &words));
        assert_int_equal(words.n, 1);
        assert_string_equal(words.items[0], hostile[i]);
        dsi_words_free(&words);
        dsi_buf_free(&text);
    }
}

/* ---- environments ---------------------------------------------------------------------------- */

static void environments(void **state)
{
    (void)state;
    dsi_words env = {0};
    dsi_words_add(&env, "AB=1");
    dsi_env_set(&env, "A", "2");
    dsi_env_set(&env, "A", "3=4");
    assert_int_equal(env.n, 2);
    assert_string_equal(dsi_env_get(&env, "A"), "3=4");
    assert_string_equal(dsi_env_get(&env, "AB"), "1");
    dsi_env_unset(&env, "AB");
    assert_null(dsi_env_get(&env, "AB"));
    assert_null(env.items[env.n]);
    dsi_words_free(&env);
}

static void reads_env_files(void **state)
{
    ds_ctx *ctx = *state;
    dsi_words env = {0};
    static const char text[] =
        "A=1\n\n# comment\nexport B=x y=z \n  C='q $HOME'\nD=\nA=2\nE=it's\r\n";
    CHECK_OK(ctx, dsi_exports_parse(ctx, "f", text, sizeof text - 1, &env));
    assert_string_equal(dsi_env_get(&env, "A"), "2");
    assert_string_equal(dsi_env_get(&env, "B"), "x y=z");
    assert_string_equal(dsi_env_get(&env, "C"), "q $HOME");
    assert_string_equal(dsi_env_get(&env, "D"), "");
    assert_string_equal(dsi_env_get(&env, "E"), "it's");
    assert_int_equal(env.n, 5);
    CHECK_FAILS(ctx, dsi_exports_parse(ctx, "f", "A=1\nnot a line\n", 15, &env), DS_ERR_FORMAT,
                "f:2: expected NAME=VALUE, found 'not a line'");
    CHECK_FAILS(ctx, dsi_exports_parse(ctx, "f", "1A=2", 4, &env), DS_ERR_FORMAT, "f:1:");
    CHECK_FAILS(ctx, dsi_exports_parse(ctx, "f", "A-B=2", 5, &env), DS_ERR_FORMAT, "f:1:");
    dsi_words_free(&env);
}

static void collects_exports(void **state)
{
    ds_ctx *ctx = *state;
    char *folder = scratch_make();
    dsi_words env = {0};
    dsi_words out = {0};
    scratch_write(scratch_path(folder, ".deepspeed_env"), "NCCL_DEBUG=WARN\nKEY=v\n", 22);
    static const char *const have[] = {
        "NCCL_DEBUG=INFO",    "HOME=/x",         "UCX_TLS=tcp",   "PYTHONPATH=a", "DS_JOB_SECRET=s",
        "DS_ACCELERATOR=cpu", "FC_TASK_INDEX=3", "NCCL_IB_HCA=m", "PATH=/bin",    "MASTER_HOST=h",
        "DEEPSPEED_TIMEOUT=1"};
    for (size_t i = 0; i < sizeof have / sizeof have[0]; ++i) {
        dsi_words_add(&env, have[i]);
    }
    CHECK_OK(ctx, dsi_exports_collect(ctx, &env, NULL, folder, &out));
    assert_string_equal(dsi_env_get(&out, "NCCL_DEBUG"), "WARN");
    assert_string_equal(dsi_env_get(&out, "KEY"), "v");
    assert_int_equal(out.n, 9); /* not HOME, PATH, DS_JOB_SECRET */
    dsi_buf line = dsi_buf_make(1 << 16);
    dsi_words back = {0};
    dsi_control_line(&out, &line);
    CHECK_OK(ctx, dsi_control_read(ctx, line.data, line.size, &back));
    assert_int_equal(back.n, out.n);
    for (size_t i = 0; i < back.n; ++i) {
        assert_string_equal(back.items[i], out.items[i]);
    }
    CHECK_FAILS(ctx, dsi_control_read(ctx, "hello", 5, &back), DS_ERR_FORMAT, "standard input");
    dsi_words_free(&out);
    dsi_env_set(&env, "AISC_JOB_NAME", "j");
    CHECK_OK(ctx, dsi_exports_collect(ctx, &env, NULL, NULL, &out));
    assert_null(dsi_env_get(&out, "NCCL_IB_HCA"));
    dsi_buf_free(&line);
    dsi_words_free(&back);
    dsi_words_free(&out);
    dsi_words_free(&env);
    scratch_remove(folder);
}

/* ---- cores ----------------------------------------------------------------------------------- */

static void reads_core_lists(void **state)
{
    ds_ctx *ctx = *state;
    uint32_t cores[16];
    size_t n = 0;
    CHECK_OK(ctx, dsi_core_list_parse(ctx, "0,2-4,6", cores, 16, &n));
    assert_int_equal(n, 5);
    assert_int_equal(cores[3], 4);
    static const char *const wrong[] = {"",      ",",  "0,", "a",   "4-2",         "1,1", "3,2",
                                        "0-3,2", "-1", "1-", "0 1", "99999999999", "1;2"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
        CHECK_FAILS(ctx, dsi_core_list_parse(ctx, wrong[i], cores, 16, &n), DS_ERR_ARG,
                    "--bind_core_list: expected rising");
    }
    CHECK_FAILS(ctx, dsi_core_list_parse(ctx, "0-16", cores, 16, &n), DS_ERR_LIMIT, "more than 16");
}

static void deals_cores(void **state)
{
    ds_ctx *ctx = *state;
    dsi_binding binding = {0};
    (void)unsetenv("KMP_AFFINITY");
    const ds_status status = dsi_bind(ctx, NULL, 1, &binding);
    if (status == DS_ERR_UNSUPPORTED) {
        skip(); /* built without hwloc */
    }
    CHECK_OK(ctx, status);
    assert_int_equal(CPU_COUNT_S(binding.cpus_bytes, dsi_binding_cpus(&binding, 0)),
                     dsi_processor_n_cores());
    dsi_binding_free(&binding);
    CHECK_FAILS(ctx, dsi_bind(ctx, NULL, 8000, &binding), DS_ERR_ARG, "a core for each of 8000");
    CHECK_FAILS(ctx, dsi_bind(ctx, "8000", 1, &binding), DS_ERR_ARG, "that may be used here");
    (void)setenv("KMP_AFFINITY", "none", 1);
    CHECK_FAILS(ctx, dsi_bind(ctx, NULL, 1, &binding), DS_ERR_ARG, "KMP_AFFINITY");
    (void)unsetenv("KMP_AFFINITY");
}

/* ---- out of memory --------------------------------------------------------------------------- */

static void put(const char *root, const char *path, const char *text)
{
    char full[512];
    (void)snprintf(full, sizeof full, "%s%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')) != NULL; ++slash) {
        *slash = '\0';
        (void)mkdir(full, 0777);
        *slash = '/';
    }
    scratch_write(full, text, strlen(text));
}

static void knows_cgroup(const char *group, const char *file, const char *before, const char *after)
{
    char *root = scratch_make();
    dsi_oom oom;
    dsi_buf how = dsi_buf_make(4096);
    put(root, "/proc/self/cgroup", group);
    put(root, "/proc/vmstat", "nr_free_pages 1\noom_kill 4\n");
    put(root, file, before);
    dsi_oom_start(&oom, root);
    assert_false(dsi_oom_killed(&oom, root, 99, &how));
    put(root, file, after);
    assert_true(dsi_oom_killed(&oom, root, 99, &how));
    assert_non_null(strstr(dsi_buf_text(&how), "counts 2 kills since the start"));
    assert_false(dsi_oom_killed(&oom, root, 99, &how)); /* counted once */
    dsi_oom_stop(&oom);
    dsi_buf_free(&how);
    scratch_remove(root);
}

static void knows_out_of_memory(void **state)
{
    (void)state;
    knows_cgroup("0::/job/x\n", "/sys/fs/cgroup/job/x/memory.events",
                 "low 0\noom 0\noom_kill 1\noom_group_kill 0\n", "low 0\noom 2\noom_kill 3\n");
    knows_cgroup("0::/of/the/host\n", "/sys/fs/cgroup/memory.events", "oom_kill 0\n",
                 "oom_kill 2\n");
    knows_cgroup("4:cpu,memory:/a\n0::/\n", "/sys/fs/cgroup/memory/a/memory.oom_control",
                 "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
                 "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
    char *root = scratch_make();
    dsi_oom oom;
    dsi_buf how = dsi_buf_make(4096);
    put(root, "/proc/vmstat", "oom_kill 4\n");
    dsi_oom_start(&oom, root);
    assert_false(dsi_oom_killed(&oom, root, 99, &how));
    put(root, "/proc/vmstat", "oom_kill 5\n");
    assert_true(dsi_oom_killed(&oom, root, 99, &how));
    assert_non_null(strstr(dsi_buf_text(&how), "likely"));
    dsi_oom_stop(&oom);
    dsi_buf_free(&how);
    scratch_remove(root);
}

/* ---- outputs --------------------------------------------------------------------------------- */

static void feed(dsi_output *output, const char *text)
{
    dsi_output_feed(output, 0, text, strlen(text));
}

static void shows_whole_lines(void **state)
{
    ds_ctx *ctx = *state;
    char *folder = scratch_make();
    const char *path = scratch_path(folder, "terminal");
    const int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    dsi_terminal terminal = {.fd = {fd, fd}};
    static dsi_output a, b;
    CHECK_OK(ctx, dsi_output_open(ctx, &terminal, "", true, NULL, &a));
    CHECK_OK(ctx, dsi_output_open(ctx, &terminal, "[1] ", true, NULL, &b));
    feed(&a, "one\ntw");
    feed(&b, "un");
    feed(&a, "o\n50%\r");
    feed(&b, "\ndeux\n"); /* begins a new line after the progress bar */
    feed(&a, "99%\r100%\nask? ");
    dsi_output_idle(&a);
    feed(&b, "trois\n[1] quatre\n"); /* which has its prefix already */
    feed(&a, "yes\n");
    feed(&b, "end");
    dsi_output_finish(&a);
    dsi_output_finish(&b);
    size_t n_text = 0;
    char *text = scratch_read(path, &n_text);
    assert_string_equal(
        text, "one\ntwo\n50%\r\n[1] un\n[1] deux\n99%\r100%\nask? \n[1] trois\n[1] quatre\nyes\n"
              "[1] end\n");
    free(text);
    dsi_buf tail = dsi_buf_make(1 << 16);
    for (int i = 0; i < 3000; ++i) {
        char line[32];
        (void)snprintf(line, sizeof line, "\033line %d\n", i);
        feed(&b, line);
    }
    dsi_output_tail(&b, "| ", &tail);
    assert_true(strncmp(dsi_buf_text(&tail), "| ?line 2980\n", 13) == 0);
    assert_non_null(strstr(dsi_buf_text(&tail), "| ?line 2999\n"));
    dsi_buf_free(&tail);
    dsi_output_close(&a);
    dsi_output_close(&b);
    (void)close(fd);
    scratch_remove(folder);
}

/* ---- tasks ----------------------------------------------------------------------------------- */
/* A task that ends without reading its first line, longer than a pipe holds, is told by its end. */
static void an_end_says_more_than_a_broken_pipe(void **state)
{
    enum { LINE = 200000 };
    char *line = malloc(LINE + 1);
    assert_non_null(line);
    memset(line, 'x', LINE);
    line[LINE] = '\0';
    dsi_words argv = {0};
    dsi_words env = {0};
    dsi_words_add(&argv, "sh");
    dsi_words_add(&argv, "-c");
    dsi_words_add(&argv, "exit 7");
    const dsi_task task = {.label = "node a",
                           .prefix = "",
                           .control_line = line,
                           .command = {.program = "/bin/sh",
                                       .argv = &argv,
                                       .env = &env,
                                       .memory_node = -1,
                                       .wants_control = true}};
    const dsi_supervise_params params = {
        .tasks = &task, .n_tasks = 1, .host = "here", .control = -1, .notice = -1, .quiet = true};
    dsi_outcome outcome;
    (void)signal(SIGPIPE, SIG_IGN); /* as the launcher does */
    CHECK_OK(*state, dsi_supervise(*state, &params, &outcome));
    assert_int_equal(outcome.exit_code, 7);
    dsi_words_free(&argv);
    dsi_words_free(&env);
    free(line);
}

static int set_up(void **state)
{
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
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
        cmocka_unit_test(quotes_for_a_real_shell),
        cmocka_unit_test(quotes_twice),
        cmocka_unit_test(splits),
        cmocka_unit_test(split_undoes_quote),
        cmocka_unit_test(environments),
        cmocka_unit_test(reads_env_files),
        cmocka_unit_test(collects_exports),
        cmocka_unit_test(reads_core_lists),
        cmocka_unit_test(deals_cores),
        cmocka_unit_test(knows_out_of_memory),
        cmocka_unit_test(shows_whole_lines),
        cmocka_unit_test(an_end_says_more_than_a_broken_pipe),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
