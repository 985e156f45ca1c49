/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of one node as tasks of the supervisor. See launch.h. */
#include "base/processor.h"
#include "comm/launcher_note.h"
#include "launch/bind.h"
#include "launch/launch.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What one task borrows. */
typedef struct rank_texts {
    char label[24];
    char prefix[24];
    char *log_path;
    dsi_words env;
} rank_texts;

typedef struct node_run {
    ds_ctx *ctx;
    const dsi_launch *launch;
    uint32_t n; /* ranks here */
    uint32_t threads;
    dsi_binding binding;
    int reports; /* the ranks report whom they waited for in vain; -1: they cannot */
    char listens[DSI_LAUNCHER_NAME_BYTES];
    dsi_task *tasks;
    rank_texts *texts;
} node_run;

static ds_status make_log_dir(ds_ctx *ctx, const char *path)
{
    char part[4096];
    const size_t n = strlen(path);
    if (n >= sizeof part) {
        return ds_fail(ctx, DS_ERR_ARG, "--log_dir: expected a path of at most %zu characters",
                       sizeof part - 1);
    }
    for (size_t i = 1; i <= n; ++i) {
        if (path[i] == '/' || path[i] == '\0') {
            memcpy(part, path, i);
            part[i] = '\0';
            if (mkdir(part, 0777) < 0 && errno != EEXIST) {
                return ds_fail(ctx, DS_ERR_IO, "--log_dir: %s cannot be made: %s", part,
                               strerror(errno));
            }
        }
    }
    return DS_OK;
}

static ds_status name_log(const node_run *node, uint32_t rank, rank_texts *texts)
{
    const dsi_launch *launch = node->launch;
    char again[24] = "";
    if (launch->log_dir == NULL) {
        return DS_OK;
    }
    if (launch->restart > 0) {
        (void)snprintf(again, sizeof again, "_restart%" PRIu32, launch->restart);
    }
    if (asprintf(&texts->log_path, "%s/%s_rank%" PRIu32 "%s.log", launch->log_dir,
                 launch->log_stamp, rank, again) < 0) {
        texts->log_path = NULL;
        return ds_fail(node->ctx, DS_ERR_NOMEM, "no memory for a path");
    }
    return DS_OK;
}

/* What a rank may ask the system for: more than it may use, since stacks and room that is reserved
 * count too; the rest is watched. 0: no limit. */
static size_t data_bytes(const node_run *node)
{
    const size_t mib = 1024 * 1024;
    const size_t used = node->launch->limits.rank_bytes;
    return used > 0 ? used + used / 4 + (256 + 16 * (size_t)node->threads) * mib : 0;
}

static ds_status fill_task(node_run *node, uint32_t local)
{
    const dsi_launch *launch = node->launch;
    rank_texts *texts = &node->texts[local];
    const uint32_t rank = dsi_hosts_first_rank(launch->hosts, launch->node) + local;
    const bool bare =
        launch->prefix == DSI_PREFIX_NONE || (launch->prefix == DSI_PREFIX_AUTO && rank == 0);
    (void)snprintf(texts->label, sizeof texts->label, "rank %" PRIu32, rank);
    (void)snprintf(texts->prefix, sizeof texts->prefix, bare ? "" : "[rank %" PRIu32 "] ", rank);
    DS_TRY(name_log(node, rank, texts));
    dsi_launch own = *launch;
    own.listens = node->reports >= 0 ? node->listens : NULL;
    dsi_rank_env(&own, local, node->threads, &texts->env);
    DS_TRY(dsi_words_check(node->ctx, &texts->env));
    node->tasks[local] = (dsi_task){
        .label = texts->label,
        .rank = rank,
        .prefix = texts->prefix,
        .shown = rank == 0 || !launch->rank0_only,
        .log_path = texts->log_path,
        .command = {.program = launch->program,
                    .argv = launch->command,
                    .env = &texts->env,
                    .cpus = dsi_binding_cpus(&node->binding, local),
                    .cpus_bytes = node->binding.cpus_bytes,
                    .memory_node = dsi_binding_memory(&node->binding, local),
                    .data_bytes = data_bytes(node)},
    };
    return DS_OK;
}

static ds_status share_cores(node_run *node)
{
    const dsi_launch *launch = node->launch;
    if (launch->bind_cores) {
        DS_TRY(dsi_bind(node->ctx, launch->core_list, node->n, &node->binding));
        node->threads = node->binding.cores_each;
        return DS_OK;
    }
    const uint32_t cores = dsi_processor_n_cores();
    node->threads = cores > node->n ? cores / node->n : 1;
    return DS_OK;
}

/* A name that nobody else has: ranks of one launcher meet under it, too. */
static ds_status listen_to_ranks(node_run *node)
{
    char random[DSI_SECRET_TEXT];
    DS_TRY(dsi_make_secret(node->ctx, random));
    (void)snprintf(node->listens, sizeof node->listens, "ds-launcher-%s", random);
    node->reports = dsi_launcher_listen(node->listens);
    return DS_OK;
}

static ds_status run(node_run *node, dsi_outcome *outcome_out)
{
    const dsi_launch *launch = node->launch;
    if (node->tasks == NULL || node->texts == NULL) {
        return ds_fail(node->ctx, DS_ERR_NOMEM, "no memory for %" PRIu32 " ranks", node->n);
    }
    if (launch->log_dir != NULL) {
        DS_TRY(make_log_dir(node->ctx, launch->log_dir));
    }
    DS_TRY(share_cores(node));
    DS_TRY(listen_to_ranks(node));
    for (uint32_t i = 0; i < node->n; ++i) {
        DS_TRY(fill_task(node, i));
    }
    const dsi_supervise_params params = {.tasks = node->tasks,
                                         .n_tasks = node->n,
                                         .host = launch->host,
                                         .ranks = true,
                                         .grace = launch->grace,
                                         .control = launch->control,
                                         .notice = -1,
                                         .reports = node->reports,
                                         .limits = launch->limits,
                                         .terminal = launch->terminal};
    return dsi_supervise(node->ctx, &params, outcome_out);
}

ds_status dsi_launch_node(ds_ctx *ctx, const dsi_launch *launch, dsi_outcome *outcome_out)
{
    node_run node = {.ctx = ctx, .launch = launch, .reports = -1};
    node.n = launch->hosts->items[launch->node].n_slots;
    node.tasks = calloc(node.n, sizeof *node.tasks);
    node.texts = calloc(node.n, sizeof *node.texts);
    const ds_status status = run(&node, outcome_out);
    for (uint32_t i = 0; node.texts != NULL && i < node.n; ++i) {
        free(node.texts[i].log_path);
        dsi_words_free(&node.texts[i].env);
    }
    if (node.reports >= 0) {
        (void)close(node.reports);
    }
    dsi_binding_free(&node.binding);
    free(node.texts);
    free(node.tasks);
    return status;
}
