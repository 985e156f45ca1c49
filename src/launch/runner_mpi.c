/* SPDX-License-Identifier: Apache-2.0 */
/* mpirun of several makes, and srun. See runners.h.
 *
 * They start the ranks themselves; a rank learns its number from them (src/comm reads OMPI_…, PMI_…
 * and SLURM_… variables). Exported variables are named on the command line, never with values:
 * mpirun and srun take the values from their own environment, which head.c gives them.
 */
#include "launch/runners.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Numbers of slots are all that mpirun is told: a choice of slots in the middle cannot be kept. */
static ds_status check_slots(ds_ctx *ctx, const dsi_runner_job *job)
{
    for (size_t i = 0; i < job->hosts->n; ++i) {
        const dsi_host *host = &job->hosts->items[i];
        if (host->slots[host->n_slots - 1] != host->n_slots - 1) {
            return ds_fail(
                ctx, DS_ERR_UNSUPPORTED,
                "--launcher %s: expected slots from 0 without gaps, found others on host "
                "%s; choose whole hosts, or use --launcher pdsh or ssh",
                job->options->launcher, host->name);
        }
    }
    return DS_OK;
}

/* A lone ":" among the program's words would begin another program. */
static ds_status check_colon(ds_ctx *ctx, const dsi_runner_job *job)
{
    for (size_t i = 0; i < job->options->command.n; ++i) {
        if (strcmp(job->options->command.items[i], ":") == 0) {
            return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                           "--launcher %s: the program cannot be given an argument ':', which the "
                           "launcher takes for its own; use --launcher pdsh or ssh",
                           job->options->launcher);
        }
    }
    return DS_OK;
}

static ds_status check_plain(ds_ctx *ctx, const dsi_runner_job *job)
{
    const dsi_launch_options *o = job->options;
    const struct {
        bool given;
        const char *flag, *instead;
    } ours[] = {
        {o->bind_cores, "--bind_cores_to_rank", "its own binding through --launcher_args"},
        {o->log_dir != NULL, "--log_dir", "its own output files through --launcher_args"},
        {strcmp(o->prefix, "auto") != 0, "--prefix", "its own labels through --launcher_args"},
        {strcmp(o->show, "all") != 0, "--show", "--launcher pdsh or ssh"},
        {o->venv_script != NULL, "--venv_script", "--launcher pdsh or ssh"},
        {o->ssh_port > 0, "--ssh_port", "the port of the hosts in ~/.ssh/config"},
    };
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; ++i) {
        if (ours[i].given) {
            return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                           "--launcher %s starts the ranks itself, so %s has no hold on them; use "
                           "%s",
                           o->launcher, ours[i].flag, ours[i].instead);
        }
    }
    const dsi_host *host = dsi_hosts_with_user(job->hosts);
    if (host != NULL) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "--launcher %s starts the ranks itself and takes no user of a host, found "
                       "%s@%s; put the user into ~/.ssh/config, or use --launcher pdsh or ssh",
                       o->launcher, host->user, host->name);
    }
    DS_TRY(check_colon(ctx, job));
    return check_slots(ctx, job);
}

static ds_status check_equal(ds_ctx *ctx, const dsi_runner_job *job)
{
    DS_TRY(check_plain(ctx, job));
    const dsi_host *first = &job->hosts->items[0];
    const dsi_host *other = dsi_hosts_unequal(job->hosts);
    if (other == NULL) {
        return DS_OK;
    }
    return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                   "--launcher %s: expected as many slots on every host, found %" PRIu32
                   " on %s and %" PRIu32 " on %s; level them with --num_gpus",
                   job->options->launcher, first->n_slots, first->name, other->n_slots,
                   other->name);
}

static size_t name_length(const char *item)
{
    return strcspn(item, "=");
}

static void add_number(dsi_words *argv, const char *flag, uint32_t number)
{
    dsi_words_add(argv, flag);
    dsi_words_addf(argv, "%" PRIu32, number);
}

/* ---- Open MPI -------------------------------------------------------------------------------- */

static void openmpi_command(const dsi_runner_job *job, size_t node, dsi_words *argv)
{
    (void)node;
    dsi_words_add(argv, job->start);
    add_number(argv, "-n", dsi_hosts_n_ranks(job->hosts));
    dsi_words_add(argv, "--host");
    dsi_runner_add_hosts(job, true, argv);
    dsi_words_add_all(argv, job->args);
    for (size_t i = 0; i < job->exports->n; ++i) {
        dsi_words_add(argv, "-x");
        dsi_words_addf(argv, "%.*s", (int)name_length(job->exports->items[i]),
                       job->exports->items[i]);
    }
    dsi_words_add_all(argv, &job->options->command);
}

/* ---- those with Hydra: MPICH, Intel MPI, MVAPICH --------------------------------------------- */

static void add_genvlist(const dsi_runner_job *job, dsi_words *argv)
{
    dsi_buf names = dsi_buf_make(1 << 20);
    for (size_t i = 0; i < job->exports->n; ++i) {
        dsi_buf_printf(&names, "%s%.*s", i > 0 ? "," : "", (int)name_length(job->exports->items[i]),
                       job->exports->items[i]);
    }
    dsi_words_add(argv, "-genvlist");
    dsi_words_take(argv, &names);
}

static void hydra_head(const dsi_runner_job *job, bool total, dsi_words *argv)
{
    dsi_words_add(argv, job->start);
    if (total) {
        add_number(argv, "-n", dsi_hosts_n_ranks(job->hosts));
    }
    add_number(argv, "-ppn", job->hosts->items[0].n_slots);
    dsi_words_add(argv, "-hosts");
    dsi_runner_add_hosts(job, false, argv);
    dsi_words_add_all(argv, job->args);
    add_genvlist(job, argv);
}

static void mpich_command(const dsi_runner_job *job, size_t node, dsi_words *argv)
{
    (void)node;
    hydra_head(job, true, argv);
    dsi_words_add_all(argv, &job->options->command);
}

/* A block for each rank, as DeepSpeed has it: so each finds RANK and LOCAL_RANK. */
static void impi_command(const dsi_runner_job *job, size_t node, dsi_words *argv)
{
    (void)node;
    const uint32_t n = dsi_hosts_n_ranks(job->hosts);
    const uint32_t each = job->hosts->items[0].n_slots;
    hydra_head(job, false, argv);
    dsi_words_add(argv, "-genv");
    dsi_words_add(argv, "I_MPI_PIN");
    dsi_words_add(argv, "0");
    for (uint32_t rank = 0; rank < n; ++rank) {
        if (rank > 0) {
            dsi_words_add(argv, ":");
        }
        add_number(argv, "-n", 1);
        dsi_words_add(argv, "-env");
        add_number(argv, "RANK", rank);
        dsi_words_add(argv, "-env");
        add_number(argv, "LOCAL_RANK", rank % each);
        dsi_words_add_all(argv, &job->options->command);
    }
}

static void mvapich_env(const dsi_runner_job *job, dsi_words *env)
{
    (void)job;
    dsi_env_set(env, "MV2_SMP_USE_CMA", "0");
    dsi_env_set(env, "MV2_DEBUG_SHOW_BACKTRACE", "1");
    dsi_env_set(env, "MV2_SUPPORT_DL", "1");
    dsi_env_set(env, "MV2_ENABLE_AFFINITY", "0");
    dsi_env_set(env, "MV2_INTER_ALLGATHER_TUNING", "5");
}

/* ---- Slurm ----------------------------------------------------------------------------------- */

/* Each host as often as it has slots, which is how srun takes different numbers. */
static void add_repeated_hosts(const dsi_runner_job *job, dsi_words *argv)
{
    dsi_buf list = dsi_buf_make(8 << 20);
    for (size_t i = 0; i < job->hosts->n; ++i) {
        for (uint32_t k = 0; k < job->hosts->items[i].n_slots; ++k) {
            dsi_buf_printf(&list, "%s%s", i + k > 0 ? "," : "", job->hosts->items[i].name);
        }
    }
    dsi_words_take(argv, &list);
}

static void slurm_command(const dsi_runner_job *job, size_t node, dsi_words *argv)
{
    (void)node;
    const bool equal = dsi_hosts_unequal(job->hosts) == NULL;
    dsi_words_add(argv, "srun");
    add_number(argv, "-n", dsi_hosts_n_ranks(job->hosts));
    add_number(argv, "--nodes", (uint32_t)job->hosts->n);
    if (equal) {
        add_number(argv, "--ntasks-per-node", job->hosts->items[0].n_slots);
    }
    if (!equal) { /* of a hostfile: an allocation's hosts that are not known are equal */
        dsi_words_add(argv, "--distribution=arbitrary");
        dsi_words_add(argv, "--nodelist");
        add_repeated_hosts(job, argv);
    } else if (job->hosts_known) {
        dsi_words_add(argv, "--nodelist");
        dsi_runner_add_hosts(job, false, argv);
    }
    dsi_words_add(argv, "--kill-on-bad-exit=1"); /* the first failure ends the job */
    dsi_words_add_all(argv, job->args);
    dsi_words_add(argv, "--export=ALL");
    dsi_words_add_all(argv, &job->options->command);
}

/* ---- the table ------------------------------------------------------------------------------- */

const dsi_runner dsi_mpi_runners[DSI_N_MPI_RUNNERS] = {
    {
        .version = DSI_RUNNER_VERSION,
        .name = "openmpi",
        .starts = {"mpirun.openmpi", "mpirun"},
        .is_open_mpi = true,
        .package = "openmpi-bin",
        .check = check_plain,
        .command = openmpi_command,
    },
    {
        .version = DSI_RUNNER_VERSION,
        .name = "mpich",
        .starts = {"mpirun.mpich", "mpirun"},
        .package = "mpich",
        .check = check_equal,
        .command = mpich_command,
    },
    {
        .version = DSI_RUNNER_VERSION,
        .name = "impi",
        .starts = {"mpirun"},
        .package = "Intel MPI",
        .check = check_equal,
        .command = impi_command,
    },
    {
        .version = DSI_RUNNER_VERSION,
        .name = "mvapich",
        .program = "mpiname",
        .starts = {"mpirun"},
        .package = "MVAPICH",
        .check = check_equal,
        .command = mpich_command,
        .env = mvapich_env,
    },
    {
        .version = DSI_RUNNER_VERSION,
        .name = "slurm",
        .program = "srun",
        .package = "slurm-client",
        .allocates = true,
        .check = check_plain,
        .command = slurm_command,
    },
};
