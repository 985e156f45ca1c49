/* SPDX-License-Identifier: Apache-2.0 */
/* The pickles of torch.save and of DeepSpeed's checkpoints as trees of values.
 *
 * A pickle is a program. This machine runs only the opcodes that those writers use, knows only the
 * globals of pickle_globals.c, and calls nothing: a global gives a value of this file, or the file
 * is refused by that global's name. Called by torch_file.c; the fuzzer is fuzz_torch.
 *
 * Invariants of a tree that dsi_pickle_load gave:
 * 1. It has no cycles and no path longer than DSI_PICKLE_DEPTH; a value may be in it several times.
 * 2. Every element of a tensor lies inside of its storage; strides and extents are not negative.
 * 3. All of it lies in the arena, and in the bytes that a storage names.
 */
#ifndef DSI_IO_PICKLE_H
#define DSI_IO_PICKLE_H

#include "base/arena.h"
#include "io/pickle_globals.h"

#include <deepspeed/tensor.h>
#include <stdint.h>

#define DSI_PICKLE_BYTES ((size_t)256 << 20) /* ceiling of one pickle */
enum { DSI_PICKLE_DEPTH = 100 };

typedef enum dsi_pickle_kind {
    DSI_PICKLE_NONE,
    DSI_PICKLE_BOOL,
    DSI_PICKLE_INT,
    DSI_PICKLE_REAL,
    DSI_PICKLE_TEXT,
    DSI_PICKLE_TUPLE,
    DSI_PICKLE_LIST, /* also a set */
    DSI_PICKLE_DICT,
    DSI_PICKLE_GLOBAL,
    DSI_PICKLE_STORAGE,
    DSI_PICKLE_TENSOR,
    DSI_PICKLE_OBJECT /* of a class whose meaning is its arguments and its state */
} dsi_pickle_kind;

typedef struct dsi_pickle dsi_pickle;

/* Elements side by side; several tensors may look at one. */
typedef struct dsi_pickle_storage {
    const dsi_pickle_global *type;
    const uint8_t *data;
    int64_t count;
} dsi_pickle_storage;

typedef struct dsi_pickle_tensor {
    const dsi_pickle_storage *storage;
    int64_t offset; /* elements */
    ds_shape shape;
    int64_t strides[DS_MAX_DIMS]; /* elements */
} dsi_pickle_tensor;

struct dsi_pickle {
    dsi_pickle_kind kind;
    uint8_t height; /* of the tree below; private to pickle_check.c, as is mark */
    uint8_t mark;
    union {
        bool truth;
        int64_t whole;
        double real;
        struct {
            const char *data; /* followed by a zero byte; may hold others */
            size_t n;
        } text;
        struct {
            dsi_pickle **items; /* of a dict: key, value, key, value … */
            size_t n, room;
        } list;
        const dsi_pickle_global *global;
        dsi_pickle_storage storage;
        const dsi_pickle_tensor *tensor;
        struct {
            const dsi_pickle_global *cls;
            dsi_pickle *args;  /* a tuple */
            dsi_pickle *state; /* NULL: none */
        } object;
    };
};

/* Finds the bytes of a storage by its key; false where there are none of it. */
typedef bool (*dsi_pickle_storage_fn)(void *user, const char *key, const uint8_t **data_out,
                                      size_t *bytes_out);

typedef struct dsi_pickle_source {
    const char *path; /* for messages: the file and the entry in it */
    const uint8_t *data;
    size_t n;
    dsi_pickle_storage_fn find_storage;
    void *user;
} dsi_pickle_source;

/* Runs the pickle. Errors: ERR_FORMAT (names the opcode's place), ERR_UNSUPPORTED (an opcode or a
 * global that is not in the lists), ERR_LIMIT, ERR_NOMEM. */
ds_status dsi_pickle_load(ds_ctx *ctx, const dsi_pickle_source *source, dsi_arena *arena,
                          dsi_pickle **value_out);
/* Invariant 1; called by dsi_pickle_load. */
ds_status dsi_pickle_check(ds_ctx *ctx, const char *path, dsi_pickle *value);

/* ---- reading a tree; every function takes NULL for a value that is not there ---- */

bool dsi_pickle_is(const dsi_pickle *value, dsi_pickle_kind kind);
/* The value of a dict's key, the last where it is there twice; NULL. */
const dsi_pickle *dsi_pickle_get(const dsi_pickle *dict, const char *key);
/* Item i of a tuple or list; NULL. */
const dsi_pickle *dsi_pickle_at(const dsi_pickle *list, size_t i);
/* Number of items of a tuple or list, of pairs of a dict; 0 for others. */
size_t dsi_pickle_count(const dsi_pickle *value);
/* A text without zero bytes; NULL for anything else. */
const char *dsi_pickle_text(const dsi_pickle *value);
/* A whole number; false for anything else. */
bool dsi_pickle_whole(const dsi_pickle *value, int64_t *whole_out);
/* A number, also that of a tensor of one real or whole element. */
bool dsi_pickle_number(const dsi_pickle *value, double *number_out);

/* The dtype of a tensor; NONE for one that this library has not. */
ds_dtype dsi_pickle_dtype(const dsi_pickle_tensor *tensor);
/* Elements times element size. */
size_t dsi_pickle_bytes(const dsi_pickle_tensor *tensor);
/* The elements, where they stand in row-major order; NULL where they do not. */
const uint8_t *dsi_pickle_dense(const dsi_pickle_tensor *tensor);
/* Copies the elements in row-major order; data has room for dsi_pickle_bytes. */
void dsi_pickle_copy(const dsi_pickle_tensor *tensor, void *data);

#endif
