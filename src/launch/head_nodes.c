/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs on several hosts: the runner's command, run and watched. See head.h. */
#include "launch/exports.h"
#include "launch/head_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- before the first attempt ---------------------------------------------------------------- */

/* Runs argv and keeps the begin of what it prints. Returns its wait status, -1 when it cannot be
 * started. */
static int run_and_read(const dsi_words *argv, char *text, size_t size)
{
    int ends[2];
    text[0] = '\0';
    if (pipe2(ends, O_CLOEXEC) < 0) {
        return -1;
    }
    const pid_t pid = fork();
    if (pid == 0) {
        const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
        (void)dup2(null, 0);
        (void)dup2(ends[1], 1);
        (void)execvp(argv->items[0], argv->items);
        _exit(127);
    }
    (void)close(ends[1]);
    size_t n = 0;
    ssize_t got;
    while (pid > 0 && n < size - 1 && (got = read(ends[0], text + n, size - 1 - n)) != 0) {
        if (got < 0 && errno != EINTR) {
            break;
        }
        n += got > 0 ? (size_t)got : 0;
    }
    text[n] = '\0';
    (void)close(ends[0]);
    int wait_status = -1;
    while (pid > 0 && waitpid(pid, &wait_status, 0) < 0 && errno == EINTR) {
    }
    return pid > 0 ? wait_status : -1;
}

/* Asks the first host for its address, which also shows that it can be reached. */
static ds_status ask_address(dsi_head *h)
{
    const char *host = h->hosts.items[0].name;
    dsi_words argv = {0};
    char word[256];
    dsi_ssh_command(h->options, &h->ssh_args, &argv);
    if (strcmp(h->runner->name, "ssh") == 0) {
        dsi_words_add_all(&argv, &h->runner_args);
    }
    dsi_ssh_target(&h->hosts.items[0], &argv);
    dsi_words_add(&argv, "hostname -I");
    DS_TRY(dsi_words_check(h->ctx, &argv));
    const int wait_status = run_and_read(&argv, word, sizeof word);
    word[strcspn(word, " \t\r\n")] = '\0';
    dsi_words_free(&argv);
    if (wait_status != 0) {
        return ds_fail(h->ctx, DS_ERR_IO,
                       "host %s of %s cannot be reached by ssh without a password (its message is "
                       "above); put your key there with ssh-copy-id, or give --launcher openmpi, "
                       "mpich or slurm",
                       host, h->options->hostfile);
    }
    if (h->options->master_addr == NULL && word[0] == '\0') {
        return ds_fail(h->ctx, DS_ERR_IO,
                       "host %s names no address (hostname -I is empty); give --master_addr", host);
    }
    if (h->options->master_addr == NULL) {
        (void)snprintf(h->master_addr, sizeof h->master_addr, "%s", word);
    }
    return DS_OK;
}

ds_status dsi_head_choose_address(dsi_head *h)
{
    const dsi_launch_options *o = h->options;
    /* Slurm has an order of its own, in which the ranks find the first host; slots of different
     * numbers are given to it host by host, in ours. */
    const bool unknown =
        h->runner->allocates && h->hosts.n > 1 && dsi_hosts_unequal(&h->hosts) == NULL;
    (void)snprintf(h->master_addr, sizeof h->master_addr, "%s",
                   o->master_addr != NULL ? o->master_addr
                   : unknown              ? ""
                                          : h->hosts.items[0].name);
    if (o->dry_run || o->no_ssh_check || !h->runner->is_way) {
        return DS_OK;
    }
    return ask_address(h);
}

static bool is_in_path(const char *program)
{
    char *path = NULL;
    const bool found = dsi_program_find(NULL, program, &path) >= 0;
    free(path);
    return found;
}

/* Picks what starts the ranks: of those that are in PATH the first, else the last. */
static bool choose_start(dsi_head *h)
{
    bool found = false;
    for (size_t i = 0; h->runner->starts[i] != NULL && !found; ++i) {
        h->start = h->runner->starts[i];
        found = is_in_path(h->start);
    }
    return found;
}

/* Every MPI calls its launcher mpirun, and their flags differ. */
static ds_status check_make(const dsi_head *h)
{
    dsi_words argv = {0};
    char text[256];
    if (h->start == NULL || strcmp(h->start, "mpirun") != 0) {
        return DS_OK;
    }
    dsi_words_add(&argv, h->start);
    dsi_words_add(&argv, "--version");
    DS_TRY(dsi_words_check(h->ctx, &argv));
    (void)run_and_read(&argv, text, sizeof text);
    dsi_words_free(&argv);
    const bool open_mpi = strstr(text, "Open MPI") != NULL || strstr(text, "OpenRTE") != NULL;
    if (open_mpi == h->runner->is_open_mpi) {
        return DS_OK;
    }
    return ds_fail(h->ctx, DS_ERR_NOT_FOUND,
                   "--launcher %s: mpirun in PATH is %s's; put that of %s first in PATH, or give "
                   "--launcher %s",
                   h->runner->name, open_mpi ? "Open MPI" : "another MPI", h->runner->package,
                   open_mpi ? "openmpi" : "mpich or impi");
}

static ds_status check_runner(dsi_head *h)
{
    const bool can_start = choose_start(h);
    const char *program = h->runner->program != NULL ? h->runner->program : h->start;
    if (h->options->dry_run) {
        return DS_OK;
    }
    if (h->runner->program != NULL ? !is_in_path(program) : !can_start) {
        return ds_fail(h->ctx, DS_ERR_NOT_FOUND,
                       "--launcher %s: expected the program %s in PATH, found none; install %s",
                       h->runner->name, program, h->runner->package);
    }
    return check_make(h);
}

/* Without a hostfile only the number of an allocation's hosts is known. */
static ds_status count_allocated(dsi_head *h)
{
    const dsi_launch_options *o = h->options;
    if (!h->runner->allocates || !h->local) {
        return DS_OK;
    }
    for (int64_t i = 1; i < o->num_nodes; ++i) {
        DS_TRY(dsi_hosts_add(h->ctx, &h->hosts, "node", h->hosts.items[0].n_slots));
    }
    return DS_OK;
}

ds_status dsi_head_prepare_nodes(dsi_head *h)
{
    const dsi_launch_options *o = h->options;
    const char *append = dsi_env_get(&h->env, "PDSH_SSH_ARGS_APPEND");
    DS_TRY(dsi_shell_split(h->ctx, "--launcher_args", o->launcher_args, &h->runner_args));
    if (append != NULL) {
        DS_TRY(dsi_shell_split(h->ctx, "PDSH_SSH_ARGS_APPEND", append, &h->ssh_args));
    }
    DS_TRY(count_allocated(h));
    DS_TRY(
        dsi_exports_collect(h->ctx, &h->env, dsi_env_get(&h->env, "HOME"), h->folder, &h->exports));
    dsi_runner_job job = {.options = o, .hosts = &h->hosts};
    if (h->runner->check != NULL) {
        DS_TRY(h->runner->check(h->ctx, &job));
    }
    DS_TRY(check_runner(h));
    return dsi_head_choose_address(h);
}

/* ---- an attempt ------------------------------------------------------------------------------ */

void dsi_head_job_env(const dsi_head *h, dsi_words *env)
{
    dsi_words_add_all(env, &h->exports);
    dsi_env_set(env, "DS_JOB_SECRET", h->secret);
    if (!h->runner->is_way) {
        if (h->master_addr[0] != '\0') {
            dsi_env_set(env, "MASTER_ADDR", h->master_addr);
        }
        dsi_env_setf(env, "MASTER_PORT", "%u", h->master_port);
        dsi_env_setf(env, "DS_RESTART_COUNT", "%" PRIu32, h->restart);
    }
    if (h->runner->env != NULL) {
        const dsi_runner_job job = {.options = h->options, .hosts = &h->hosts};
        h->runner->env(&job, env);
    }
}

ds_status dsi_head_runner_job(dsi_head *h, dsi_buf *world_info, dsi_runner_job *job_out)
{
    DS_TRY(dsi_hosts_encode(h->ctx, &h->hosts, world_info));
    *job_out = (dsi_runner_job){.options = h->options,
                                .hosts = &h->hosts,
                                .hosts_known = !h->local,
                                .start = h->start,
                                .self = h->self,
                                .folder = h->folder,
                                .world_info = dsi_buf_text(world_info),
                                .master_addr = h->master_addr,
                                .master_port = h->master_port,
                                .log_stamp = h->stamp,
                                .restart = h->restart,
                                .exports = &h->exports,
                                .args = &h->runner_args,
                                .ssh_args = &h->ssh_args};
    return DS_OK;
}

/* One attempt's commands, and what they borrow. */
typedef struct nodes_run {
    dsi_head *h;
    size_t n;
    dsi_task *tasks;
    dsi_words *argv; /* n */
    char (*labels)[sizeof "node " + DSI_MAX_HOST_NAME];
    dsi_words env;    /* of the commands */
    dsi_words shared; /* what ranks must see */
    dsi_buf world_info, control;
    char *program;
    int notice[2];
} nodes_run;

static ds_status fill_env(nodes_run *run)
{
    dsi_head *h = run->h;
    dsi_words_add_all(&run->env, &h->env);
    dsi_head_job_env(h, &run->shared);
    if (h->runner->is_way) {
        dsi_control_line(&run->shared, &run->control);
    } else {
        for (size_t i = 0; i < run->shared.n; ++i) {
            char *equals = strchr(run->shared.items[i], '=');
            *equals = '\0';
            dsi_env_set(&run->env, run->shared.items[i], equals + 1);
            *equals = '=';
        }
    }
    if (h->runner->is_way && !h->runner->each) {
        enum { LONGEST_VARIABLE = 128 << 10 };
        if (run->control.size > LONGEST_VARIABLE - 64) {
            return ds_fail(h->ctx, DS_ERR_LIMIT,
                           "the exported environment is larger than 96 KiB; shorten "
                           ".deepspeed_env, or use --launcher ssh");
        }
        dsi_env_set(&run->env, "DS_LAUNCH_CONTROL", dsi_buf_text(&run->control));
        dsi_env_setf(&run->env, "DS_LAUNCH_NOTICE", "/proc/%ld/fd/%d", (long)getpid(),
                     run->notice[1]);
    }
    if (run->control.failed) {
        return ds_fail(h->ctx, DS_ERR_LIMIT, "the exported environment is larger than 1 MiB");
    }
    return dsi_words_check(h->ctx, &run->env);
}

static ds_status fill_tasks(nodes_run *run)
{
    dsi_head *h = run->h;
    dsi_runner_job job;
    DS_TRY(dsi_head_runner_job(h, &run->world_info, &job));
    job.exports = &run->shared;
    for (size_t i = 0; i < run->n; ++i) {
        h->runner->command(&job, i, &run->argv[i]);
        DS_TRY(dsi_words_check(h->ctx, &run->argv[i]));
        if (run->program == NULL) {
            DS_TRY(dsi_program_find(h->ctx, run->argv[i].items[0], &run->program));
        }
        (void)snprintf(run->labels[i], sizeof run->labels[i], "%s%s",
                       h->runner->each ? "node " : "",
                       h->runner->each ? h->hosts.items[i].name : run->argv[i].items[0]);
        run->tasks[i] =
            (dsi_task){.label = run->labels[i],
                       .prefix = "",
                       .shown = true,
                       .relays = h->runner->relays,
                       .control_line = h->runner->each ? dsi_buf_text(&run->control) : NULL,
                       .command = {.program = run->program,
                                   .argv = &run->argv[i],
                                   .env = &run->env,
                                   .memory_node = -1,
                                   .wants_control = h->runner->each,
                                   .ignores_end = h->runner->relays}};
    }
    return DS_OK;
}

static ds_status run_tasks(nodes_run *run, dsi_outcome *outcome_out)
{
    if (run->tasks == NULL || run->argv == NULL || run->labels == NULL) {
        return ds_fail(run->h->ctx, DS_ERR_NOMEM, "no memory for %zu nodes", run->n);
    }
    if (pipe2(run->notice, O_CLOEXEC | O_NONBLOCK) < 0) {
        return ds_fail(run->h->ctx, DS_ERR_IO, "no pipe: %s", strerror(errno));
    }
    DS_TRY(fill_env(run));
    DS_TRY(fill_tasks(run));
    const dsi_supervise_params params = {
        .tasks = run->tasks,
        .n_tasks = run->n,
        .host = run->h->host,
        /* the nodes need their own grace within it */
        .grace = run->h->options->grace + 5,
        .control = -1,
        .notice = run->notice[0],
        .ways = true,
        .hosts = &run->h->hosts,
        /* the memory of ranks is watched on their nodes */
        .limits = {.seconds = run->h->options->time_limit, .done_file = run->h->options->done_file},
        .terminal = run->h->options->terminal};
    return dsi_supervise(run->h->ctx, &params, outcome_out);
}

ds_status dsi_head_run_nodes(dsi_head *h, dsi_outcome *outcome_out)
{
    nodes_run run = {.h = h,
                     .n = h->runner->each ? h->hosts.n : 1,
                     .world_info = dsi_buf_make(32 << 20),
                     .control = dsi_buf_make(2 << 20),
                     .notice = {-1, -1}};
    run.tasks = calloc(run.n, sizeof *run.tasks);
    run.argv = calloc(run.n, sizeof *run.argv);
    run.labels = calloc(run.n, sizeof *run.labels);
    const ds_status status = run_tasks(&run, outcome_out);
    for (size_t i = 0; run.argv != NULL && i < run.n; ++i) {
        dsi_words_free(&run.argv[i]);
    }
    for (int i = 0; i < 2; ++i) {
        if (run.notice[i] >= 0) {
            (void)close(run.notice[i]);
        }
    }
    dsi_words_free(&run.env);
    dsi_words_free(&run.shared);
    dsi_buf_free(&run.world_info);
    dsi_buf_free(&run.control);
    free(run.program);
    free(run.tasks);
    free(run.argv);
    free(run.labels);
    return status;
}
