/* SPDX-License-Identifier: Apache-2.0 */
/* What a checkpoint knows of a frozen model that training stood on, and whose weights it does not
 * hold: an adapter's base or a teacher. It has its configuration and a digest of the weights. See
 * engine.h.
 *
 * The digest is a sum of hashes of (parameter, element, bits), so that it is the same whatever
 * ranks hold of each parameter; ranks add theirs. It tells models apart, not forgeries.
 */
#include "base/buf.h"
#include "io/json_load.h"
#include "model/adapter.h"
#include "nn/nn.h"
#include "train/engine_packed.h"

#include <deepspeed/op.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { PIECE = 1 << 20, BLOCK = 1 << 14, STATE_BYTES = 128, TEACHER_BYTES = 256 };

typedef struct hash_job {
    const unsigned char *data;
    size_t width; /* bytes of an element: 2 or 4 */
    size_t count;
    uint32_t site, first; /* of the parameter; the number of data's first element */
    uint64_t sums[PIECE / BLOCK];
} hash_job;

/* The finalizer of MurmurHash3 (A. Appleby), of both numbers. */
static uint32_t mix(uint32_t bits, uint32_t at)
{
    uint32_t h = bits * 0xcc9e2d51u ^ at;
    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    return h ^ h >> 16;
}

static void hash_block(void *arg, uint32_t task, uint32_t thread)
{
    hash_job *job = arg;
    const size_t begin = (size_t)task * BLOCK;
    const size_t end = begin + BLOCK < job->count ? begin + BLOCK : job->count;
    uint64_t sum = 0;
    (void)thread;
    for (size_t i = begin; i < end; ++i) {
        uint32_t bits = 0;
        memcpy(&bits, job->data + i * job->width, job->width);
        sum += mix(bits, (job->first + (uint32_t)i) * 0x9e3779b9u + job->site);
    }
    job->sums[task] = sum;
}

/* Elements of a run that lie in host memory, or are read into `room` piece by piece. */
static ds_status hash_run(ds_engine *engine, ds_cell c, const dsi_run *run, hash_job *job,
                          unsigned char *room, uint64_t *sum)
{
    const unsigned char *view = dsi_exec_host_view(engine->exec, c);
    for (int64_t at = 0; at < run->count; at += PIECE) {
        const size_t begin = (size_t)(run->local + at) * job->width;
        job->count = (size_t)(run->count - at < PIECE ? run->count - at : PIECE);
        job->first = (uint32_t)(run->begin + at);
        job->data = view != NULL ? view + begin : room;
        if (view == NULL) {
            DS_TRY(dsi_exec_read(engine->exec, c, begin, room, job->count * job->width));
        }
        const uint32_t n = (uint32_t)((job->count + BLOCK - 1) / BLOCK);
        ds_parallel(engine->ctx, hash_block, job, n);
        for (uint32_t i = 0; i < n; ++i) {
            *sum += job->sums[i];
        }
    }
    return DS_OK;
}

/* A packed matrix that ranks along tp share: as one rank would hold it, counted by the first rank
 * alone. Collective. */
static ds_status hash_shared(ds_engine *engine, ds_cell c, hash_job *job, uint64_t *sum)
{
    const ds_cell_info *cell = ds_cells_get(engine->cells, c);
    const size_t bytes = ds_packed_bytes(&cell->packed);
    unsigned char *packed = malloc(bytes + 1);
    if (packed == NULL) {
        dsi_comm_abort(engine->comm, "out of memory for a digest");
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for a digest");
    }
    const ds_status status = dsi_engine_packed(engine, c, packed);
    for (size_t at = 0; at < bytes && status >= 0 && ds_comm_rank(engine->comm) == 0; at += PIECE) {
        job->count = bytes - at < PIECE ? bytes - at : PIECE;
        job->first = (uint32_t)at;
        job->data = packed + at;
        const uint32_t n = (uint32_t)((job->count + BLOCK - 1) / BLOCK);
        ds_parallel(engine->ctx, hash_block, job, n);
        for (uint32_t i = 0; i < n; ++i) {
            *sum += job->sums[i];
        }
    }
    free(packed);
    return status;
}

/* Of what this rank is the first to hold. */
static ds_status hash_own(ds_engine *engine, hash_job *job, unsigned char *room, uint64_t *sum)
{
    for (ds_cell c = 0; c < ds_cells_count(engine->cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(engine->cells, c);
        const bool shared = cell->packed.format != DS_PACKING_NONE && cell->meta.shape.n_dims == 2;
        if (!dsi_engine_is_base(engine, cell) || (!shared && !dsi_engine_is_first(engine, c))) {
            continue;
        }
        const dsi_part own = dsi_engine_part(engine, c);
        job->width = ds_dtype_bytes(cell->meta.dtype);
        job->site = (uint32_t)XXH3_64bits(cell->name, strlen(cell->name));
        DS_TRY(shared ? hash_shared(engine, c, job, sum) : DS_OK);
        for (dsi_run run = {0}; !shared && dsi_part_next_run(&own, cell->meta.shape, &run);) {
            DS_TRY(hash_run(engine, c, &run, job, room, sum));
        }
    }
    return DS_OK;
}

/* The sum over ranks. Collective. */
static ds_status add_ranks(const ds_engine *engine, uint64_t own, uint64_t *sum_out)
{
    const uint32_t n = ds_comm_size(engine->comm);
    int64_t *all = calloc((size_t)n + 1, sizeof *all);
    if (all == NULL) {
        dsi_comm_abort(engine->comm, "out of memory for a digest");
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for a digest");
    }
    const int64_t word = (int64_t)own;
    const dsi_comm_part part = {.in = &word, .out = all, .count = n};
    const dsi_comm_call call = {.kind = DS_COMM_ALL_GATHER,
                                .dtype = DS_DTYPE_I64,
                                .factor = 1.0f,
                                .parts = &part,
                                .n_parts = 1,
                                .what = "digest of the frozen model"};
    const ds_status status = dsi_comm_run(engine->comm, &call);
    *sum_out = 0;
    for (uint32_t r = 0; r < n; ++r) {
        *sum_out += (uint64_t)all[r];
    }
    free(all);
    return status;
}

/* Collective. */
static ds_status digest_of(ds_engine *engine, uint64_t *digest_out)
{
    hash_job *job = calloc(1, sizeof *job);
    unsigned char *room = malloc((size_t)PIECE * sizeof(float));
    uint64_t sum = 0;
    ds_status status = job != NULL && room != NULL
                           ? hash_own(engine, job, room, &sum)
                           : ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for a digest");
    free(job);
    free(room);
    status = ds_comm_agree(engine->comm, engine->ctx, status);
    if (status >= 0 && engine->comm != NULL) {
        return add_ranks(engine, sum, digest_out);
    }
    *digest_out = sum;
    return status;
}

bool dsi_engine_is_base(const ds_engine *engine, const ds_cell_info *cell)
{
    return dsi_nn_is_teacher(cell) ||
           (engine->spec.train.adapter != NULL && cell->kind == DS_CELL_PARAM &&
            !dsi_adapter_trains(engine->spec.train.adapter, cell));
}

/* What adapters beside the first are, in their order; of those that are trained their names too. */
static ds_status beside_digest(ds_adapter *const *beside, uint32_t n, uint64_t sum,
                               uint64_t *digest_out)
{
    for (uint32_t i = 0; i < n; ++i) {
        const char *name = beside[i]->name;
        char *line = NULL;
        DS_TRY(ds_adapter_print(beside[i], &line));
        sum = XXH3_64bits_withSeed(line, strlen(line), sum);
        sum = name != NULL ? XXH3_64bits_withSeed(name, strlen(name), sum) : sum;
        free(line);
    }
    *digest_out = sum;
    return DS_OK;
}

/* The state adapter_base. */
static ds_status base_text(const ds_engine *engine, uint64_t digest, char text[STATE_BYTES])
{
    const ds_adapter *a = engine->spec.train.adapter;
    const ds_packing packing = dsi_adapter_packing(a);
    uint64_t frozen = 0;
    uint64_t others = 0;
    int n = snprintf(text, STATE_BYTES, "{\"digest\": \"%016" PRIx64 "\"", digest);
    if (packing != DS_PACKING_NONE) {
        n += snprintf(text + n, STATE_BYTES - (size_t)n, ", \"packing\": \"%s\"",
                      ds_packing_name(packing));
    }
    if (a->n_frozen > 0) {
        DS_TRY(beside_digest(a->frozen, a->n_frozen, 0, &frozen));
        n +=
            snprintf(text + n, STATE_BYTES - (size_t)n, ", \"frozen\": \"%016" PRIx64 "\"", frozen);
    }
    if (a->n_others > 0) {
        DS_TRY(
            beside_digest(a->others, a->n_others, XXH3_64bits(a->name, strlen(a->name)), &others));
        n += snprintf(text + n, STATE_BYTES - (size_t)n, ", \"trained\": \"%u %016" PRIx64 "\"",
                      a->n_others + 1, others);
    }
    (void)snprintf(text + n, STATE_BYTES - (size_t)n, "}");
    return DS_OK;
}

ds_status dsi_engine_add_adapter(ds_engine *engine, ds_checkpoint_writer *writer)
{
    char text[STATE_BYTES];
    char *config = NULL;
    uint64_t digest = 0;
    if (engine->spec.train.adapter == NULL) {
        return DS_OK;
    }
    DS_TRY(digest_of(engine, &digest));
    DS_TRY(base_text(engine, digest, text));
    DS_TRY(ds_checkpoint_writer_state(writer, "adapter_base", text));
    DS_TRY(dsi_adapter_config_text(engine->spec.train.adapter, dsi_engine_is_transposed(engine),
                                   &config));
    const ds_status status = ds_checkpoint_writer_state(writer, "adapter", config);
    free(config);
    return status;
}

/* The state distillation; "": there is no teacher. Collective. */
static ds_status distillation_text(ds_engine *engine, char text[TEACHER_BYTES])
{
    const ds_distillation *d = &engine->spec.train.distillation;
    uint64_t digest = 0;
    text[0] = '\0';
    if (d->teacher == NULL) {
        return DS_OK;
    }
    DS_TRY(digest_of(engine, &digest));
    (void)snprintf(text, TEACHER_BYTES,
                   "{\"digest\": \"%016" PRIx64 "\", \"weight\": %.17g, \"temperature\": %.17g, "
                   "\"mix\": %.17g}",
                   digest, d->weight, d->temperature, d->mix);
    return DS_OK;
}

ds_status dsi_engine_add_teacher(ds_engine *engine, ds_checkpoint_writer *writer)
{
    char text[TEACHER_BYTES];
    DS_TRY(distillation_text(engine, text));
    return text[0] != '\0' ? ds_checkpoint_writer_state(writer, "distillation", text) : DS_OK;
}

/* ---- resume ---------------------------------------------------------------------------------- */

static ds_status compare_adapters(const ds_engine *engine, const char *path, const char *text)
{
    ds_adapter *saved = NULL;
    char *was = NULL;
    char *is = NULL;
    ds_status status = dsi_adapter_parse(engine->ctx, path, text, &saved);
    status = status < 0 ? status : ds_adapter_print(saved, &was);
    status = status < 0 ? status : ds_adapter_print(engine->spec.train.adapter, &is);
    if (status >= 0 && strcmp(was, is) != 0) {
        status = ds_fail(engine->ctx, DS_ERR_ARG,
                         "%s was saved with the adapter %s; this run has %s; resume with the same",
                         path, was, is);
    }
    free(was);
    free(is);
    ds_adapter_destroy(&saved);
    return status;
}

/* Collective. */
static ds_status compare_bases(ds_engine *engine, const char *path, const char *text)
{
    char own[STATE_BYTES];
    uint64_t digest = 0;
    DS_TRY(digest_of(engine, &digest));
    DS_TRY(base_text(engine, digest, own));
    return text != NULL && strcmp(own, text) == 0
               ? DS_OK
               : ds_fail(engine->ctx, DS_ERR_ARG,
                         "%s holds an adapter of another model than this: the frozen weights "
                         "differ (%s, here %s); resume with the same --model, in as many bits, "
                         "and the same --frozen_adapters and --adapters",
                         path, text != NULL ? text : "missing", own);
}

ds_status dsi_engine_check_adapter(ds_engine *engine, const ds_checkpoint *ckpt)
{
    const char *path = ds_checkpoint_get_info(ckpt)->path;
    const char *saved = ds_checkpoint_state(ckpt, "adapter");
    const bool own = engine->spec.train.adapter != NULL;
    if ((saved != NULL) != own) {
        return ds_fail(engine->ctx, DS_ERR_ARG,
                       own ? "%s was saved by a run that trained the model itself, this run trains "
                             "an adapter (--lora, --adapter): start anew from its weights "
                             "(ds_checkpoint export)"
                           : "%s holds an adapter alone, this run trains the model itself; resume "
                             "with the same --lora or --adapter",
                       path);
    }
    if (!own) {
        return DS_OK;
    }
    DS_TRY(compare_adapters(engine, path, saved));
    return compare_bases(engine, path, ds_checkpoint_state(ckpt, "adapter_base"));
}

ds_status dsi_engine_check_teacher(ds_engine *engine, const ds_checkpoint *ckpt)
{
    const char *saved = ds_checkpoint_state(ckpt, "distillation");
    char own[TEACHER_BYTES];
    DS_TRY(distillation_text(engine, own));
    if (strcmp(saved != NULL ? saved : "", own) == 0) {
        return DS_OK;
    }
    return ds_fail(engine->ctx, DS_ERR_CONFIG,
                   "%s was trained with the teacher %s, this run has %s; resume with the same "
                   "teacher and numbers, or begin with the weights alone (ds_checkpoint export)",
                   ds_checkpoint_get_info(ckpt)->path, saved != NULL ? saved : "none",
                   own[0] != '\0' ? own : "none");
}
