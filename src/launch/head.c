/* SPDX-License-Identifier: Apache-2.0 */
/* The launcher's course. See head.h. */
#include "launch/head_impl.h"

#include "comm/rendezvous.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

bool dsi_is_this_host(const dsi_head *h, const char *name)
{
    const size_t n = strcspn(name, ".");
    return strcasecmp(name, "localhost") == 0 || strncmp(name, "127.", 4) == 0 ||
           strcasecmp(name, h->host) == 0 ||
           (strncasecmp(name, h->host, n) == 0 && (h->host[n] == '\0' || h->host[n] == '.') &&
            !isdigit((unsigned char)name[0]));
}

static ds_status refuse(const dsi_head *h)
{
    const dsi_launch_options *o = h->options;
    if (o->module) {
        return ds_fail(h->ctx, DS_ERR_UNSUPPORTED,
                       "--module: programs are started as they are, not as Python modules; write "
                       "deepspeed … python3 -m %s …",
                       o->command.items[0]);
    }
    if (o->core_list != NULL && !o->bind_cores) {
        return ds_fail(h->ctx, DS_ERR_ARG,
                       "--bind_core_list needs --bind_cores_to_rank: give both, or neither");
    }
    if (o->node_rank >= 0 && !o->no_ssh && o->world_info == NULL) {
        return ds_fail(h->ctx, DS_ERR_ARG,
                       "--node_rank needs --no_ssh: without it this launcher starts every node");
    }
    return DS_OK;
}

/* ---- preparation ----------------------------------------------------------------------------- */

static ds_status read_secret(dsi_head *h)
{
    const char *given = dsi_env_get(&h->env, "DS_JOB_SECRET");
    if (given == NULL) {
        return DS_OK;
    }
    if (strlen(given) != DSI_SECRET_TEXT - 1 ||
        given[strspn(given, "0123456789abcdefABCDEF")] != '\0') {
        return ds_fail(
            h->ctx, DS_ERR_ARG,
            "DS_JOB_SECRET in the environment: expected 32 hexadecimal digits, found %zu "
            "characters; unset it to have one drawn",
            strlen(given));
    }
    (void)strcpy(h->secret, given);
    h->secret_given = true;
    return DS_OK;
}

static ds_status know_place(dsi_head *h)
{
    if (gethostname(h->host, sizeof h->host - 1) < 0) {
        (void)strcpy(h->host, "localhost");
    }
    const ssize_t n = readlink("/proc/self/exe", h->self, sizeof h->self - 1);
    if (n < 0 || getcwd(h->folder, sizeof h->folder) == NULL) {
        return ds_fail(h->ctx, DS_ERR_IO, "the working folder or this executable is not known: %s",
                       strerror(errno));
    }
    const time_t now = time(NULL);
    struct tm parts;
    (void)strftime(h->stamp, sizeof h->stamp, "%Y%m%d%H%M%S", localtime_r(&now, &parts));
    if (h->options->log_stamp != NULL) {
        (void)snprintf(h->stamp, sizeof h->stamp, "%s", h->options->log_stamp);
    }
    dsi_env_inherit(&h->env, environ);
    DS_TRY(dsi_words_check(h->ctx, &h->env));
    return read_secret(h);
}

static ds_status check_no_ssh(dsi_head *h)
{
    const dsi_launch_options *o = h->options;
    const int64_t last = (int64_t)h->hosts.n - 1;
    if (o->node_rank < 0 || o->node_rank > last) {
        return ds_fail(h->ctx, DS_ERR_ARG,
                       "--no_ssh: expected --node_rank from 0 to %" PRId64 ", found %" PRId64, last,
                       o->node_rank);
    }
    if (last > 0 && o->master_addr == NULL) {
        return ds_fail(h->ctx, DS_ERR_ARG,
                       "--no_ssh: expected --master_addr, where rank 0 is reached, found none");
    }
    if (last > 0 && !h->secret_given) {
        return ds_fail(h->ctx, DS_ERR_ARG,
                       "--no_ssh: expected DS_JOB_SECRET in the environment, the same 32 "
                       "hexadecimal digits on every node, found none; draw one: openssl rand -hex "
                       "16");
    }
    return DS_OK;
}

static ds_status prepare_here(dsi_head *h)
{
    const dsi_launch_options *o = h->options;
    const char *name = h->hosts.items[0].name;
    if (o->no_ssh) {
        DS_TRY(check_no_ssh(h));
    } else if (!h->local && !dsi_is_this_host(h, name)) {
        ds_log(h->ctx, DS_LOG_WARN,
               "%s, the only host of the job, is taken to be this machine (%s); --force_multi goes "
               "there by %s",
               name, h->host, o->launcher);
    }
    (void)snprintf(h->master_addr, sizeof h->master_addr, "%s",
                   o->master_addr != NULL ? o->master_addr : "127.0.0.1");
    return dsi_program_find(h->ctx, o->command.items[0], &h->program);
}

static ds_status prepare(dsi_head *h)
{
    const dsi_launch_options *o = h->options;
    h->runner = dsi_runner_find(o->launcher);
    if (h->runner == NULL) {
        return ds_fail(h->ctx, DS_ERR_ARG,
                       "--launcher: expected one of pdsh, ssh, openmpi, mpich, impi, slurm and "
                       "mvapich, found '%s'",
                       o->launcher);
    }
    DS_TRY(dsi_head_hosts(h->ctx, o, &h->hosts, &h->local));
    const bool foreign = o->launcher_given && !h->runner->is_way;
    h->multi = (o->force_multi || h->hosts.n > 1 || foreign) && !o->no_ssh;
    h->restart = (uint32_t)o->restart_count;
    h->failed_slot = UINT32_MAX;
    if (h->multi && !h->runner->is_way && o->rank_bytes > 0) {
        return ds_fail(h->ctx, DS_ERR_UNSUPPORTED,
                       "--rank_memory with --launcher %s: it starts the ranks itself; use "
                       "--launcher pdsh or ssh, or its own limits",
                       o->launcher);
    }
    DS_TRY(dsi_head_elastic_start(h));
    return h->multi ? dsi_head_prepare_nodes(h) : prepare_here(h);
}

/* ---- attempts -------------------------------------------------------------------------------- */

/* A port for this attempt. One that another machine opens cannot be tried from here. */
static ds_status choose_port(dsi_head *h)
{
    const bool here = h->multi ? dsi_is_this_host(h, h->hosts.items[0].name) : h->hosts.n == 1;
    if (h->options->master_port > 0) {
        h->master_port = (uint16_t)h->options->master_port;
    } else if (here) {
        DS_TRY(dsi_rdv_free_port(h->ctx, &h->master_port));
    } else {
        h->master_port = (uint16_t)(DSI_DEFAULT_PORT + h->restart % 1000);
    }
    return DS_OK;
}

static ds_status attempt(dsi_head *h, dsi_outcome *outcome)
{
    if (!h->secret_given) {
        DS_TRY(dsi_make_secret(h->ctx, h->secret));
    }
    DS_TRY(choose_port(h));
    ds_log(h->ctx, DS_LOG_OBJECT, "%" PRIu32 " ranks on %zu host%s meet at %s:%u",
           dsi_hosts_n_ranks(&h->hosts), h->hosts.n, h->hosts.n == 1 ? "" : "s", h->master_addr,
           h->master_port);
    const size_t node = h->options->no_ssh ? (size_t)h->options->node_rank : 0;
    return h->multi ? dsi_head_run_nodes(h, outcome) : dsi_head_run_node(h, node, outcome);
}

static ds_status run_attempts(dsi_head *h, dsi_outcome *outcome_out)
{
    const uint32_t first = h->restart;
    dsi_outcome outcome;
    for (;;) {
        DS_TRY(attempt(h, &outcome));
        const bool again = outcome.exit_code != 0 && !outcome.interrupted && !outcome.signalled &&
                           outcome.limit == DSI_LIMIT_NONE &&
                           h->restart - first < (uint32_t)h->options->restarts;
        if (!again) {
            break;
        }
        ++h->restart;
        DS_TRY(dsi_head_elastic_again(h, &outcome));
        ds_log(h->ctx, DS_LOG_WARN, "restart %" PRIu32 " of %" PRId64 ": %" PRIu32 " ranks",
               h->restart - first, h->options->restarts, dsi_hosts_n_ranks(&h->hosts));
    }
    *outcome_out = outcome;
    return DS_OK;
}

/* /tmp/PID.deepspeed, DeepSpeed's place and content. */
static ds_status save_pid(dsi_head *h, char *path, size_t size)
{
    (void)snprintf(path, size, "/tmp/%ld.deepspeed", (long)getpid());
    (void)unlink(path); /* of an older process of this number */
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0 || dprintf(fd, "%ld", (long)getpid()) < 0) {
        const int error = errno;
        if (fd >= 0) {
            (void)close(fd);
        }
        return ds_fail(h->ctx, DS_ERR_IO, "--save_pid: %s cannot be written: %s", path,
                       strerror(error));
    }
    (void)close(fd);
    return DS_OK;
}

static ds_status run_job(dsi_head *h, dsi_outcome *outcome_out)
{
    char path[64] = "";
    DS_TRY(prepare(h));
    if (h->options->dry_run) {
        DS_TRY(choose_port(h));
        return dsi_head_print(h);
    }
    if (h->options->save_pid) {
        DS_TRY(save_pid(h, path, sizeof path));
    }
    const ds_status status = run_attempts(h, outcome_out);
    if (path[0] != '\0') {
        (void)unlink(path);
    }
    return status;
}

ds_status dsi_head_run(ds_ctx *ctx, const dsi_launch_options *options, int *exit_code_out)
{
    dsi_outcome outcome;
    DS_TRY(dsi_head_run_outcome(ctx, options, &outcome));
    *exit_code_out = outcome.exit_code;
    return DS_OK;
}

ds_status dsi_head_run_outcome(ds_ctx *ctx, const dsi_launch_options *options,
                               dsi_outcome *outcome_out)
{
    *outcome_out = (dsi_outcome){0};
    dsi_head h = {.ctx = ctx, .options = options};
    ds_status status = refuse(&h);
    if (status >= 0) {
        status = know_place(&h);
    }
    if (status >= 0) {
        status = options->relay != NULL        ? dsi_head_run_relay(&h, &outcome_out->exit_code)
                 : options->world_info != NULL ? dsi_head_run_as_node(&h, &outcome_out->exit_code)
                                               : run_job(&h, outcome_out);
    }
    dsi_hosts_free(&h.hosts);
    dsi_words_free(&h.env);
    dsi_words_free(&h.exports);
    dsi_words_free(&h.runner_args);
    dsi_words_free(&h.ssh_args);
    free(h.program);
    return status;
}
