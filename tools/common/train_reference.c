/* SPDX-License-Identifier: Apache-2.0 */
/* The reference's log-probabilities in the data cache, for resumes and later runs. Called by
 * train_preference.c.
 *
 * An entry is a file reference-KEY: a hash of the numbers, then the numbers, two of each draw. KEY
 * is a hash of what they follow from: the data's tokens and flags, the weights, the model's
 * constants, the evaluation plan (kernels, shapes, ranks that share a layer) and the build. Rank 0
 * reads and writes; the others get the numbers from it. A file that is damaged is made anew.
 */
#include "base/build_id.h"
#include "common/train.h"
#include "data/dataset.h"
#include "io/file.h"
#include "train/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { KEY_BYTES = 64, BUILD_BYTES = 128, PIECE = 64 /* the most that a sum takes */ };

static void add_text(XXH3_state_t *hash, const char *text)
{
    (void)XXH3_128bits_update(hash, text, strlen(text) + 1);
}

/* The start: a folder's tensors, or the seed. */
static ds_status add_weights(const train_run *run, XXH3_state_t *hash)
{
    ds_safetensors *st = NULL;
    if (run->options->model == NULL) {
        (void)XXH3_128bits_update(hash, &run->options->seed, sizeof run->options->seed);
        return DS_OK;
    }
    DS_TRY(ds_safetensors_open_folder(run->ctx, run->options->model, &st));
    for (size_t i = 0; i < ds_safetensors_count(st); ++i) {
        const ds_safetensor *tensor = ds_safetensors_at(st, i);
        add_text(hash, tensor->name);
        (void)XXH3_128bits_update(hash, tensor->data, tensor->bytes);
    }
    ds_safetensors_close(&st);
    return DS_OK;
}

/* What the rows are evaluated by. */
static ds_status add_model(const train_run *run, XXH3_state_t *hash)
{
    char *text = NULL;
    char build[BUILD_BYTES];
    dsi_build_id(build, sizeof build);
    add_text(hash, build);
    DS_TRY(ds_model_print(run->model, &text));
    add_text(hash, text);
    free(text);
    DS_TRY(dsi_plan_print(run->engine->eval_plan, &text));
    add_text(hash, text);
    free(text);
    return DS_OK;
}

static ds_status make_key(const train_run *run, const ds_dataset *dataset, char key[KEY_BYTES])
{
    XXH3_state_t *hash = XXH3_createState();
    if (hash == NULL) {
        return ds_fail(run->ctx, DS_ERR_NOMEM, "no memory to hash the reference");
    }
    const uint64_t facts[3] = {dsi_dataset_content(dataset), ds_dataset_n_draws(dataset),
                               dataset->info.rows};
    (void)XXH3_128bits_reset(hash);
    (void)XXH3_128bits_update(hash, facts, sizeof facts);
    ds_status status = add_model(run, hash);
    status = status < 0 ? status : add_weights(run, hash);
    const XXH128_hash_t digest = XXH3_128bits_digest(hash);
    (void)XXH3_freeState(hash);
    (void)snprintf(key, KEY_BYTES, "reference-%016llx%016llx", (unsigned long long)digest.high64,
                   (unsigned long long)digest.low64);
    return status;
}

/* Whether the file is there and whole. */
static bool read_entry(const train_run *run, const char *path, float *table, size_t bytes)
{
    dsi_map map;
    uint64_t hash = 0;
    if (dsi_map_open(run->ctx, path, DSI_MAP_NO_LINK, &map) < 0) {
        return false;
    }
    bool good = map.size == sizeof hash + bytes;
    if (good) {
        memcpy(&hash, map.data, sizeof hash);
        memcpy(table, map.data + sizeof hash, bytes);
        good = hash == XXH3_64bits(table, bytes);
    }
    if (!good) {
        ds_log(run->ctx, DS_LOG_WARN, "%s is damaged; it is made anew", path);
    }
    dsi_map_close(&map);
    return good;
}

static ds_status write_entry(const train_run *run, const char *path, const float *table,
                             size_t bytes)
{
    const uint64_t hash = XXH3_64bits(table, bytes);
    unsigned char *all = malloc(sizeof hash + bytes);
    if (all == NULL) {
        return ds_fail(run->ctx, DS_ERR_NOMEM, "no memory to write the reference");
    }
    memcpy(all, &hash, sizeof hash);
    memcpy(all + sizeof hash, table, bytes);
    const ds_status status = dsi_file_replace(run->ctx, path, all, sizeof hash + bytes);
    free(all);
    return status;
}

/* Rank 0's numbers to all: the others have 0. */
static ds_status share(const train_run *run, float *table, uint64_t n)
{
    double piece[PIECE];
    for (uint64_t at = 0; at < n && ds_comm_size(run->comm) > 1; at += PIECE) {
        const size_t count = n - at < PIECE ? (size_t)(n - at) : PIECE;
        for (size_t i = 0; i < count; ++i) {
            piece[i] = (double)table[at + i];
        }
        DS_TRY(ds_comm_sum(run->comm, piece, count));
        for (size_t i = 0; i < count; ++i) {
            table[at + i] = (float)piece[i];
        }
    }
    return DS_OK;
}

static ds_status find(const train_run *run, ds_dataset *dataset, const char *path, float *table,
                      bool *found_out)
{
    const uint64_t n = 2 * ds_dataset_n_draws(dataset);
    double found = ds_comm_rank(run->comm) == 0 && read_entry(run, path, table, n * sizeof *table);
    DS_TRY(ds_comm_sum(run->comm, &found, 1));
    *found_out = found > 0.0;
    if (*found_out) {
        DS_TRY(share(run, table, n));
        return ds_dataset_set_reference(dataset, table, n);
    }
    return DS_OK;
}

/* The path of the data set's entry, malloc's; rank 0's decides, the others need none. */
static ds_status entry_path(const train_run *run, const ds_dataset *dataset, char **path_out)
{
    char key[KEY_BYTES] = "";
    if (ds_comm_rank(run->comm) == 0) {
        DS_TRY(dsi_folder_make(run->ctx, run->cache));
        DS_TRY(make_key(run, dataset, key));
    }
    *path_out = dsi_path_join(run->cache, key);
    return *path_out != NULL ? DS_OK
                             : ds_fail(run->ctx, DS_ERR_NOMEM, "no memory for the reference");
}

ds_status train_reference(train_run *run, ds_dataset *dataset, bool *cached_out)
{
    const bool mapped = dataset->tokens->maps[0].data != NULL; /* of large data */
    const uint64_t n = 2 * ds_dataset_n_draws(dataset);
    char *path = NULL;
    *cached_out = false;
    if (run->cache == NULL || (run->options->data_cache == NULL && !mapped)) {
        return ds_engine_reference(run->engine, dataset);
    }
    float *table = calloc((size_t)n + 1, sizeof *table);
    ds_status status = table != NULL ? DS_OK
                                     : ds_fail(run->ctx, DS_ERR_NOMEM,
                                               "no memory for the reference's %llu numbers",
                                               (unsigned long long)n);
    status = status < 0 ? status : entry_path(run, dataset, &path);
    status = ds_comm_agree(run->comm, run->ctx, status);
    status = status < 0 ? status : find(run, dataset, path, table, cached_out);
    if (status >= 0 && !*cached_out) {
        status = ds_engine_reference(run->engine, dataset);
        if (status >= 0 && ds_comm_rank(run->comm) == 0) {
            status = write_entry(run, path, dataset->reference, n * sizeof *table);
        }
        status = ds_comm_agree(run->comm, run->ctx, status);
    }
    free(path);
    free(table);
    return status;
}
