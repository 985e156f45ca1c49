/* SPDX-License-Identifier: Apache-2.0 */
/* A group of ranks from open to close, by NCCL. Its communicator does not block: a call that is in
 * progress is asked for until it is queued, or the time is over. See group.h.
 */
#include "accel/cuda/driver/group.h"
#include "accel/cuda/driver/library_load.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct {
    pthread_once_t once;
    dsc_nccl_api nccl;
    bool loaded;
    char why[512];
} library = {.once = PTHREAD_ONCE_INIT};

static void load(void)
{
    static const char *const files[] = {"libnccl.so.2", NULL};
    static const dsc_symbol symbols[] = {
#define X(type, member, symbol, params) {#symbol, offsetof(dsc_nccl_api, member)},
        DSC_NCCL_LIST(X)
#undef X
    };
    static const dsc_library_row row = {
        .what = "NCCL",
        .files = files,
        .package = "the package libnccl2 of NVIDIA's repository, or nvidia-nccl-cu13 of PyPI, has "
                   "libnccl.so.2",
        .old = "NCCL 2.17 or newer",
        .symbols = symbols,
        .n_symbols = sizeof symbols / sizeof symbols[0]};
    library.loaded = dsc_library_load(&row, &library.nccl, library.why, sizeof library.why);
}

/* NULL with a reason when the library is not there. */
static const dsc_nccl_api *nccl_of(const char **why_out)
{
    (void)pthread_once(&library.once, load);
    *why_out = library.why;
    return library.loaded ? &library.nccl : NULL;
}

void dsc_nccl_say(char *text_out, size_t n)
{
    const char *why = NULL;
    const dsc_nccl_api *nccl = nccl_of(&why);
    int version = 0;
    if (nccl == NULL || nccl->version(&version) != DSC_NCCL_SUCCESS) {
        (void)snprintf(text_out, n, "collectives: one rank alone; %s", why);
        return;
    }
    /* 10000·major + 100·minor + patch, since 2.9 */
    (void)snprintf(text_out, n, "collectives: NCCL %d.%d.%d", version / 10000, version / 100 % 100,
                   version % 100);
}

static ds_status need(ds_ctx *ctx, const dsc_nccl_api **nccl_out)
{
    const char *why = NULL;
    *nccl_out = nccl_of(&why);
    return *nccl_out != NULL
               ? DS_OK
               : dsc_fail(ctx, DS_ERR_UNSUPPORTED,
                          "accelerator cuda: several ranks need NCCL, and %s; or use one rank",
                          why);
}

/* Its own last words name the interface, the peer or the device that two ranks have. */
static ds_status fail(const ds_accel_group *g, dsc_nccl_result result, const char *what)
{
    const char *last = g->nccl->last(g->comm);
    const bool has = last != NULL && last[0] != '\0';
    return dsc_fail(g->ctx, result == DSC_NCCL_REMOTE_ERROR ? DS_ERR_PEER : DS_ERR_DEVICE,
                    "accelerator cuda: %s: NCCL says %s (%d)%s%.400s", what, g->nccl->text(result),
                    result, has ? ": " : "", has ? last : "");
}

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

ds_status dsc_group_settle(ds_accel_group *g, dsc_nccl_result result, const char *what)
{
    static const struct timespec pause = {0, 20000};
    const double begin = now();
    while (result == DSC_NCCL_IN_PROGRESS) {
        const dsc_nccl_result asked = g->nccl->async_error(g->comm, &result);
        result = asked != DSC_NCCL_SUCCESS ? asked : result;
        if (result == DSC_NCCL_IN_PROGRESS && g->seconds > 0.0 && now() - begin > g->seconds) {
            return dsc_fail(g->ctx, DS_ERR_PEER,
                            "accelerator cuda: %s: NCCL is not done after %.0f s", what,
                            g->seconds);
        }
        if (result == DSC_NCCL_IN_PROGRESS) {
            (void)nanosleep(&pause, NULL);
        }
    }
    return result == DSC_NCCL_SUCCESS ? DS_OK : fail(g, result, what);
}

/* ---- open and close ------------------------------------------------------------------------ */

static ds_status make_id(ds_ctx *ctx, unsigned char id_out[DS_ACCEL_GROUP_ID])
{
    const dsc_nccl_api *nccl = NULL;
    dsc_nccl_id id;
    _Static_assert(sizeof id == DS_ACCEL_GROUP_ID, "NCCL's id");
    DS_TRY(need(ctx, &nccl));
    const dsc_nccl_result result = nccl->id(&id);
    if (result != DSC_NCCL_SUCCESS) {
        return dsc_fail(ctx, DS_ERR_DEVICE, "accelerator cuda: ncclGetUniqueId: %s (%d)",
                        nccl->text(result), result);
    }
    memcpy(id_out, id.bytes, sizeof id);
    return DS_OK;
}

/* What is under way ends first; a communicator that was destroyed is not asked for anything, even
 * where that is in progress. */
static void close_comm(ds_accel_group *g)
{
    const double soon = 10.0; /* a rank that has failed does not come */
    g->seconds = g->seconds > 0.0 && g->seconds < soon ? g->seconds : soon;
    const ds_status ended = dsc_group_settle(g, g->nccl->finalize(g->comm), "the end of a group");
    (void)(ended == DS_OK ? g->nccl->destroy(g->comm) : g->nccl->abort(g->comm));
    g->comm = NULL;
}

static void close_group(ds_accel_group **group_inout)
{
    ds_accel_group *g = group_inout != NULL ? *group_inout : NULL;
    if (g == NULL) {
        return;
    }
    const dsc_driver *cu = g->device->cu;
    (void)cu->set_current(g->device->context);
    if (g->comm != NULL) {
        close_comm(g);
    }
    for (uint32_t i = 0; i < DSC_GROUP_EVENTS; ++i) {
        (void)(g->events[i] != NULL ? cu->event_destroy(g->events[i]) : DSC_CU_SUCCESS);
    }
    (void)(g->queue != NULL ? cu->stream_destroy(g->queue) : DSC_CU_SUCCESS);
    (void)(g->staging != 0 ? cu->free(g->staging) : DSC_CU_SUCCESS);
    free(g);
    *group_inout = NULL;
}

static ds_status open_parts(ds_accel_group *g, const unsigned char id_bytes[DS_ACCEL_GROUP_ID])
{
    const dsc_driver *cu = g->device->cu;
    dsc_nccl_config config = {.size = sizeof config,
                              .magic = DSC_NCCL_CONFIG_MAGIC,
                              .version = DSC_NCCL_CONFIG_VERSION,
                              .blocking = 0,
                              .cga_cluster_size = DSC_NCCL_UNDEFINED,
                              .min_ctas = DSC_NCCL_UNDEFINED,
                              .max_ctas = DSC_NCCL_UNDEFINED};
    dsc_nccl_id id;
    memcpy(id.bytes, id_bytes, sizeof id);
    DSC_CU(g->ctx, cu, cu->stream_create(&g->queue, DSC_CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    for (uint32_t i = 0; i < DSC_GROUP_EVENTS; ++i) {
        DSC_CU(g->ctx, cu, cu->event_create(&g->events[i], DSC_CU_EVENT_DISABLE_TIMING),
               "cuEventCreate");
    }
    return dsc_group_settle(g, g->nccl->init(&g->comm, (int)g->size, id, (int)g->rank, &config),
                            "a group of ranks");
}

static ds_status open_group(ds_accel_device *device, ds_ctx *ctx,
                            const unsigned char id[DS_ACCEL_GROUP_ID], uint32_t rank, uint32_t size,
                            double seconds, ds_accel_group **group_out)
{
    const dsc_nccl_api *nccl = NULL;
    DS_TRY(need(ctx, &nccl));
    DS_TRY(dsc_enter(device, ctx));
    ds_accel_group *g = calloc(1, sizeof *g);
    if (g == NULL) {
        return dsc_fail(ctx, DS_ERR_NOMEM, "no memory for a group of ranks");
    }
    g->device = device;
    g->ctx = ctx;
    g->nccl = nccl;
    g->rank = rank;
    g->size = size;
    g->seconds = seconds;
    const ds_status status = open_parts(g, id);
    if (status < 0) {
        if (g->comm != NULL) {
            (void)nccl->abort(g->comm);
            g->comm = NULL;
        }
        close_group(&g);
        return status;
    }
    *group_out = g;
    return DS_OK;
}

static ds_status reserve(ds_accel_group *g, size_t bytes)
{
    const dsc_driver *cu = g->device->cu;
    if (bytes <= g->staging_bytes) {
        return DS_OK;
    }
    DS_TRY(dsc_enter(g->device, g->ctx));
    if (g->staging != 0) {
        (void)cu->free(g->staging);
        g->staging = 0;
        g->staging_bytes = 0;
    }
    DSC_CU(g->ctx, cu, cu->alloc(&g->staging, bytes), "the staging of sums over ranks");
    g->staging_bytes = bytes;
    return DS_OK;
}

/* ---- calls --------------------------------------------------------------------------------- */

static ds_status test(ds_accel_group *g, uint64_t ticket, bool *done_out)
{
    const dsc_driver *cu = g->device->cu;
    dsc_nccl_result error = DSC_NCCL_SUCCESS;
    *done_out = false;
    if (g->comm == NULL) {
        return dsc_fail(g->ctx, DS_ERR_STATE, "accelerator cuda: this group of ranks was aborted");
    }
    DS_TRY(dsc_enter(g->device, g->ctx));
    const dsc_cu_result result = cu->event_query(g->events[ticket % DSC_GROUP_EVENTS]);
    if (result != DSC_CU_SUCCESS && result != DSC_CU_NOT_READY) {
        return dsc_fail_cu(g->ctx, cu, result, "cuEventQuery");
    }
    *done_out = result == DSC_CU_SUCCESS;
    const dsc_nccl_result asked = g->nccl->async_error(g->comm, &error);
    error = asked != DSC_NCCL_SUCCESS ? asked : error;
    return *done_out || error == DSC_NCCL_SUCCESS || error == DSC_NCCL_IN_PROGRESS
               ? DS_OK
               : fail(g, error, "a collective");
}

static ds_status start(ds_accel_group *g, const ds_accel_collective *call, uint64_t *ticket_out)
{
    const dsc_driver *cu = g->device->cu;
    const uint64_t ticket = g->n_started + 1;
    bool done = true;
    if (ticket > DSC_GROUP_EVENTS) {
        DS_TRY(test(g, ticket - DSC_GROUP_EVENTS, &done));
    }
    if (!done || g->comm == NULL) {
        return dsc_fail(g->ctx, DS_ERR_STATE,
                        done ? "accelerator cuda: this group of ranks was aborted"
                             : "accelerator cuda: too many collectives under way");
    }
    DS_TRY(dsc_enter(g->device, g->ctx));
    DS_TRY(dsc_group_queue(g, call));
    DSC_CU(g->ctx, cu, cu->record(g->events[ticket % DSC_GROUP_EVENTS], g->queue), "cuEventRecord");
    g->n_started = ticket;
    *ticket_out = ticket;
    return DS_OK;
}

static void abort_group(ds_accel_group *g)
{
    (void)g->device->cu->set_current(g->device->context);
    if (g->comm != NULL) {
        (void)g->nccl->abort(g->comm);
        g->comm = NULL;
    }
}

const ds_accel_groups dsc_groups = {.id = make_id,
                                    .open = open_group,
                                    .reserve = reserve,
                                    .start = start,
                                    .test = test,
                                    .abort = abort_group,
                                    .close = close_group};
