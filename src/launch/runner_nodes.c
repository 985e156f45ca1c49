/* SPDX-License-Identifier: Apache-2.0 */
/* pdsh and ssh: this launcher on each node. See runners.h.
 *
 * The command that reaches a node's shell is one word, every part of it quoted. What must stay
 * secret comes over the connection's standard input (exports.h); its end tells the node that the
 * head is gone. pdsh has no input for its commands: its exec module starts `deepspeed --relay=HOST
 * ssh …`, which feeds ssh.
 */
#include "launch/runners.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void dsi_ssh_command(const dsi_launch_options *options, const dsi_words *more, dsi_words *argv)
{
    dsi_words_add(argv, "ssh");
    dsi_words_add(argv, "-a");
    dsi_words_add(argv, "-x");
    dsi_words_add(argv, "-o");
    dsi_words_add(argv, "BatchMode=yes");
    if (options->ssh_port > 0) {
        dsi_words_add(argv, "-p");
        dsi_words_addf(argv, "%" PRId64, options->ssh_port);
    }
    dsi_words_add_all(argv, more);
}

void dsi_ssh_target(const dsi_host *host, dsi_words *argv)
{
    if (host->user != NULL) {
        dsi_words_addf(argv, "%s@%s", host->user, host->name);
    } else {
        dsi_words_add(argv, host->name);
    }
}

static void add_switch(dsi_words *argv, bool is_on, const char *flag)
{
    if (is_on) {
        dsi_words_add(argv, flag);
    }
}

static void add_text(dsi_words *argv, const char *flag, const char *value)
{
    if (value != NULL) {
        dsi_words_addf(argv, "%s=%s", flag, value);
    }
}

/* This launcher's command line on a node. node_rank is a number, or pdsh's "%n". */
static void node_command(const dsi_runner_job *job, const char *node_rank, dsi_words *argv)
{
    const dsi_launch_options *o = job->options;
    dsi_words_add(argv, job->self);
    add_text(argv, "--world_info", job->world_info);
    add_text(argv, "--log_stamp", job->log_stamp);
    dsi_words_add(argv, "--control");
    add_text(argv, "--node_rank", node_rank);
    add_text(argv, "--master_addr", job->master_addr);
    dsi_words_addf(argv, "--master_port=%u", job->master_port);
    add_text(argv, "--log_dir", o->log_dir);
    add_text(argv, "--prefix", strcmp(o->prefix, "auto") != 0 ? o->prefix : NULL);
    add_text(argv, "--show", strcmp(o->show, "all") != 0 ? o->show : NULL);
    add_text(argv, "--log_level", strcmp(o->log_level, "info") != 0 ? o->log_level : NULL);
    add_switch(argv, o->quiet, "--quiet");
    add_switch(argv, o->bind_cores, "--bind_cores_to_rank");
    add_text(argv, "--bind_core_list", o->core_list);
    add_switch(argv, o->save_pid, "--save_pid");
    dsi_words_addf(argv, "--grace=%g", o->grace);
    if (o->rank_bytes > 0) {
        dsi_words_addf(argv, "--rank_memory=%" PRIu64, o->rank_bytes);
    }
    if (job->restart > 0) {
        dsi_words_addf(argv, "--restart_count=%" PRIu32, job->restart);
    }
    dsi_words_add(argv, "--");
    dsi_words_add_all(argv, &o->command);
}

/* The text for the node's shell. */
static void node_text(const dsi_runner_job *job, const char *node_rank, dsi_buf *text)
{
    dsi_words argv = {0};
    if (job->options->venv_script != NULL) {
        dsi_buf_puts(text, ". ");
        dsi_shell_quote(text, job->options->venv_script);
        dsi_buf_puts(text, " && ");
    }
    dsi_buf_puts(text, "cd ");
    dsi_shell_quote(text, job->folder);
    dsi_buf_puts(text, " && exec ");
    node_command(job, node_rank, &argv);
    dsi_shell_join(text, &argv, 0);
    text->failed = text->failed || argv.failed;
    dsi_words_free(&argv);
}

static void ssh_command(const dsi_runner_job *job, size_t node, dsi_words *argv)
{
    char rank[24];
    dsi_buf text = dsi_buf_make(4 << 20);
    (void)snprintf(rank, sizeof rank, "%zu", node);
    dsi_ssh_command(job->options, job->ssh_args, argv);
    dsi_words_add_all(argv, job->args);
    dsi_ssh_target(&job->hosts->items[node], argv);
    node_text(job, rank, &text);
    dsi_words_take(argv, &text);
}

#define NODE_RANK "\001n" /* stands for pdsh's %n while the rest is escaped */

/* pdsh replaces %h, %n, %u and %% in every word of the command. */
static void add_escaped(dsi_words *argv, const char *word)
{
    dsi_buf text = dsi_buf_make(8 << 20);
    for (const char *at = word; *at != '\0'; ++at) {
        if (strncmp(at, NODE_RANK, 2) == 0) {
            dsi_buf_puts(&text, "%n");
            ++at;
        } else if (*at == '%') {
            dsi_buf_puts(&text, "%%");
        } else {
            dsi_buf_putc(&text, *at);
        }
    }
    dsi_words_take(argv, &text);
}

static void pdsh_command(const dsi_runner_job *job, size_t node, dsi_words *argv)
{
    (void)node;
    dsi_words ssh = {0};
    dsi_buf text = dsi_buf_make(4 << 20);
    static const char *const fixed[] = {"pdsh", "-R", "exec", "-S", "-N", "-f", "1024", "-w", NULL};
    for (size_t i = 0; fixed[i] != NULL; ++i) {
        dsi_words_add(argv, fixed[i]);
    }
    dsi_runner_add_hosts(job, false, argv);
    dsi_words_add_all(argv, job->args);
    add_escaped(argv, job->self);
    dsi_words_add(argv, "--relay=%h");
    dsi_words_add(argv, "--");
    dsi_ssh_command(job->options, job->ssh_args, &ssh);
    for (size_t i = 0; i < ssh.n; ++i) {
        add_escaped(argv, ssh.items[i]);
    }
    if (dsi_hosts_with_user(job->hosts) != NULL) { /* of the others pdsh's default, one's own */
        dsi_words_add(argv, "-l");
        dsi_words_add(argv, "%u");
    }
    dsi_words_add(argv, "%h");
    node_text(job, NODE_RANK, &text);
    add_escaped(argv, dsi_buf_text(&text));
    argv->failed = argv->failed || ssh.failed || text.failed;
    dsi_words_free(&ssh);
    dsi_buf_free(&text);
}

const dsi_runner dsi_node_runners[DSI_N_NODE_RUNNERS] = {
    {
        .version = DSI_RUNNER_VERSION,
        .name = "pdsh",
        .program = "pdsh",
        .package = "pdsh; or give --launcher ssh, which needs ssh alone",
        .is_way = true,
        .relays = true,
        .command = pdsh_command,
    },
    {
        .version = DSI_RUNNER_VERSION,
        .name = "ssh",
        .program = "ssh",
        .package = "openssh-client",
        .is_way = true,
        .each = true,
        .command = ssh_command,
    },
};
