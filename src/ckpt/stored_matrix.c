/* SPDX-License-Identifier: Apache-2.0 */
/* See stored_matrix.h. */
#include "ckpt/stored_matrix.h"

#include <stdio.h>
#include <string.h>

ds_status dsi_stored_forms_of(ds_ctx *ctx, const ds_safetensors *st, dsi_stored_forms *forms_out)
{
    DS_TRY(dsi_byte_form_of(ctx, st, &forms_out->bytes));
    DS_TRY(dsi_bnb_form_of(ctx, st, &forms_out->bnb));
    return dsi_int4_form_of(ctx, st, &forms_out->int4);
}

/* "X.END" of "X.ANY"; false: there is no dot, or no room. */
static bool name_beside(const char *name, const char *end, char out[DSI_STORED_NAME_BYTES])
{
    const char *dot = strrchr(name, '.');
    const int n =
        dot != NULL ? snprintf(out, DSI_STORED_NAME_BYTES, "%.*s.%s", (int)(dot - name), name, end)
                    : -1;
    return n >= 0 && n < DSI_STORED_NAME_BYTES;
}

static const ds_safetensor *find_beside(const ds_safetensors *st, const ds_safetensor *t,
                                        const char *end)
{
    char name[DSI_STORED_NAME_BYTES];
    return name_beside(t->name, end, name) ? ds_safetensors_find(st, name) : NULL;
}

/* Scales or zeros of a matrix in bytes. */
static bool is_of_bytes(const ds_safetensors *st, const dsi_byte_form *form, const ds_safetensor *t)
{
    const char *dot = strrchr(t->name, '.');
    if (!form->there || dot == NULL ||
        (strcmp(dot + 1, form->scale) != 0 && strcmp(dot + 1, "weight_zero_point") != 0)) {
        return false;
    }
    const ds_safetensor *weight = find_beside(st, t, "weight");
    return weight != NULL && dsi_byte_is_stored(form, weight);
}

static ds_status open_bnb(const ds_safetensors *st, const dsi_stored_forms *forms,
                          const dsi_stored *s, dsi_bnb_matrix **out)
{
    const dsi_bnb_parts parts = dsi_bnb_find(st, s->from);
    return dsi_bnb_open(s->ctx, forms->bnb, &parts, out);
}

/* Which codes in four bits do not have themselves. */
static ds_status read_bnb_shape(const ds_safetensors *st, const dsi_stored_forms *forms,
                                dsi_stored *s)
{
    dsi_bnb_matrix *m = NULL;
    DS_TRY(open_bnb(st, forms, s, &m));
    s->shape = dsi_bnb_shape(m);
    dsi_bnb_close(&m);
    return DS_OK;
}

ds_status dsi_stored_find(ds_ctx *ctx, const ds_safetensors *st, const dsi_stored_forms *forms,
                          const ds_safetensor *t, char name_out[DSI_STORED_NAME_BYTES],
                          dsi_stored *stored_out)
{
    *stored_out = (dsi_stored){.ctx = ctx, .from = t, .shape = t->meta.shape};
    dsi_stored *s = stored_out;
    const bool few = dsi_int4_part(st, &forms->int4, t, &s->parts);
    name_out[0] = '\0';
    if ((few && s->parts.words != t) || is_of_bytes(st, &forms->bytes, t) ||
        dsi_bnb_is_beside(st, forms->bnb, t)) {
        return DS_OK;
    }
    if (few && name_beside(t->name, "weight", name_out)) {
        s->form = forms->int4;
        s->shape = dsi_int4_shape(&s->form, &s->parts);
        return ds_safetensors_find(st, name_out) == NULL
                   ? DS_OK
                   : ds_fail(ctx, DS_ERR_FORMAT, "%s: %s and %s are the same parameter", t->path,
                             t->name, name_out);
    }
    (void)snprintf(name_out, DSI_STORED_NAME_BYTES, "%s", t->name);
    return dsi_bnb_is_stored(forms->bnb, t) ? read_bnb_shape(st, forms, s) : DS_OK;
}

bool dsi_stored_is_plain(const dsi_stored_forms *forms, const dsi_stored *stored)
{
    return stored->form.layout == DSI_INT4_NONE &&
           !dsi_byte_is_stored(&forms->bytes, stored->from) &&
           !dsi_bnb_is_stored(forms->bnb, stored->from);
}

static ds_status missing(const dsi_stored *s, const char *end)
{
    return ds_fail(s->ctx, DS_ERR_NOT_FOUND, "%s: the %s of %s (%s) are missing", s->from->path,
                   strstr(end, "zero") != NULL ? "zero points" : "scales", s->from->name, end);
}

static ds_status check_int4(dsi_stored *s)
{
    const bool packed = s->form.layout == DSI_INT4_PACKED || s->form.layout == DSI_INT4_PACKED8;
    if (s->parts.scales == NULL) {
        return missing(s, packed ? "weight_scale" : "scales");
    }
    if (s->parts.zeros == NULL && !packed) {
        return missing(s, "qzeros");
    }
    DS_TRY(dsi_int4_open(s->ctx, &s->form, &s->parts, s->shape, &s->int4));
    dsi_stored_rest(s);
    return DS_OK;
}

ds_status dsi_stored_open(const ds_safetensors *st, const dsi_stored_forms *forms, dsi_stored *s)
{
    if (s->form.layout != DSI_INT4_NONE) {
        return check_int4(s);
    }
    if (dsi_stored_is_plain(forms, s)) {
        return DS_OK;
    }
    if (dsi_bnb_is_stored(forms->bnb, s->from)) {
        return open_bnb(st, forms, s, &s->bnb);
    }
    const ds_safetensor *scales = find_beside(st, s->from, forms->bytes.scale);
    return scales != NULL
               ? dsi_byte_open(s->ctx, &forms->bytes, s->from, scales,
                               find_beside(st, s->from, "weight_zero_point"), s->shape, &s->bytes)
               : missing(s, forms->bytes.scale);
}

ds_status dsi_stored_read(dsi_stored *s, int64_t first, int64_t n, float *out)
{
    if (s->bytes != NULL) {
        return dsi_byte_read(s->bytes, first, n, out);
    }
    if (s->bnb != NULL) {
        return dsi_bnb_read(s->bnb, first, n, out);
    }
    if (s->form.layout != DSI_INT4_NONE) {
        DS_TRY(s->int4.scales == NULL
                   ? dsi_int4_open(s->ctx, &s->form, &s->parts, s->shape, &s->int4)
                   : DS_OK);
        return dsi_int4_read(s->ctx, &s->int4, first, n, out);
    }
    const size_t each = ds_dtype_bytes(s->from->meta.dtype);
    ds_safetensor piece = *s->from;
    piece.meta.shape = ds_shape_1d(n);
    piece.data = (const char *)s->from->data + (size_t)first * each;
    piece.bytes = (size_t)n * each;
    return ds_safetensors_read(s->ctx, &piece, DS_DTYPE_F32, out);
}

void dsi_stored_rest(dsi_stored *s)
{
    dsi_int4_close(&s->int4);
}

void dsi_stored_close(dsi_stored *s)
{
    dsi_stored_rest(s);
    dsi_byte_close(&s->bytes);
    dsi_bnb_close(&s->bnb);
}
