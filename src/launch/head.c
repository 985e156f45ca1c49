/* The launcher's course. See head.h. */
#include "launch/head.h"

#include "launch/launch.h"
#include <deepspeed/context.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

typedef struct head {
    ds_ctx *ctx;
    const dsi_launch_options *options;
    dsi_hosts hosts;
    bool local; /* no hostfile */
    char host[256];
    char secret[DSI_SECRET_TEXT];
    char stamp[32];
    char *program;
    dsi_words env;
} head;

static ds_status refuse(const head *h)
{
    const dsi_launch_options *o = h->options;
    if (o->module) {
        return ds_fail(h->ctx, DS_ERR_UNSUPPORTED,
                       "--module: programs are started as they are, not as Python modules; write "
                       "deepspeed … python3 -m %s …",
                       o->command.n > 0 ? o->command.items[0] : "MODULE");
    }
    if (o->autotuning != NULL) {
        return ds_fail(h->ctx, DS_ERR_UNSUPPORTED,
                       "--autotuning %s: autotuning is not built yet; remove the flag",
                       o->autotuning);
    }
    if (o->core_list != NULL && !o->bind_cores) {
        return ds_fail(h->ctx, DS_ERR_ARG,
                       "--bind_core_list needs --bind_cores_to_rank: give both, or neither");
    }
    return DS_OK;
}

static ds_status prepare(head *h)
{
    const dsi_launch_options *o = h->options;
    if (gethostname(h->host, sizeof h->host - 1) < 0) {
        (void)strcpy(h->host, "localhost");
    }
    const time_t now = time(NULL);
    struct tm parts;
    (void)strftime(h->stamp, sizeof h->stamp, "%Y%m%d%H%M%S", localtime_r(&now, &parts));
    dsi_env_inherit(&h->env, environ);
    DS_TRY(dsi_words_check(h->ctx, &h->env));
    DS_TRY(dsi_head_hosts(h->ctx, o, &h->hosts, &h->local));
    return dsi_program_find(h->ctx, o->command.items[0], &h->program);
}

static ds_status run_here(head *h, int *exit_code_out)
{
    const dsi_launch_options *o = h->options;
    dsi_launch launch = {
        .hosts = &h->hosts,
        .host = h->host,
        .master_addr = "127.0.0.1",
        .master_port = (uint16_t)o->master_port,
        .secret = h->secret,
        .command = &o->command,
        .program = h->program,
        .env = &h->env,
        .log_dir = o->log_dir,
        .log_stamp = h->stamp,
        .prefix = strcmp(o->prefix, "all") == 0    ? DSI_PREFIX_ALL
                  : strcmp(o->prefix, "none") == 0 ? DSI_PREFIX_NONE
                                                   : DSI_PREFIX_AUTO,
        .rank0_only = strcmp(o->show, "first") == 0,
        .devices = dsi_devices_here() > 0,
        .bind_cores = o->bind_cores,
        .core_list = o->core_list,
        .grace = o->grace,
        .control = -1,
    };
    dsi_outcome outcome;
    DS_TRY(dsi_make_secret(h->ctx, h->secret));
    if (launch.master_port == 0) {
        DS_TRY(dsi_free_port(h->ctx, &launch.master_port));
    }
    ds_log(h->ctx, DS_LOG_OBJECT, "%" PRIu32 " ranks on this machine meet at %s:%u",
           dsi_hosts_n_ranks(&h->hosts), launch.master_addr, launch.master_port);
    DS_TRY(dsi_launch_node(h->ctx, &launch, &outcome));
    *exit_code_out = outcome.exit_code;
    return DS_OK;
}

ds_status dsi_head_run(ds_ctx *ctx, const dsi_launch_options *options, int *exit_code_out)
{
    head h = {.ctx = ctx, .options = options};
    ds_status status = refuse(&h);
    if (status >= 0) {
        status = prepare(&h);
    }
    if (status >= 0 && h.hosts.n > 1) {
        status = ds_fail(ctx, DS_ERR_UNSUPPORTED, "several hosts are not built yet");
    }
    if (status >= 0) {
        status = run_here(&h, exit_code_out);
    }
    dsi_hosts_free(&h.hosts);
    dsi_words_free(&h.env);
    free(h.program);
    return status;
}
