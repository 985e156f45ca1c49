/* SPDX-License-Identifier: Apache-2.0 */
/* The files of ZeRO stages 1 to 3: the model's, and each rank's partition. See deepspeed_out.h.
 *
 * Stages 1 and 2: a group's parameters lie end to end, are filled up to a multiple of twice the
 * ranks, and are cut into equal parts; the weights are saved without what fills them up, the
 * moments with it. Stage 3: of each parameter a rank has one of equal parts, the last filled up;
 * these lie end to end in sub-groups, which are closed once they reach sub_group_size elements.
 */
#include "ckpt/deepspeed_out.h"

#include <deepspeed/context.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 96 };

static const char *const kinds[DSI_OUT_KINDS] = {NULL, "exp_avg", "exp_avg_sq"};

/* A rank's flat vectors: of each group, or of each sub-group. */
typedef struct partition {
    dsi_out_piece *pieces; /* [n_params + groups] */
    dsi_out_vector *lean;  /* [n][DSI_OUT_KINDS] */
    int64_t *padding;      /* [n] */
    size_t n;
} partition;

static ds_status no_memory(const dsi_deepspeed_out *o)
{
    return ds_fail(o->ctx, DS_ERR_NOMEM, "no memory for a folder for DeepSpeed");
}

static int64_t part_of(int64_t count, uint32_t ranks)
{
    return count / ranks + (count % ranks != 0);
}

ds_status dsi_out_sub_groups(dsi_deepspeed_out *o, const size_t **sizes_out, size_t *n_out)
{
    const int64_t limit =
        o->given->sub_group_size > 0 ? o->given->sub_group_size : o->values->zero.sub_group_size;
    size_t *sizes = dsi_arena_array(o->arena, o->n_params + DSI_OUT_GROUPS, sizeof *sizes);
    size_t n = 0;
    if (sizes == NULL) {
        return no_memory(o);
    }
    for (size_t g = 0; g < o->n_groups; ++g) {
        int64_t has = 0;
        for (size_t i = o->group_begin[g]; i < o->group_begin[g + 1]; ++i) {
            has += part_of(o->params[i].count, o->given->ranks);
            ++sizes[n];
            if (has >= limit && o->given->zero_stage == 3 && i + 1 < o->group_begin[g + 1]) {
                ++n;
                has = 0;
            }
        }
        ++n;
    }
    *sizes_out = sizes;
    *n_out = n;
    return DS_OK;
}

/* Stages 1 and 2: elements [from, to) of a group, and zeros up to `to`. */
static size_t pieces_of_range(const dsi_out_param *params, size_t n_params, int64_t from,
                              int64_t to, dsi_out_piece *pieces)
{
    size_t n = 0;
    int64_t at = 0; /* of the parameter in the group */
    for (size_t i = 0; i < n_params; ++i) {
        const dsi_out_param *p = &params[i];
        const int64_t begin = at < from ? from - at : 0;
        const int64_t stop = at + p->count > to ? to - at : p->count;
        if (begin < stop) {
            pieces[n++] = (dsi_out_piece){.param = p, .begin = begin, .count = stop - begin};
        }
        at += p->count;
    }
    const int64_t zeros = to - (at > from ? at : from);
    if (zeros > 0) {
        pieces[n++] = (dsi_out_piece){.zeros = zeros};
    }
    return n;
}

static void set_vectors(const dsi_deepspeed_out *o, partition *p, size_t i,
                        const dsi_out_piece *pieces, size_t n)
{
    int64_t count = 0;
    for (size_t k = 0; k < n; ++k) {
        count += pieces[k].count + pieces[k].zeros;
    }
    for (int k = 0; k < DSI_OUT_KINDS; ++k) {
        p->lean[i * DSI_OUT_KINDS + (size_t)k] = (dsi_out_vector){.ckpt = o->ckpt,
                                                                  .kind = k,
                                                                  .dtype = DS_DTYPE_F32,
                                                                  .pieces = pieces,
                                                                  .n = n,
                                                                  .count = count};
    }
}

/* Ranks that have other experts in a group than their neighbours; 1: none. */
static uint32_t places_of(const dsi_deepspeed_out *o, size_t g)
{
    return o->n_places[g] > 0 ? o->n_places[g] : 1;
}

/* Stages 1 and 2. */
static void cut_flat(const dsi_deepspeed_out *o, uint32_t rank, partition *p)
{
    dsi_out_piece *pieces = p->pieces;
    for (size_t g = 0; g < o->n_groups; ++g) {
        const uint32_t places = places_of(o, g);
        const size_t n_params = o->group_begin[g + 1] - o->group_begin[g];
        const dsi_out_param *params =
            o->n_places[g] > 0 ? o->places[g][rank % places] : &o->params[o->group_begin[g]];
        int64_t all = 0;
        for (size_t i = 0; i < n_params; ++i) {
            all += params[i].count;
        }
        const int64_t part = 2 * part_of(part_of(all, 2), o->given->ranks / places);
        const int64_t from = (int64_t)(rank / places) * part;
        const int64_t over = from + part - all;
        const size_t n = pieces_of_range(params, n_params, from, from + part, pieces);
        set_vectors(o, p, g, pieces, n);
        p->padding[g] = over <= 0 ? 0 : over < part ? over : part;
        p->lean[g * DSI_OUT_KINDS + DSI_OUT_WEIGHT].count -= p->padding[g];
        pieces += n;
    }
}

static void cut_params(const dsi_deepspeed_out *o, uint32_t rank, const size_t *sizes, partition *p)
{
    dsi_out_piece *pieces = p->pieces;
    size_t at = 0;
    for (size_t i = 0; i < p->n; ++i) {
        for (size_t k = 0; k < sizes[i]; ++k, ++at) {
            const dsi_out_param *param = &o->params[at];
            const int64_t part = part_of(param->count, o->given->ranks);
            const int64_t begin = (int64_t)rank * part;
            const int64_t left = param->count - begin;
            const int64_t own = left < 0 ? 0 : left < part ? left : part;
            pieces[k] = (dsi_out_piece){
                .param = param, .begin = own > 0 ? begin : 0, .count = own, .zeros = part - own};
        }
        set_vectors(o, p, i, pieces, sizes[i]);
        pieces += sizes[i];
    }
}

/* ---- values ---- */

static void put_base_optimizer(const dsi_deepspeed_out *o, dsi_torch_out *t, partition *p,
                               const size_t *n_vectors)
{
    dsi_torch_dict(t);
    dsi_torch_text(t, "state");
    dsi_torch_dict(t);
    for (size_t i = 0; i < p->n; ++i) {
        dsi_torch_whole(t, (int64_t)i);
        dsi_torch_dict(t);
        dsi_torch_text(t, "step"); /* torch's Adam makes a tensor of it, the others want a number */
        dsi_torch_whole(t, o->steps - o->skipped);
        for (size_t k = DSI_OUT_FIRST; k < DSI_OUT_KINDS; ++k) {
            dsi_out_vector *v = &p->lean[i * DSI_OUT_KINDS + k];
            dsi_torch_text(t, kinds[k]);
            dsi_out_put(t, v, ds_shape_1d(v->count));
        }
        dsi_torch_dict_end(t);
    }
    dsi_torch_dict_end(t);
    dsi_out_param_groups(o, t, n_vectors, true);
    dsi_torch_dict_end(t);
}

static void put_weights(dsi_torch_out *t, partition *p, const char *key)
{
    dsi_torch_text(t, key);
    dsi_torch_list(t);
    for (size_t i = 0; i < p->n; ++i) {
        dsi_out_vector *v = &p->lean[i * DSI_OUT_KINDS + DSI_OUT_WEIGHT];
        dsi_out_put(t, v, ds_shape_1d(v->count));
    }
    dsi_torch_list_end(t);
}

static void put_list(dsi_torch_out *t, const char *key, const int64_t *values, size_t n)
{
    dsi_torch_text(t, key);
    dsi_torch_list(t);
    for (size_t i = 0; i < n; ++i) {
        dsi_torch_whole(t, values[i]);
    }
    dsi_torch_list_end(t);
}

static void put_flat(const dsi_deepspeed_out *o, dsi_torch_out *t, partition *p)
{
    size_t one[DSI_OUT_GROUPS];
    int64_t counts[DSI_OUT_GROUPS];
    for (size_t g = 0; g < DSI_OUT_GROUPS; ++g) {
        one[g] = 1;
        counts[g] = o->given->ranks / places_of(o, g);
    }
    dsi_torch_text(t, "clip_grad");
    dsi_torch_real(t, o->values->gradient_clipping > 0.0 ? o->values->gradient_clipping : 0.0);
    dsi_torch_text(t, "base_optimizer_state");
    put_base_optimizer(o, t, p, one);
    put_weights(t, p, "single_partition_of_fp32_groups");
    put_list(t, "group_paddings", p->padding, p->n);
    put_list(t, "partition_count", counts, p->n);
    dsi_torch_text(t, "ds_version");
    dsi_torch_text(t, DSI_OUT_VERSION);
}

static void put_parts(const dsi_deepspeed_out *o, dsi_torch_out *t, partition *p,
                      const size_t *sizes)
{
    size_t n_vectors[DSI_OUT_GROUPS] = {0};
    size_t at = 0;
    for (size_t i = 0, g = 0; i < p->n; at += sizes[i++]) {
        g += at >= o->group_begin[g + 1];
        ++n_vectors[g];
    }
    dsi_torch_text(t, "partition_count");
    dsi_torch_whole(t, o->given->ranks);
    dsi_torch_text(t, "optimizer_state_dict");
    put_base_optimizer(o, t, p, n_vectors);
    put_weights(t, p, "fp32_flat_groups");
}

static ds_status write_optimizer(const dsi_deepspeed_out *o, uint32_t rank, partition *p,
                                 const size_t *sizes)
{
    char name[NAME_BYTES];
    const bool third = o->given->zero_stage == 3;
    (void)snprintf(name, sizeof name, "%szero_pp_rank_%u_mp_rank_%02u_optim_states.pt",
                   o->values->bf16.enabled ? "bf16_" : "", rank, o->model_rank);
    char *path = dsi_path_join(o->folder, name);
    if (path == NULL) {
        return no_memory(o);
    }
    dsi_torch_out t = dsi_torch_out_make(o->ctx);
    dsi_torch_dict(&t);
    dsi_torch_text(&t, "optimizer_state_dict");
    dsi_torch_dict(&t);
    dsi_torch_text(&t, "zero_stage");
    dsi_torch_whole(&t, o->given->zero_stage);
    dsi_out_loss_scaler(o, &t, third);
    if (third) {
        put_parts(o, &t, p, sizes);
    } else {
        put_flat(o, &t, p);
    }
    dsi_torch_dict_end(&t);
    dsi_out_config(o, &t);
    dsi_torch_dict_end(&t);
    const ds_status status = dsi_torch_out_write(&t, path);
    dsi_torch_out_free(&t);
    free(path);
    return status;
}

static ds_status write_ranks(const dsi_deepspeed_out *o, partition *p, const size_t *sizes)
{
    char name[NAME_BYTES];
    const bool third = o->given->zero_stage == 3;
    for (uint32_t r = 0; r < o->given->ranks; ++r) {
        if (third) {
            cut_params(o, r, sizes, p);
            (void)snprintf(name, sizeof name, "zero_pp_rank_%u_mp_rank_00_model_states.pt", r);
            DS_TRY(dsi_out_model_file(o, name, false, sizes, p->n));
        } else {
            cut_flat(o, r, p);
        }
        DS_TRY(write_optimizer(o, r, p, sizes));
    }
    (void)snprintf(name, sizeof name, "mp_rank_%02u_model_states.pt", o->model_rank);
    return third ? DS_OK : dsi_out_model_file(o, name, true, sizes, p->n);
}

ds_status dsi_out_zero(dsi_deepspeed_out *o)
{
    const size_t *sizes = NULL;
    partition p = {0};
    DS_TRY(dsi_out_sub_groups(o, &sizes, &p.n));
    p.pieces = calloc(o->n_params + p.n, sizeof *p.pieces);
    p.lean = calloc(p.n * DSI_OUT_KINDS, sizeof *p.lean);
    p.padding = calloc(p.n, sizeof *p.padding);
    const ds_status status = p.pieces != NULL && p.lean != NULL && p.padding != NULL
                                 ? write_ranks(o, &p, sizes)
                                 : no_memory(o);
    free(p.padding);
    free(p.lean);
    free(p.pieces);
    return status;
}
