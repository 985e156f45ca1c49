/* Who this process is in its job, and the communicator of the job. The variables are tried family
 * by family: the launcher's (those of torch and DeepSpeed), Open MPI's, MPICH's and Intel MPI's,
 * Slurm's. docs/internals/comm.md lists them. */
#include "comm/comm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct family {
    const char *name;
    const char *rank, *size, *local_rank, *local_size, *node, *n_nodes; /* NULL: has none */
} family;

static const family families[] = {
    {"the launcher", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "CROSS_RANK",
     "CROSS_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_NODE_RANK", NULL},
    {"MPI's process manager", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL,
     NULL},
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL, "SLURM_NODEID",
     "SLURM_STEP_NUM_NODES"},
};

static ds_status read_number(ds_ctx *ctx, const char *name, uint32_t absent, uint32_t *number_out)
{
    const char *text = name != NULL ? getenv(name) : NULL;
    char *end = NULL;
    if (text == NULL || text[0] == '\0') {
        *number_out = absent;
        return DS_OK;
    }
    errno = 0;
    const long value = strtol(text, &end, 10);
    if (errno != 0 || *end != '\0' || value < 0 || value > 1 << 20) {
        return ds_fail(ctx, DS_ERR_CONFIG,
                       "the environment's %s is \"%s\", expected a whole number of at least 0",
                       name, text);
    }
    *number_out = (uint32_t)value;
    return DS_OK;
}

static const family *find_family(void)
{
    for (size_t i = 0; i < sizeof families / sizeof families[0]; ++i) {
        if (getenv(families[i].rank) != NULL && getenv(families[i].size) != NULL) {
            return &families[i];
        }
    }
    return NULL;
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
    if (w->local_rank >= w->local_size || w->local_size > w->size || w->node >= w->n_nodes) {
        return ds_fail(ctx, DS_ERR_CONFIG,
                       "%s says: rank %u of %u, %u of %u on node %u of %u; these contradict",
                       f->name, w->rank, w->size, w->local_rank, w->local_size, w->node,
                       w->n_nodes);
    }
    return DS_OK;
}

ds_status dsi_comm_world_read(ds_ctx *ctx, dsi_comm_world *world_out)
{
    const family *f = find_family();
    dsi_comm_world w = {.size = 1, .local_size = 1, .n_nodes = 1};
    if (f != NULL) {
        DS_TRY(read_number(ctx, f->rank, 0, &w.rank));
        DS_TRY(read_number(ctx, f->size, 1, &w.size));
        DS_TRY(read_number(ctx, f->local_rank, UINT32_MAX, &w.local_rank));
        DS_TRY(read_number(ctx, f->local_size, 0, &w.local_size));
        DS_TRY(read_number(ctx, f->n_nodes != NULL ? f->node : NULL, UINT32_MAX, &w.node));
        DS_TRY(read_number(ctx, f->n_nodes, 0, &w.n_nodes));
        DS_TRY(complete(ctx, f, &w));
    }
    *world_out = w;
    return DS_OK;
}

ds_status dsi_comm_open(ds_ctx *ctx, const dsi_comm_world *world, dsi_comm **comm_out)
{
    if (world->size == 1) {
        return dsi_comm_self(ctx, comm_out);
    }
    return ds_fail(ctx, DS_ERR_UNSUPPORTED, "no transport for %u ranks is built", world->size);
}
