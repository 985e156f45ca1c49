/* SPDX-License-Identifier: Apache-2.0 */
/* ds_ssh: runs a command on every host of a hostfile. A thin main over src/launch. */
#include "base/buf.h"
#include "common/args.h"
#include "common/output.h"
#include "launch/fan_out.h"

#include <deepspeed/context.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { EXIT_USAGE = 2, EXIT_FAILED = 3 };

static const char about[] =
    "Runs COMMAND on every host of a hostfile, all at once, over ssh. Each line of output begins "
    "with its host. COMMAND is one text for the hosts' shells; several words are joined by blanks, "
    "as ssh does, so that quotes for the hosts must be given: ds_ssh 'df -h \"$HOME\"'.";

static const char after[] =
    "Examples:\n"
    "  ds_ssh hostname\n"
    "  ds_ssh -f hosts 'nvidia-smi -L | wc -l'\n"
    "  ds_ssh -f hosts --include w0@w3 uptime\n\n"
    "Exit codes: 0 when the command ended with 0 on all hosts, else the largest of their exit\n"
    "codes (255: ssh did not reach a host); 2 wrong usage, 3 the system refused. A failing host\n"
    "does not end the others; the failing ones are named at the end.";

static void write_line(void *user, ds_log_level level, const char *line)
{
    (void)user;
    if (level <= DS_LOG_JOB) {
        (void)fprintf(stderr, "ds_ssh: %s\n", line);
    }
}

static int fail(ds_ctx *ctx, ds_status status)
{
    (void)fprintf(stderr, "ds_ssh: %s\n", ds_ctx_error(ctx));
    return status == DS_ERR_IO || status == DS_ERR_NOMEM ? EXIT_FAILED : EXIT_USAGE;
}

/* The words as one text. */
static void join(const dsi_arg_list *words, dsi_buf *text)
{
    for (size_t i = 0; i < words->n; ++i) {
        dsi_buf_printf(text, "%s%s", i > 0 ? " " : "", words->items[i]);
    }
}

static int run(ds_ctx *ctx, const dsi_fan_out *fan_out, const dsi_arg_list *words)
{
    dsi_fan_out whole = *fan_out;
    dsi_buf text = dsi_buf_make(1 << 20);
    int code = 0;
    join(words, &text);
    whole.command = dsi_buf_text(&text);
    const ds_status status = text.failed ? ds_fail(ctx, DS_ERR_NOMEM, "the command is too long")
                                         : dsi_fan_out_run(ctx, &whole, &code);
    dsi_buf_free(&text);
    return status < 0 ? fail(ctx, status) : code;
}

int main(int argc, char **argv)
{
    output_guard("ds_ssh");
    dsi_fan_out fan_out = {0};
    const dsi_arg rows[] = {
        {.name = "hostfile",
         .letter = 'f',
         .type = DSI_ARG_TEXT,
         .out = &fan_out.hostfile,
         .value = "FILE",
         .def = "/job/hostfile",
         .doc = "Hosts, a line each: 'name slots=N'."},
        {.name = "include",
         .letter = 'i',
         .type = DSI_ARG_TEXT,
         .out = &fan_out.include,
         .value = "NODES",
         .doc = "Only these hosts: NAME[@NAME…]."},
        {.name = "exclude",
         .letter = 'e',
         .type = DSI_ARG_TEXT,
         .out = &fan_out.exclude,
         .value = "NODES",
         .doc = "All but these hosts."},
        {.name = "ssh_port",
         .type = DSI_ARG_INT,
         .out = &fan_out.ssh_port,
         .value = "N",
         .def = "0",
         .min = 0,
         .max = 65535,
         .doc = "Port of the ssh servers; 0: ssh's own choice."},
    };
    const dsi_args_spec spec = {.usage = "ds_ssh [FLAGS] COMMAND",
                                .about = about,
                                .rows = rows,
                                .n_rows = sizeof rows / sizeof rows[0],
                                .after = after,
                                .stop_at_word = true};
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1; /* it forks */
    params.log = write_line;
    ds_ctx *ctx = NULL;
    (void)signal(SIGPIPE, SIG_IGN);
    if (ds_ctx_create(&params, &ctx) < 0) {
        return EXIT_FAILED;
    }
    dsi_args args = {0};
    int code = 0;
    const ds_status status = dsi_args_parse(ctx, &spec, argc, argv, &args);
    if (status < 0) {
        code = fail(ctx, status);
    } else if (args.help || args.words.n == 0) {
        dsi_args_help(&spec, args.help ? stdout : stderr);
        code = args.help ? 0 : EXIT_USAGE;
    } else {
        code = run(ctx, &fan_out, &args.words);
    }
    dsi_args_free(&args);
    ds_ctx_destroy(&ctx);
    return code;
}
