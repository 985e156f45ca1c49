/* SPDX-License-Identifier: Apache-2.0 */
/* The settings that ds_nvme_tune tries. See tune_space.h. */
#include "common/tune_space.h"

#include "base/buf.h"
#include "common/size_text.h"
#include "io/json_load.h"
#include <inttypes.h>
#include <string.h>

enum { MAX_FILE_BYTES = 1 << 20 };

typedef struct key {
    const char *name;
    uint64_t least, most; /* both 0: a switch */
    uint64_t alone;       /* the section's default */
    uint64_t values[4];   /* of the default space */
    size_t n;
} key;

enum { BLOCK_SIZE, QUEUE_DEPTH, IO_PARALLEL, SINGLE_SUBMIT, SEQUENTIAL };

static const key keys[TUNE_KEYS] = {
    [BLOCK_SIZE] = {"block_size", 4096, 1 << 30, 1 << 20, {1 << 20, 8 << 20}, 2},
    [QUEUE_DEPTH] = {"queue_depth", 1, 4096, 8, {32, 128}, 2},
    [IO_PARALLEL] = {"io_parallel", 1, 64, 1, {1, 2, 4, 8}, 4},
    [SINGLE_SUBMIT] = {"single_submit", 0, 0, 0, {0, 1}, 2},
    [SEQUENTIAL] = {"sequential_requests", 0, 0, 0, {0, 1}, 2},
};

static ds_status wrong(ds_ctx *ctx, const char *path, const key *k)
{
    if (k->most == 0) {
        return ds_fail(ctx, DS_ERR_CONFIG, "%s: %s: expected a list of true and false", path,
                       k->name);
    }
    return ds_fail(ctx, DS_ERR_CONFIG,
                   "%s: %s: expected a list of 1 to %d numbers from %" PRIu64 " to %" PRIu64 "%s",
                   path, k->name, TUNE_VALUES, k->least, k->most,
                   k == &keys[BLOCK_SIZE] ? ", multiples of 4096" : "");
}

static ds_status read_value(ds_ctx *ctx, const char *path, const key *k, const json_t *json,
                            uint64_t *value_out)
{
    uint64_t value = 0;
    if (k->most == 0) {
        if (!json_is_boolean(json)) {
            return wrong(ctx, path, k);
        }
        *value_out = json_is_true(json);
        return DS_OK;
    }
    if (json_is_string(json)) { /* DeepSpeed's files have "1M" and "32" */
        DS_TRY(size_parse_binary(ctx, k->name, json_string_value(json), &value));
    } else if (json_is_integer(json) && json_integer_value(json) > 0) {
        value = (uint64_t)json_integer_value(json);
    }
    if (value < k->least || value > k->most || (k == &keys[BLOCK_SIZE] && value % 4096 != 0)) {
        return wrong(ctx, path, k);
    }
    *value_out = value;
    return DS_OK;
}

static ds_status read_key(ds_ctx *ctx, const char *path, size_t i, const json_t *list,
                          tune_space *space)
{
    if (!json_is_array(list) || json_array_size(list) < 1 || json_array_size(list) > TUNE_VALUES) {
        return wrong(ctx, path, &keys[i]);
    }
    space->n[i] = json_array_size(list);
    for (size_t k = 0; k < space->n[i]; ++k) {
        DS_TRY(read_value(ctx, path, &keys[i], json_array_get(list, k), &space->values[i][k]));
    }
    return DS_OK;
}

static ds_status unknown(ds_ctx *ctx, const char *path, const char *name)
{
    return ds_fail(ctx, DS_ERR_CONFIG,
                   "%s: %s: unknown key; expected block_size, queue_depth, io_parallel, "
                   "single_submit or sequential_requests",
                   path, name);
}

static ds_status read_object(ds_ctx *ctx, const char *path, json_t *root, tune_space *space)
{
    const char *name = NULL;
    json_t *list = NULL;
    if (!json_is_object(root)) {
        return ds_fail(ctx, DS_ERR_CONFIG, "%s: expected an object of lists", path);
    }
    json_object_foreach(root, name, list)
    {
        size_t i = 0;
        while (i < TUNE_KEYS && strcmp(keys[i].name, name) != 0) {
            ++i;
        }
        DS_TRY(i < TUNE_KEYS ? read_key(ctx, path, i, list, space) : unknown(ctx, path, name));
    }
    return DS_OK;
}

ds_status tune_space_read(ds_ctx *ctx, const char *path, tune_space *space_out)
{
    tune_space space = {0};
    for (size_t i = 0; i < TUNE_KEYS; ++i) {
        space.n[i] = path == NULL ? keys[i].n : 1;
        memcpy(space.values[i], path == NULL ? keys[i].values : &keys[i].alone,
               space.n[i] * sizeof keys[i].values[0]);
    }
    if (path != NULL) {
        dsi_buf text = dsi_buf_make(MAX_FILE_BYTES);
        json_t *root = NULL;
        ds_status status = dsi_buf_read_file(ctx, path, &text);
        if (status >= 0) {
            status =
                dsi_json_load(ctx, path, dsi_buf_text(&text), text.size, 0, DS_ERR_CONFIG, &root);
        }
        if (status >= 0) {
            status = read_object(ctx, path, root, &space);
        }
        json_decref(root);
        dsi_buf_free(&text);
        DS_TRY(status);
    }
    *space_out = space;
    return DS_OK;
}

size_t tune_space_size(const tune_space *space)
{
    size_t n = 1;
    for (size_t i = 0; i < TUNE_KEYS; ++i) {
        n *= space->n[i]; /* at most TUNE_VALUES to the power of TUNE_KEYS */
    }
    return n;
}

ds_aio_params tune_space_at(const tune_space *space, size_t index)
{
    uint64_t chosen[TUNE_KEYS];
    for (size_t i = 0; i < TUNE_KEYS; ++i) {
        chosen[i] = space->values[i][index % space->n[i]];
        index /= space->n[i];
    }
    return (ds_aio_params){.block_size = chosen[BLOCK_SIZE],
                           .queue_depth = (uint32_t)chosen[QUEUE_DEPTH],
                           .intra_op_parallelism = (uint32_t)chosen[IO_PARALLEL],
                           .single_submit = chosen[SINGLE_SUBMIT] != 0,
                           .overlap_events = chosen[SEQUENTIAL] == 0};
}
