/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF files: the container. See gguf.h.
 *
 * Order: header, entries, tensors, padding, data. Everything is little-endian and unaligned. An
 * array's texts get a table of their places; numbers stay where they are.
 */
#include "io/gguf.h"

#include "base/arena.h"
#include "io/file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ENTRY_BYTES = 13, TENSOR_BYTES = 24, MOST_DIMS = 4, NAME_BYTES = 1024, WORD_BYTES = 80 };

struct dsi_gguf {
    ds_ctx *ctx;
    const char *path;
    dsi_map map;
    dsi_arena *arena;
    dsi_gguf_entry *entries;
    size_t n_entries;
    dsi_gguf_tensor *tensors;
    size_t n_tensors;
};

/* Where parsing stands. */
typedef struct cursor {
    dsi_gguf *g;
    const uint8_t *data;
    size_t at, n;
} cursor;

static const uint8_t kind_bytes[DSI_GGUF_KINDS] = {
    [DSI_GGUF_U8] = 1,  [DSI_GGUF_I8] = 1,  [DSI_GGUF_U16] = 2, [DSI_GGUF_I16] = 2,
    [DSI_GGUF_U32] = 4, [DSI_GGUF_I32] = 4, [DSI_GGUF_F32] = 4, [DSI_GGUF_BOOL] = 1,
    [DSI_GGUF_U64] = 8, [DSI_GGUF_I64] = 8, [DSI_GGUF_F64] = 8,
};

static ds_status bad(const cursor *c, const char *what)
{
    return ds_fail(c->g->ctx, DS_ERR_FORMAT, "%s: byte %zu: %s", c->g->path, c->at, what);
}

static ds_status no_memory(const dsi_gguf *g)
{
    return ds_fail(g->ctx, DS_ERR_NOMEM, "no memory to open %s", g->path);
}

/* n more bytes, which *data_out then is. */
static ds_status take(cursor *c, uint64_t n, const uint8_t **data_out)
{
    if (n > c->n - c->at) {
        return bad(c, "the file ends here: it is cut off, or no GGUF file");
    }
    *data_out = c->data + c->at;
    c->at += (size_t)n;
    return DS_OK;
}

static uint64_t number_at(const uint8_t *p, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; ++i) {
        value |= (uint64_t)p[i] << (8 * i);
    }
    return value;
}

static ds_status take_number(cursor *c, size_t bytes, uint64_t *value_out)
{
    const uint8_t *p = NULL;
    DS_TRY(take(c, bytes, &p));
    *value_out = number_at(p, bytes);
    return DS_OK;
}

static ds_status take_text(cursor *c, dsi_gguf_text *text_out)
{
    uint64_t n = 0;
    const uint8_t *p = NULL;
    DS_TRY(take_number(c, 8, &n));
    DS_TRY(take(c, n, &p));
    *text_out = (dsi_gguf_text){(const char *)p, (size_t)n};
    return DS_OK;
}

/* Of keys and names: as in a message, and without a NUL. */
static ds_status take_name(cursor *c, dsi_gguf_text *text_out)
{
    DS_TRY(take_text(c, text_out));
    if (text_out->n == 0 || text_out->n > NAME_BYTES ||
        memchr(text_out->data, '\0', text_out->n) != NULL) {
        return bad(c, "a key or a name is empty, longer than 1024 bytes, or has a NUL");
    }
    return DS_OK;
}

/* ---- entries --------------------------------------------------------------------------------- */

static ds_status take_kind(cursor *c, dsi_gguf_kind *kind_out)
{
    uint64_t kind = 0;
    DS_TRY(take_number(c, 4, &kind));
    if (kind >= DSI_GGUF_KINDS) {
        return bad(c, "a value of an unknown kind");
    }
    *kind_out = (dsi_gguf_kind)kind;
    return DS_OK;
}

static ds_status take_texts(cursor *c, dsi_gguf_entry *e)
{
    if (e->n > (c->n - c->at) / 8) { /* each has a length */
        return bad(c, "an array of more texts than the file has room for");
    }
    e->texts = dsi_arena_alloc(c->g->arena, (e->n + 1) * sizeof *e->texts);
    if (e->texts == NULL) {
        return no_memory(c->g);
    }
    for (size_t i = 0; i < e->n; ++i) {
        DS_TRY(take_text(c, &e->texts[i]));
    }
    return DS_OK;
}

static ds_status take_entry(cursor *c, dsi_gguf_entry *e)
{
    DS_TRY(take_name(c, &e->key));
    DS_TRY(take_kind(c, &e->kind));
    e->of = e->kind;
    e->n = 1;
    if (e->kind == DSI_GGUF_ARRAY) {
        uint64_t n = 0;
        DS_TRY(take_kind(c, &e->of));
        DS_TRY(take_number(c, 8, &n));
        if (e->of == DSI_GGUF_ARRAY) {
            return bad(c, "an array of arrays, which nobody reads");
        }
        if (n > c->n - c->at) {
            return bad(c, "an array of more elements than the file has room for");
        }
        e->n = (size_t)n;
    }
    return e->of == DSI_GGUF_TEXT ? take_texts(c, e)
                                  : take(c, (uint64_t)e->n * kind_bytes[e->of], &e->data);
}

static int compare_texts(dsi_gguf_text a, dsi_gguf_text b)
{
    const int order = memcmp(a.data, b.data, a.n < b.n ? a.n : b.n);
    return order != 0 ? order : (a.n > b.n) - (a.n < b.n);
}

static int compare_entries(const void *a, const void *b)
{
    return compare_texts(((const dsi_gguf_entry *)a)->key, ((const dsi_gguf_entry *)b)->key);
}

/* What a key or name looks like in a message. */
typedef struct word {
    char text[WORD_BYTES];
} word;

static word word_of(dsi_gguf_text text)
{
    word w;
    const int n = (int)(text.n < WORD_BYTES - 1 ? text.n : WORD_BYTES - 1);
    (void)snprintf(w.text, sizeof w.text, "%.*s", n, text.data);
    return w;
}

static ds_status take_entries(cursor *c, uint64_t n)
{
    dsi_gguf *g = c->g;
    if (n > (c->n - c->at) / ENTRY_BYTES) {
        return bad(c, "more entries are said than the file has room for");
    }
    g->entries = dsi_arena_array(g->arena, (size_t)n + 1, sizeof *g->entries);
    if (g->entries == NULL) {
        return no_memory(g);
    }
    for (; g->n_entries < n; ++g->n_entries) {
        DS_TRY(take_entry(c, &g->entries[g->n_entries]));
    }
    qsort(g->entries, g->n_entries, sizeof *g->entries, compare_entries);
    for (size_t i = 1; i < g->n_entries; ++i) {
        if (compare_entries(&g->entries[i - 1], &g->entries[i]) == 0) {
            return ds_fail(g->ctx, DS_ERR_FORMAT, "%s: the key %s is there twice", g->path,
                           word_of(g->entries[i].key).text);
        }
    }
    return DS_OK;
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Bytes of a tensor: rows of whole blocks. */
static ds_status size_tensor(const cursor *c, dsi_gguf_tensor *t)
{
    const dsi_gguf *g = c->g;
    const int64_t row = t->shape.dims[t->shape.n_dims - 1];
    uint64_t elements = 1;
    for (uint32_t d = 0; d < t->shape.n_dims; ++d) {
        if (t->shape.dims[d] <= 0 ||
            __builtin_mul_overflow(elements, (uint64_t)t->shape.dims[d], &elements)) {
            return ds_fail(g->ctx, DS_ERR_FORMAT, "%s: %s has a dim of 0 or too many elements",
                           g->path, word_of(t->name).text);
        }
    }
    uint64_t bytes = 0;
    if (row % t->type->elements != 0 ||
        __builtin_mul_overflow(elements / t->type->elements, t->type->bytes, &bytes) ||
        bytes > c->n) {
        return ds_fail(g->ctx, DS_ERR_FORMAT,
                       "%s: %s of type %s: its rows of %lld elements are no whole blocks of %u, or "
                       "the file is too small for it",
                       g->path, word_of(t->name).text, t->type->name, (long long)row,
                       t->type->elements);
    }
    t->bytes = (size_t)bytes;
    return DS_OK;
}

/* offset_out: from the begin of the data. */
static ds_status take_tensor(cursor *c, dsi_gguf_tensor *t, uint64_t *offset_out)
{
    uint64_t n_dims = 0;
    uint64_t type = 0;
    DS_TRY(take_name(c, &t->name));
    DS_TRY(take_number(c, 4, &n_dims));
    if (n_dims < 1 || n_dims > MOST_DIMS) {
        return bad(c, "a tensor with no dims, or more than four");
    }
    t->shape.n_dims = (uint32_t)n_dims;
    for (uint64_t d = n_dims; d-- > 0;) {
        uint64_t dim = 0;
        DS_TRY(take_number(c, 8, &dim));
        t->shape.dims[d] = dim <= INT64_MAX ? (int64_t)dim : 0;
    }
    DS_TRY(take_number(c, 4, &type));
    DS_TRY(take_number(c, 8, offset_out));
    t->type = dsi_gguf_type_find((uint32_t)type);
    if (t->type == NULL) {
        return ds_fail(c->g->ctx, DS_ERR_UNSUPPORTED,
                       "%s: %s has the type %llu, which does not exist or was withdrawn",
                       c->g->path, word_of(t->name).text, (unsigned long long)type);
    }
    return size_tensor(c, t);
}

static int compare_tensors(const void *a, const void *b)
{
    return compare_texts(((const dsi_gguf_tensor *)a)->name, ((const dsi_gguf_tensor *)b)->name);
}

static ds_status alignment_of(const dsi_gguf *g, uint64_t *alignment_out)
{
    const dsi_gguf_entry *e = dsi_gguf_find(g, "general.alignment");
    *alignment_out = 32;
    if (e == NULL) {
        return DS_OK;
    }
    const double value = e->kind == DSI_GGUF_U32 ? dsi_gguf_number(e, 0) : 0.0;
    const uint64_t alignment = (uint64_t)value;
    if (alignment == 0 || (alignment & (alignment - 1)) != 0) {
        return ds_fail(g->ctx, DS_ERR_FORMAT, "%s: general.alignment is no power of two", g->path);
    }
    *alignment_out = alignment;
    return DS_OK;
}

/* Gives each tensor its bytes. offsets: in the order of the tensors. */
static ds_status place_tensors(const cursor *c, const uint64_t *offsets)
{
    dsi_gguf *g = c->g;
    uint64_t alignment = 0;
    DS_TRY(alignment_of(g, &alignment));
    const uint64_t begin = (c->at + alignment - 1) / alignment * alignment;
    const uint64_t room = begin < c->n ? c->n - begin : 0;
    for (size_t i = 0; i < g->n_tensors; ++i) {
        dsi_gguf_tensor *t = &g->tensors[i];
        if (offsets[i] % alignment != 0 || offsets[i] > room || t->bytes > room - offsets[i]) {
            return ds_fail(g->ctx, DS_ERR_FORMAT,
                           "%s: %s lies at %llu, which is not aligned to %llu or beyond the file's "
                           "end: is it cut off?",
                           g->path, word_of(t->name).text, (unsigned long long)offsets[i],
                           (unsigned long long)alignment);
        }
        t->data = c->data + begin + offsets[i];
    }
    return DS_OK;
}

static ds_status take_tensors(cursor *c, uint64_t n)
{
    dsi_gguf *g = c->g;
    if (n > (c->n - c->at) / TENSOR_BYTES) {
        return bad(c, "more tensors are said than the file has room for");
    }
    g->tensors = dsi_arena_array(g->arena, (size_t)n + 1, sizeof *g->tensors);
    uint64_t *offsets = dsi_arena_array(g->arena, (size_t)n + 1, sizeof *offsets);
    if (g->tensors == NULL || offsets == NULL) {
        return no_memory(g);
    }
    for (; g->n_tensors < n; ++g->n_tensors) {
        DS_TRY(take_tensor(c, &g->tensors[g->n_tensors], &offsets[g->n_tensors]));
    }
    DS_TRY(place_tensors(c, offsets));
    qsort(g->tensors, g->n_tensors, sizeof *g->tensors, compare_tensors);
    for (size_t i = 1; i < g->n_tensors; ++i) {
        if (compare_tensors(&g->tensors[i - 1], &g->tensors[i]) == 0) {
            return ds_fail(g->ctx, DS_ERR_FORMAT, "%s: the tensor %s is there twice", g->path,
                           word_of(g->tensors[i].name).text);
        }
    }
    return DS_OK;
}

/* ---- files ----------------------------------------------------------------------------------- */

static ds_status take_header(cursor *c, uint64_t *n_tensors_out, uint64_t *n_entries_out)
{
    const uint8_t *magic = NULL;
    uint64_t version = 0;
    if (c->n < 4 || memcmp(c->data, "GGUF", 4) != 0) {
        return ds_fail(c->g->ctx, DS_ERR_FORMAT, "%s is no GGUF file: it does not begin with GGUF",
                       c->g->path);
    }
    DS_TRY(take(c, 4, &magic));
    DS_TRY(take_number(c, 4, &version));
    if ((version & 0xffff) == 0 && version != 0) {
        return ds_fail(c->g->ctx, DS_ERR_UNSUPPORTED,
                       "%s is big-endian; only little-endian is read", c->g->path);
    }
    if (version != 2 && version != 3) {
        return ds_fail(c->g->ctx, DS_ERR_UNSUPPORTED, "%s: GGUF version %llu; 2 and 3 are read",
                       c->g->path, (unsigned long long)version);
    }
    DS_TRY(take_number(c, 8, n_tensors_out));
    return take_number(c, 8, n_entries_out);
}

static ds_status parse(dsi_gguf *g, const uint8_t *data, size_t n)
{
    cursor c = {.g = g, .data = data, .n = n};
    uint64_t n_tensors = 0;
    uint64_t n_entries = 0;
    DS_TRY(take_header(&c, &n_tensors, &n_entries));
    DS_TRY(take_entries(&c, n_entries));
    return take_tensors(&c, n_tensors);
}

static ds_status create(ds_ctx *ctx, const char *path, dsi_gguf **gguf_out)
{
    const size_t ceiling = (size_t)1 << 34;
    dsi_gguf *g = calloc(1, sizeof *g);
    if (g == NULL || dsi_arena_create(ceiling, &g->arena) < 0) {
        free(g);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory to open %s", path);
    }
    g->ctx = ctx;
    g->path = dsi_arena_strdup(g->arena, path);
    if (g->path == NULL) {
        dsi_gguf_close(&g);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory to open %s", path);
    }
    *gguf_out = g;
    return DS_OK;
}

ds_status dsi_gguf_open(ds_ctx *ctx, const char *path, dsi_gguf **gguf_out)
{
    dsi_gguf *g = NULL;
    DS_TRY(create(ctx, path, &g));
    ds_status status = dsi_map_open(ctx, path, 0, &g->map);
    status = status < 0 ? status : parse(g, g->map.data, g->map.size);
    if (status < 0) {
        dsi_gguf_close(&g);
        return status;
    }
    *gguf_out = g;
    return DS_OK;
}

void dsi_gguf_close(dsi_gguf **gguf)
{
    dsi_gguf *g = gguf != NULL ? *gguf : NULL;
    if (g == NULL) {
        return;
    }
    dsi_map_close(&g->map);
    dsi_arena_destroy(&g->arena);
    free(g);
    *gguf = NULL;
}

const char *dsi_gguf_path(const dsi_gguf *g)
{
    return g->path;
}

/* ---- looking up ------------------------------------------------------------------------------ */

size_t dsi_gguf_n_entries(const dsi_gguf *g)
{
    return g->n_entries;
}

const dsi_gguf_entry *dsi_gguf_entry_at(const dsi_gguf *g, size_t i)
{
    return i < g->n_entries ? &g->entries[i] : NULL;
}

const dsi_gguf_entry *dsi_gguf_find(const dsi_gguf *g, const char *key)
{
    const dsi_gguf_entry like = {.key = {key, strlen(key)}};
    return bsearch(&like, g->entries, g->n_entries, sizeof like, compare_entries);
}

double dsi_gguf_number(const dsi_gguf_entry *e, size_t i)
{
    if (e->of == DSI_GGUF_TEXT) {
        return NAN;
    }
    const size_t bytes = kind_bytes[e->of];
    const uint8_t *p = e->data + i * bytes;
    const uint64_t bits = number_at(p, bytes);
    float single;
    double value;
    switch (e->of) {
    case DSI_GGUF_I8:
        return (double)(int8_t)bits;
    case DSI_GGUF_I16:
        return (double)(int16_t)bits;
    case DSI_GGUF_I32:
        return (double)(int32_t)bits;
    case DSI_GGUF_I64:
        return (double)(int64_t)bits;
    case DSI_GGUF_F32:
        memcpy(&single, p, sizeof single);
        return single;
    case DSI_GGUF_F64:
        memcpy(&value, p, sizeof value);
        return value;
    case DSI_GGUF_BOOL:
        return bits != 0 ? 1.0 : 0.0;
    default:
        return (double)bits;
    }
}

bool dsi_gguf_is_whole(const dsi_gguf_entry *e)
{
    return e->of != DSI_GGUF_TEXT && e->of != DSI_GGUF_F32 && e->of != DSI_GGUF_F64;
}

bool dsi_gguf_text_is(dsi_gguf_text text, const char *word_text)
{
    return text.n == strlen(word_text) && memcmp(text.data, word_text, text.n) == 0;
}

size_t dsi_gguf_n_tensors(const dsi_gguf *g)
{
    return g->n_tensors;
}

const dsi_gguf_tensor *dsi_gguf_tensor_at(const dsi_gguf *g, size_t i)
{
    return i < g->n_tensors ? &g->tensors[i] : NULL;
}

const dsi_gguf_tensor *dsi_gguf_tensor_find(const dsi_gguf *g, const char *name)
{
    const dsi_gguf_tensor like = {.name = {name, strlen(name)}};
    return bsearch(&like, g->tensors, g->n_tensors, sizeof like, compare_tensors);
}

ds_status dsi_gguf_read_rows(const dsi_gguf *g, const dsi_gguf_tensor *t, int64_t first, int64_t n,
                             float *out)
{
    if (t->type->read == NULL) {
        return ds_fail(g->ctx, DS_ERR_UNSUPPORTED, "%s: %s has the type %s, which is not read yet",
                       g->path, word_of(t->name).text, t->type->name);
    }
    const size_t blocks = (size_t)t->shape.dims[t->shape.n_dims - 1] / t->type->elements;
    t->type->read(t->data + (size_t)first * blocks * t->type->bytes, (size_t)n * blocks, out);
    return DS_OK;
}
