/* SPDX-License-Identifier: Apache-2.0 */
/* See int4_blocks.h. */
#include "ckpt/int4_blocks.h"

#include "base/blocks.h"
#include "base/half.h"
#include "ckpt/int4.h"

#include <stdlib.h>
#include <string.h>

/* A parameter that was asked for. */
typedef struct entry {
    struct entry *next;
    char *name;
    ds_dtype type; /* NONE: real numbers */
    bool stored;   /* in one of the forms */
    dsi_int4_matrix m;
} entry;

struct dsi_int4_blocks {
    ds_ctx *ctx;
    const ds_model *model;
    ds_safetensors *st;
    dsi_int4_form form;
    entry *first;
};

ds_status dsi_int4_blocks_open(ds_ctx *ctx, const ds_model *model, const char *folder,
                               dsi_int4_blocks **blocks_out)
{
    dsi_int4_blocks *b = calloc(1, sizeof *b);
    if (b == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for %s", folder);
    }
    b->ctx = ctx;
    b->model = model;
    ds_status status = ds_safetensors_open_folder(ctx, folder, &b->st);
    status = status < 0 ? status : dsi_int4_form_of(ctx, b->st, &b->form);
    if (status >= 0 && b->form.layout == DSI_INT4_NONE) {
        status = ds_fail(ctx, DS_ERR_UNSUPPORTED,
                         "%s: its weights are none of GPTQ, AWQ or compressed-tensors' packed "
                         "ones, which could stay as they are; name a type of blocks, such as q8_0",
                         folder);
    }
    if (status < 0) {
        dsi_int4_blocks_close(&b);
        return status;
    }
    *blocks_out = b;
    return DS_OK;
}

void dsi_int4_blocks_close(dsi_int4_blocks **blocks)
{
    dsi_int4_blocks *b = *blocks;
    if (b == NULL) {
        return;
    }
    for (entry *e = b->first; e != NULL;) {
        entry *next = e->next;
        dsi_int4_close(&e->m);
        free(e->name);
        free(e);
        e = next;
    }
    ds_safetensors_close(&b->st);
    free(b);
    *blocks = NULL;
}

/* ---- which type ------------------------------------------------------------------------------ */

/* The group of a run of 32 inputs; -1: it has several. */
static int64_t group_of(const dsi_int4_matrix *m, int64_t run)
{
    const int64_t first = run * DSI_BLOCK;
    if (m->groups == NULL) {
        return first / (m->n_in / m->n_groups);
    }
    for (int64_t i = 1; i < DSI_BLOCK; ++i) {
        if (m->groups[first + i] != m->groups[first]) {
            return -1;
        }
    }
    return m->groups[first];
}

static bool has_whole_runs(const dsi_int4_matrix *m)
{
    if (m->n_in % DSI_BLOCK != 0 || (m->groups == NULL && m->n_in / m->n_groups % DSI_BLOCK != 0)) {
        return false;
    }
    for (int64_t run = 0; run < m->n_in / DSI_BLOCK; ++run) {
        if (group_of(m, run) < 0) {
            return false;
        }
    }
    return true;
}

static ds_dtype type_of(const dsi_int4_matrix *m)
{
    const bool eights = m->layout == DSI_INT4_PACKED8;
    const int32_t middle = eights ? 128 : 8;
    bool centred = true;
    if (!has_whole_runs(m)) {
        return DS_DTYPE_NONE;
    }
    for (int64_t g = 0; g < m->n_groups; ++g) {
        for (int64_t o = 0; o < m->n_out; ++o) {
            const float s = dsi_int4_scale(m, g, o);
            if (dsi_f16_to_f32(dsi_f32_to_f16(s)) != s) {
                return DS_DTYPE_NONE;
            }
            centred = centred && dsi_int4_zero(m, g, o) == middle;
        }
    }
    if (eights) {
        return centred ? DS_DTYPE_Q8_0 : DS_DTYPE_NONE;
    }
    return centred ? DS_DTYPE_Q4_0 : DS_DTYPE_Q5_0;
}

/* NULL: no memory. */
static entry *add(dsi_int4_blocks *b, const char *name, ds_shape shape)
{
    dsi_int4_parts parts;
    entry *e = calloc(1, sizeof *e);
    if (e == NULL || (e->name = strdup(name)) == NULL) {
        free(e);
        return NULL;
    }
    e->next = b->first;
    b->first = e;
    e->stored = dsi_int4_find(b->model, b->st, &b->form, name, &parts);
    if (e->stored && dsi_int4_open(b->ctx, &b->form, &parts, shape, &e->m) >= 0) {
        e->type = type_of(&e->m); /* what is wrong with others is found as they are unpacked */
    }
    if (e->type == DS_DTYPE_NONE) {
        dsi_int4_close(&e->m);
    }
    return e;
}

static entry *find(const dsi_int4_blocks *b, const char *name)
{
    entry *e = b->first;
    while (e != NULL && strcmp(e->name, name) != 0) {
        e = e->next;
    }
    return e;
}

ds_dtype dsi_int4_blocks_type(dsi_int4_blocks *b, const char *name, ds_shape shape)
{
    const entry *e = find(b, name);
    e = e != NULL ? e : add(b, name, shape);
    return e != NULL ? e->type : DS_DTYPE_NONE;
}

int64_t dsi_int4_blocks_n_real(const dsi_int4_blocks *b)
{
    int64_t n = 0;
    for (const entry *e = b->first; e != NULL; e = e->next) {
        n += e->stored && e->type == DS_DTYPE_NONE ? 1 : 0;
    }
    return n;
}

/* ---- a row ----------------------------------------------------------------------------------- */

/* 32 numbers from 0 to 31 as a block of Q4_0 or Q5_0 behind its scale. */
static void put_nibbles(ds_dtype type, const uint8_t *q, uint8_t *out)
{
    enum { HALF = DSI_BLOCK / 2 };
    if (type == DS_DTYPE_Q5_0) {
        uint32_t fifth = 0;
        for (int i = 0; i < DSI_BLOCK; ++i) {
            fifth |= (uint32_t)(q[i] >> 4) << i;
        }
        memcpy(out, &fifth, sizeof fifth);
        out += sizeof fifth;
    }
    for (int i = 0; i < HALF; ++i) {
        out[i] = (uint8_t)((q[i] & 15u) | (q[i + HALF] & 15u) << 4);
    }
}

void dsi_int4_blocks_row(dsi_int4_blocks *b, const char *name, int64_t r, uint8_t *out)
{
    const entry *e = find(b, name);
    const dsi_int4_matrix *m = &e->m;
    const int32_t offset = dsi_block_offset(e->type);
    for (int64_t run = 0; run < m->n_in / DSI_BLOCK; ++run) {
        const int64_t g = group_of(m, run);
        const uint16_t scale = dsi_f32_to_f16(dsi_int4_scale(m, g, r));
        const int32_t zero = dsi_int4_zero(m, g, r);
        uint8_t q[DSI_BLOCK];
        for (int64_t i = 0; i < DSI_BLOCK; ++i) {
            const int32_t value = dsi_int4_number(m, run * DSI_BLOCK + i, r) - zero;
            q[i] = (uint8_t)(e->type == DS_DTYPE_Q8_0 ? value : value + offset);
        }
        memcpy(out, &scale, sizeof scale);
        if (e->type == DS_DTYPE_Q8_0) {
            memcpy(out + sizeof scale, q, sizeof q);
        } else {
            put_nibbles(e->type, q, out + sizeof scale);
        }
        out += dsi_block_bytes(e->type);
    }
}
