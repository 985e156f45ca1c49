/* SPDX-License-Identifier: Apache-2.0 */
/* --dry_run: the commands and environments of a job, for a shell. See head.h. */
#include "launch/head_impl.h"

#include "base/processor.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { TEXT_CEILING = 64 << 20 };

static void add_variable(dsi_buf *text, const char *name, const char *value)
{
    if (value != NULL) {
        dsi_buf_printf(text, " %s=", name);
        dsi_shell_quote(text, value);
    }
}

static bool is_set_by_launcher(const char *item)
{
    const size_t n = strcspn(item, "=");
    size_t i = 0;
    while (dsi_rank_env_names[i] != NULL &&
           (strncmp(dsi_rank_env_names[i], item, n) != 0 || dsi_rank_env_names[i][n] != '\0')) {
        ++i;
    }
    return dsi_rank_env_names[i] != NULL;
}

/* What the launcher sets. A node's share of its cores is not known from here. */
static void add_own(const dsi_head *h, const dsi_words *env, dsi_buf *text)
{
    for (size_t i = 0; dsi_rank_env_names[i] != NULL; ++i) {
        const char *name = dsi_rank_env_names[i];
        const bool share = strcmp(name, "OMP_NUM_THREADS") == 0 || strcmp(name, "DS_THREADS") == 0;
        const char *value = dsi_env_get(env, name);
        if (strcmp(name, "DS_JOB_SECRET") == 0) {
            value = "(32 random hexadecimal digits)";
        } else if (share && h->multi && dsi_env_get(&h->exports, name) == NULL) {
            value = "(share of its cores)";
        } else if (strcmp(name, "CUDA_VISIBLE_DEVICES") == 0 && h->multi) {
            value = NULL; /* the node knows whether it has devices */
        }
        add_variable(text, name, value);
    }
}

/* What the launcher sets, then what is exported. */
static void add_rank(const dsi_head *h, size_t node, uint32_t local, dsi_buf *text)
{
    dsi_launch launch = dsi_head_launch(h, node);
    const uint32_t cores = dsi_processor_n_cores() / h->hosts.items[node].n_slots;
    dsi_words env = {0};
    launch.env = h->multi ? &h->exports : &h->env;
    dsi_rank_env(&launch, local, cores > 0 ? cores : 1, &env);
    dsi_buf_printf(text, "# rank %" PRIu32 " on %s\nenv",
                   dsi_hosts_first_rank(&h->hosts, node) + local, h->hosts.items[node].name);
    add_own(h, &env, text);
    for (size_t i = 0; i < h->exports.n; ++i) {
        char name[256];
        const char *item = h->exports.items[i];
        const size_t n = strcspn(item, "=");
        (void)snprintf(name, sizeof name, "%.*s", (int)n, item);
        add_variable(text, name, is_set_by_launcher(item) ? NULL : item + n + 1);
    }
    dsi_buf_putc(text, ' ');
    dsi_shell_join(text, &h->options->command, 0);
    dsi_buf_putc(text, '\n');
    text->failed = text->failed || env.failed;
    dsi_words_free(&env);
}

static ds_status add_commands(dsi_head *h, dsi_buf *text)
{
    dsi_buf world_info = dsi_buf_make(TEXT_CEILING);
    dsi_runner_job job;
    dsi_words shared = {0};
    ds_status status = dsi_head_runner_job(h, &world_info, &job);
    dsi_head_job_env(h, &shared); /* mpirun's command has the names alone */
    job.exports = &shared;
    const size_t n = h->runner->each ? h->hosts.n : 1;
    for (size_t i = 0; status >= 0 && i < n; ++i) {
        dsi_words argv = {0};
        h->runner->command(&job, i, &argv);
        dsi_buf_printf(text, "# %s\n", h->runner->each ? h->hosts.items[i].name : h->runner->name);
        dsi_shell_join(text, &argv, 0);
        dsi_buf_putc(text, '\n');
        status = dsi_words_check(h->ctx, &argv);
        dsi_words_free(&argv);
    }
    dsi_words_free(&shared);
    dsi_buf_free(&world_info);
    return status;
}

ds_status dsi_head_print(dsi_head *h)
{
    dsi_buf text = dsi_buf_make(TEXT_CEILING);
    ds_status status = h->multi ? add_commands(h, &text) : DS_OK;
    if (h->multi && h->runner->is_way) {
        dsi_buf_puts(&text, "# The secret and exported variables go to the nodes on their standard "
                            "input.\n");
    }
    const bool ranks = !h->multi || h->runner->is_way;
    for (size_t i = 0; ranks && i < h->hosts.n; ++i) {
        const bool here = !h->options->no_ssh || (size_t)h->options->node_rank == i;
        for (uint32_t k = 0; here && k < h->hosts.items[i].n_slots; ++k) {
            add_rank(h, i, k, &text);
        }
    }
    if (status >= 0 && text.failed) {
        status = ds_fail(h->ctx, DS_ERR_NOMEM, "no memory for the text");
    }
    if (status >= 0) {
        (void)fputs(dsi_buf_text(&text), stdout);
    }
    dsi_buf_free(&text);
    return status;
}
