/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of this machine, on the only node of a job or as one node of several; and the relay
 * that stands between pdsh and ssh. See head.h.
 */
#include "launch/exports.h"
#include "launch/head_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { CONTROL_CEILING = 1 << 20 };

dsi_launch dsi_head_launch(const dsi_head *h, size_t node)
{
    const dsi_launch_options *o = h->options;
    return (dsi_launch){
        .hosts = &h->hosts,
        .node = node,
        .host = h->host,
        .master_addr = h->master_addr,
        .master_port = h->master_port,
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
        .restart = h->restart,
        .control = o->control ? 0 : -1,
        .limits = {.seconds = o->time_limit,
                   .rank_bytes = o->rank_bytes,
                   .done_file = o->done_file},
        .terminal = o->terminal,
    };
}

/* Slots that are no device here would make ranks fail one by one, late. */
static ds_status check_devices(const dsi_head *h, size_t node)
{
    const dsi_host *host = &h->hosts.items[node];
    const uint32_t n = dsi_devices_here();
    const uint32_t last = host->slots[host->n_slots - 1];
    if (n > 0 && last >= n) {
        return ds_fail(h->ctx, DS_ERR_ARG,
                       "host %s: expected slots below %" PRIu32 ", its number of GPUs, found slot "
                       "%" PRIu32 "; DS_ACCELERATOR=cpu starts processor ranks",
                       host->name, n, last);
    }
    return DS_OK;
}

ds_status dsi_head_run_node(dsi_head *h, size_t node, dsi_outcome *outcome_out)
{
    const dsi_launch launch = dsi_head_launch(h, node);
    DS_TRY(check_devices(h, node));
    return dsi_launch_node(h->ctx, &launch, outcome_out);
}

/* Reads the first line of standard input, a byte at a time: what follows stays there. */
static ds_status read_control(dsi_head *h)
{
    dsi_buf line = dsi_buf_make(CONTROL_CEILING);
    char c = '\0';
    ssize_t n;
    while ((n = read(0, &c, 1)) != 0 && c != '\n') {
        if (n < 0 && errno != EINTR) {
            break;
        }
        if (n == 1) {
            dsi_buf_putc(&line, c);
        }
    }
    const ds_status status =
        n == 1 && !line.failed
            ? dsi_control_read(h->ctx, dsi_buf_text(&line), line.size, &h->env)
            : ds_fail(h->ctx, DS_ERR_IO, "standard input ended before the launcher's first line");
    dsi_buf_free(&line);
    return status;
}

ds_status dsi_head_run_as_node(dsi_head *h, int *exit_code_out)
{
    const dsi_launch_options *o = h->options;
    dsi_outcome outcome;
    if (o->control) {
        DS_TRY(read_control(h));
    }
    const char *secret = dsi_env_get(&h->env, "DS_JOB_SECRET");
    DS_TRY(dsi_hosts_decode(h->ctx, o->world_info, &h->hosts));
    if (secret == NULL || o->node_rank < 0 || (size_t)o->node_rank >= h->hosts.n ||
        o->master_addr == NULL || o->master_port == 0) {
        return ds_fail(h->ctx, DS_ERR_ARG,
                       "--world_info: expected with it a secret, --node_rank below %zu, "
                       "--master_addr and --master_port: only the launcher itself starts this",
                       h->hosts.n);
    }
    (void)snprintf(h->secret, sizeof h->secret, "%s", secret);
    (void)snprintf(h->master_addr, sizeof h->master_addr, "%s", o->master_addr);
    h->master_port = (uint16_t)o->master_port;
    h->restart = (uint32_t)o->restart_count;
    if (!dsi_is_this_host(h, h->hosts.items[o->node_rank].name)) {
        (void)snprintf(h->host, sizeof h->host, "%s", h->hosts.items[o->node_rank].name);
    }
    DS_TRY(dsi_program_find(h->ctx, o->command.items[0], &h->program));
    DS_TRY(dsi_head_run_node(h, (size_t)o->node_rank, &outcome));
    *exit_code_out = outcome.exit_code;
    return DS_OK;
}

/* Reports to the head, which waits for pdsh, about the way to this node. */
static void notify(const dsi_head *h, const char *host, const char *what, long number)
{
    const char *path = dsi_env_get(&h->env, "DS_LAUNCH_NOTICE");
    const int fd = path != NULL ? open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC) : -1;
    if (fd >= 0) {
        (void)dprintf(fd, "%s %s %ld\n", host, what, number);
        (void)close(fd);
    }
}

ds_status dsi_head_run_relay(dsi_head *h, int *exit_code_out)
{
    const dsi_launch_options *o = h->options;
    dsi_words env = {0};
    dsi_outcome outcome = {0};
    const char *line = dsi_env_get(&h->env, "DS_LAUNCH_CONTROL");
    if (line == NULL) {
        return ds_fail(h->ctx, DS_ERR_ARG,
                       "--relay: expected DS_LAUNCH_CONTROL in the environment, found none: only "
                       "the launcher itself starts this");
    }
    DS_TRY(dsi_program_find(h->ctx, o->command.items[0], &h->program));
    dsi_words_add_all(&env, &h->env);
    dsi_env_unset(&env, "DS_LAUNCH_CONTROL");
    dsi_env_unset(&env, "DS_LAUNCH_NOTICE");
    const dsi_task task = {.label = o->relay,
                           .prefix = "",
                           .shown = true,
                           .control_line = line,
                           .command = {.program = h->program,
                                       .argv = &o->command,
                                       .env = &env,
                                       .memory_node = -1,
                                       .wants_control = true}};
    const dsi_supervise_params params = {.tasks = &task,
                                         .n_tasks = 1,
                                         .host = h->host,
                                         .grace = o->grace,
                                         .control = -1,
                                         .notice = -1,
                                         .quiet = true,
                                         .ways = true};
    ds_status status = dsi_words_check(h->ctx, &env);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* without pdsh there is nobody to relay for */
    notify(h, o->relay, "pid", (long)getpid());
    status = status >= 0 ? dsi_supervise(h->ctx, &params, &outcome) : status;
    dsi_words_free(&env);
    if (status >= 0 && outcome.exit_code != 0 && !outcome.interrupted) {
        if (outcome.awaited) {
            notify(h, o->relay, "awaits", (long)outcome.awaited_rank);
        }
        notify(h, o->relay, "code", outcome.exit_code);
    }
    *exit_code_out = outcome.exit_code;
    return status;
}
