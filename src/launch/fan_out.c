/* SPDX-License-Identifier: Apache-2.0 */
/* See fan_out.h. The hosts are tasks of the supervisor that do not end one another. */
#include "launch/fan_out.h"

#include "launch/runners.h"
#include "launch/supervise.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

typedef struct fan {
    ds_ctx *ctx;
    const dsi_fan_out *what;
    dsi_hosts hosts;
    dsi_words env, ssh_args;
    dsi_words *argv; /* hosts.n */
    dsi_task *tasks; /* hosts.n */
    char **prefixes; /* hosts.n */
    char *program;
} fan;

static ds_status fill(fan *f)
{
    const char *append = getenv("PDSH_SSH_ARGS_APPEND");
    const dsi_launch_options options = {.ssh_port = f->what->ssh_port};
    if (append != NULL) {
        DS_TRY(dsi_shell_split(f->ctx, "PDSH_SSH_ARGS_APPEND", append, &f->ssh_args));
    }
    DS_TRY(dsi_program_find(f->ctx, "ssh", &f->program));
    dsi_env_inherit(&f->env, environ);
    f->argv = calloc(f->hosts.n, sizeof *f->argv);
    f->tasks = calloc(f->hosts.n, sizeof *f->tasks);
    f->prefixes = calloc(f->hosts.n, sizeof *f->prefixes);
    if (f->argv == NULL || f->tasks == NULL || f->prefixes == NULL || f->env.failed) {
        return ds_fail(f->ctx, DS_ERR_NOMEM, "no memory for %zu hosts", f->hosts.n);
    }
    for (size_t i = 0; i < f->hosts.n; ++i) {
        const char *name = f->hosts.items[i].name;
        if (asprintf(&f->prefixes[i], "%s: ", name) < 0) {
            f->prefixes[i] = NULL;
            return ds_fail(f->ctx, DS_ERR_NOMEM, "no memory for %zu hosts", f->hosts.n);
        }
        dsi_ssh_command(&options, &f->ssh_args, &f->argv[i]);
        dsi_ssh_target(&f->hosts.items[i], &f->argv[i]);
        dsi_words_add(&f->argv[i], f->what->command);
        DS_TRY(dsi_words_check(f->ctx, &f->argv[i]));
        f->tasks[i] = (dsi_task){
            .label = name,
            .prefix = f->prefixes[i],
            .shown = true,
            .command = {
                .program = f->program, .argv = &f->argv[i], .env = &f->env, .memory_node = -1}};
    }
    return DS_OK;
}

static void destroy(fan *f)
{
    for (size_t i = 0; i < f->hosts.n; ++i) {
        if (f->argv != NULL) {
            dsi_words_free(&f->argv[i]);
        }
        if (f->prefixes != NULL) {
            free(f->prefixes[i]);
        }
    }
    free(f->argv);
    free(f->tasks);
    free(f->prefixes);
    free(f->program);
    dsi_words_free(&f->env);
    dsi_words_free(&f->ssh_args);
    dsi_hosts_free(&f->hosts);
}

static ds_status run(fan *f, int *exit_code_out)
{
    DS_TRY(dsi_hosts_read(f->ctx, f->what->hostfile, &f->hosts));
    DS_TRY(dsi_hosts_select(f->ctx, &f->hosts, f->what->include, f->what->exclude));
    DS_TRY(fill(f));
    const dsi_supervise_params params = {.tasks = f->tasks,
                                         .n_tasks = f->hosts.n,
                                         .host = "",
                                         .grace = 5,
                                         .control = -1,
                                         .notice = -1,
                                         .ways = true,
                                         .independent = true};
    dsi_outcome outcome;
    DS_TRY(dsi_supervise(f->ctx, &params, &outcome));
    *exit_code_out = outcome.exit_code;
    return DS_OK;
}

ds_status dsi_fan_out_run(ds_ctx *ctx, const dsi_fan_out *fan_out, int *exit_code_out)
{
    fan f = {.ctx = ctx, .what = fan_out};
    const ds_status status = run(&f, exit_code_out);
    destroy(&f);
    return status;
}
