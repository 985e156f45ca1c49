/* SPDX-License-Identifier: Apache-2.0 */
/* Who this process is in its job, and the communicator of the job. The variables are tried family
 * by family: the launcher's (those of torch and DeepSpeed), Open MPI's, MPICH's and Intel MPI's,
 * Slurm's. docs/internals/comm.md lists them. */
#include "base/number.h"
#include "comm/comm.h"
#include "comm/job_name.h"
#include "comm/net.h"
#include "comm/shm.h"
#include "comm/slurm_place.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_TIMEOUT 300.0 /* seconds */

typedef struct family {
    const char *name;
    const char *rank, *size, *local_rank, *local_size, *node, *n_nodes; /* NULL: has none */
} family;

/* PALS, HPE's mpiexec, gives PMIx's rank and its own local numbers; the size is PMI's or, as from
 * DeepSpeed's launcher for MPICH, WORLD_SIZE. */
enum { FAMILY_PALS = 3, FAMILY_PMI = 5, FAMILY_SLURM = 6, N_FAMILIES = 7 };

static const family families[N_FAMILIES] = {
    {"the launcher", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "CROSS_RANK",
     "CROSS_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", NULL, NULL},
    {"MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE", NULL, NULL},
    {"PALS", "PMIX_RANK", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE", "PALS_NODEID", NULL},
    {"PALS", "PMIX_RANK", "WORLD_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE", "PALS_NODEID",
     NULL},
    {"MPI's process manager", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL,
     NULL},
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL, "SLURM_NODEID",
     "SLURM_STEP_NUM_NODES"},
};

static ds_status read_number(ds_ctx *ctx, const char *name, uint32_t absent, uint32_t *number_out)
{
    int64_t value = absent;
    if (name != NULL) {
        DS_TRY(dsi_number_env(ctx, name, 0, 1 << 20, absent, &value));
    }
    *number_out = (uint32_t)value;
    return DS_OK;
}

static bool has(const char *name)
{
    const char *text = name != NULL ? getenv(name) : NULL;
    return text != NULL && text[0] != '\0';
}

static bool is_pals(const family *f)
{
    return f >= &families[FAMILY_PALS] && f < &families[FAMILY_PMI];
}

/* PMIX_RANK alone may be of any that speaks PMIx. */
static bool is_set(const family *f)
{
    return has(f->rank) && has(f->size) && (!is_pals(f) || has(f->local_rank));
}

/* srun --mpi=pmi2 sets PMI's numbers, but not who shares a host; its own say that. They are another
 * process's where mpirun started the ranks inside of a Slurm job. */
static bool is_slurms(const family *pmi, const family *slurm)
{
    return !has(pmi->local_size) && is_set(slurm) &&
           strcmp(getenv(pmi->rank), getenv(slurm->rank)) == 0 &&
           strcmp(getenv(pmi->size), getenv(slurm->size)) == 0;
}

static const family *find_family(void)
{
    for (size_t i = 0; i < N_FAMILIES; ++i) {
        if (is_set(&families[i]) &&
            (i != FAMILY_PMI || !is_slurms(&families[i], &families[FAMILY_SLURM]))) {
            return &families[i];
        }
    }
    return NULL;
}

/* Half of a family's variables is a job whose other ranks would run as one rank each. Slurm's are
 * left out: a batch script has some of them without being a step. */
static ds_status refuse_half(ds_ctx *ctx)
{
    for (size_t i = 0; i < FAMILY_SLURM; ++i) {
        const family *f = &families[i];
        const char *names[] = {is_pals(f) ? NULL : f->rank,
                               is_pals(f) ? NULL : f->size,
                               f->local_rank,
                               f->local_size,
                               i == 0 ? "LOCAL_SIZE" : NULL,
                               f->node,
                               f->n_nodes};
        for (size_t k = 0; k < sizeof names / sizeof names[0]; ++k) {
            if (has(names[k])) {
                return ds_fail(ctx, DS_ERR_CONFIG,
                               "the environment's %s is set, %s is not: expected both %s and %s "
                               "(of %s), or none; start the job by a launcher, or unset it",
                               names[k], has(f->rank) ? f->size : f->rank, f->rank, f->size,
                               f->name);
            }
        }
    }
    return DS_OK;
}

/* RANK or WORLD_SIZE alone, in a job that another family describes, must say the same. */
static ds_status check_launchers(ds_ctx *ctx, const dsi_comm_world *w)
{
    const family *f = &families[0];
    uint32_t rank = 0;
    uint32_t size = 0;
    DS_TRY(read_number(ctx, f->rank, w->rank, &rank));
    DS_TRY(read_number(ctx, f->size, w->size, &size));
    if (rank != w->rank || size != w->size) {
        return ds_fail(ctx, DS_ERR_CONFIG,
                       "the environment's %s is %u, the job's is %u; unset it, or give both %s and "
                       "%s",
                       rank != w->rank ? f->rank : f->size, rank != w->rank ? rank : size,
                       rank != w->rank ? w->rank : w->size, f->rank, f->size);
    }
    return DS_OK;
}

/* Numbers that a family lacks follow from the others; those that contradict are refused. */
static ds_status complete(ds_ctx *ctx, const family *f, dsi_comm_world *w)
{
    if (w->size == 0 || w->rank >= w->size) {
        return ds_fail(ctx, DS_ERR_CONFIG, "%s is %u with %s %u, expected less", f->rank, w->rank,
                       f->size, w->size);
    }
    if (w->n_nodes == 0) {
        w->n_nodes = w->local_size > 0 ? (w->size + w->local_size - 1) / w->local_size : 1;
    }
    if (w->local_size == 0) {
        w->local_size = w->n_nodes > 1 ? (w->size + w->n_nodes - 1) / w->n_nodes : w->size;
    }
    if (w->local_rank == UINT32_MAX) {
        w->local_rank = w->rank % w->local_size;
    }
    if (w->node == UINT32_MAX) {
        w->node = w->n_nodes > 1 ? w->rank / w->local_size : 0;
    }
    const uint32_t most_here = w->n_nodes <= w->size ? w->size - (w->n_nodes - 1) : 0;
    if (w->local_rank >= w->local_size || w->local_size > most_here || w->node >= w->n_nodes ||
        (w->n_nodes == 1 && w->local_size != w->size)) {
        return ds_fail(ctx, DS_ERR_CONFIG,
                       "%s says: rank %u of %u, %u of %u on node %u of %u; these contradict",
                       f->name, w->rank, w->size, w->local_rank, w->local_size, w->node,
                       w->n_nodes);
    }
    return DS_OK;
}

/* DeepSpeed's name of LOCAL_WORLD_SIZE, alone or beside it. */
static ds_status read_local_size(ds_ctx *ctx, const family *f, dsi_comm_world *w)
{
    uint32_t size = 0;
    DS_TRY(read_number(ctx, "LOCAL_SIZE", w->local_size, &size));
    if (w->local_size != 0 && size != w->local_size) {
        return ds_fail(ctx, DS_ERR_CONFIG,
                       "the environment's LOCAL_SIZE is %u, %s is %u; these contradict", size,
                       f->local_size, w->local_size);
    }
    w->local_size = size;
    return DS_OK;
}

/* DEEPSPEED_TIMEOUT counts minutes. */
static ds_status read_timeout(ds_ctx *ctx, double *seconds_out)
{
    const char *text = getenv("DEEPSPEED_TIMEOUT");
    *seconds_out = 0.0;
    if (text == NULL || text[0] == '\0') {
        return DS_OK;
    }
    double minutes = 0.0;
    if (!dsi_number_real(text, &minutes) || minutes <= 0.0 || minutes > 1e6) {
        return ds_fail(ctx, DS_ERR_CONFIG,
                       "the environment's DEEPSPEED_TIMEOUT is \"%s\", expected minutes above 0",
                       text);
    }
    *seconds_out = minutes * 60.0;
    return DS_OK;
}

ds_status dsi_comm_world_read(ds_ctx *ctx, dsi_comm_world *world_out)
{
    const family *f = find_family();
    dsi_comm_world w = {.size = 1, .local_size = 1, .n_nodes = 1};
    DS_TRY(read_timeout(ctx, &w.timeout));
    if (f != NULL) {
        DS_TRY(read_number(ctx, f->rank, 0, &w.rank));
        DS_TRY(read_number(ctx, f->size, 1, &w.size));
        DS_TRY(read_number(ctx, f->local_rank, UINT32_MAX, &w.local_rank));
        DS_TRY(read_number(ctx, f->local_size, 0, &w.local_size));
        DS_TRY(f == &families[0] || is_pals(f) ? read_local_size(ctx, f, &w) : DS_OK);
        const bool has_node = f->n_nodes != NULL || is_pals(f);
        DS_TRY(read_number(ctx, has_node ? f->node : NULL, UINT32_MAX, &w.node));
        DS_TRY(read_number(ctx, f->n_nodes, 0, &w.n_nodes));
        if (f == &families[FAMILY_SLURM] && w.node != UINT32_MAX) {
            w.local_size = dsi_slurm_tasks_of(getenv("SLURM_STEP_TASKS_PER_NODE"), w.node);
        }
        DS_TRY(complete(ctx, f, &w));
        DS_TRY(check_launchers(ctx, &w));
    } else {
        DS_TRY(refuse_half(ctx));
    }
    *world_out = w;
    return DS_OK;
}

static bool is_one_host(const dsi_comm_world *world)
{
    return world->n_nodes <= 1 && world->local_size == world->size;
}

ds_status dsi_comm_stand_in(ds_ctx *ctx, const dsi_comm_world *world, const char *text)
{
    char name[DSI_JOB_NAME_BYTES];
    if (!is_one_host(world)) {
        return dsi_net_stand_in(ctx, world, text);
    }
    dsi_job_name(name);
    const dsi_shm_params params = {.rank = world->rank, .size = world->size, .job = name};
    return dsi_shm_stand_in(ctx, &params, text);
}

ds_status dsi_comm_open(ds_ctx *ctx, const dsi_comm_world *world, dsi_comm **comm_out)
{
    const bool one_host = is_one_host(world);
    const char *transport = world->transport;
    if (world->size == 1 && transport == NULL) {
        DS_TRY(dsi_comm_self(ctx, comm_out));
        (*comm_out)->timeout = world->timeout; /* nobody to wait for but the disk */
        return DS_OK;
    }
    if (transport != NULL && strcmp(transport, "shm") == 0 && !one_host) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "transport shm reaches the ranks of one host; these are %u on %u hosts",
                       world->size, world->n_nodes);
    }
    if (one_host && (transport == NULL || strcmp(transport, "shm") == 0)) {
        char name[DSI_JOB_NAME_BYTES];
        dsi_job_name(name);
        char card[DSI_JOB_CARD_BYTES];
        dsi_job_card(card);
        char at[DSI_JOB_PLACE_BYTES];
        dsi_job_place(at);
        const dsi_shm_params params = {.rank = world->rank,
                                       .size = world->size,
                                       .job = name,
                                       .card = card,
                                       .place = at,
                                       .timeout =
                                           world->timeout > 0.0 ? world->timeout : DEFAULT_TIMEOUT};
        return dsi_comm_shm_open(ctx, &params, comm_out);
    }
    return dsi_comm_open_net(ctx, world, comm_out);
}
