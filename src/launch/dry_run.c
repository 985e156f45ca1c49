/* --dry_run: the commands and environments of a job, for a shell. See head.h. */
#include "launch/head_impl.h"

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

/* The variables that the launcher sets, then the exported ones. */
static void add_rank(const dsi_head *h, size_t node, uint32_t local, dsi_buf *text)
{
    const dsi_launch launch = dsi_head_launch(h, node);
    const uint32_t cores = dsi_cores_allowed() / h->hosts.items[node].n_slots;
    dsi_words env = {0};
    dsi_rank_env(&launch, local, cores > 0 ? cores : 1, &env);
    dsi_buf_printf(text, "# rank %" PRIu32 " on %s\nenv",
                   dsi_hosts_first_rank(&h->hosts, node) + local, h->hosts.items[node].name);
    for (size_t i = 0; dsi_rank_env_names[i] != NULL; ++i) {
        const char *name = dsi_rank_env_names[i];
        const bool secret = strcmp(name, "DS_JOB_SECRET") == 0;
        const bool share = strcmp(name, "OMP_NUM_THREADS") == 0 || strcmp(name, "DS_THREADS") == 0;
        const char *unknown = h->multi ? "(share of its cores)" : NULL;
        add_variable(text, name,
                     secret                     ? "(32 random hexadecimal digits)"
                     : share && unknown != NULL ? unknown
                                                : dsi_env_get(&env, name));
    }
    for (size_t i = 0; i < h->exports.n; ++i) {
        char name[256];
        const size_t n = strcspn(h->exports.items[i], "=");
        (void)snprintf(name, sizeof name, "%.*s", (int)n, h->exports.items[i]);
        add_variable(text, name, h->exports.items[i] + n + 1);
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
    if (!h->runner->is_way) { /* names only: mpirun takes the values from its environment */
        dsi_words_add_all(&shared, &h->exports);
        dsi_words_add(&shared, "DS_JOB_SECRET=");
        dsi_words_add(&shared, "MASTER_ADDR=");
        dsi_words_add(&shared, "MASTER_PORT=");
        dsi_words_add(&shared, "DS_RESTART_COUNT=");
        job.exports = &shared;
    }
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
