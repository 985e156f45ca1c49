/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of attention over parts of keys and values. See part_attention.h. */
#include "pass/part_attention.h"

static dsi_attention_part_attrs attrs_of(const dsi_part_queries *q, const dsi_part_round *round)
{
    const dsi_attention_attrs *a = &q->attrs;
    const int64_t part = q->length / round->ranks;
    const int64_t key_part = round->length / round->ranks;
    return (dsi_attention_part_attrs){.n_heads = a->n_heads,
                                      .n_kv_heads = a->n_kv_heads,
                                      .head_dim = a->head_dim,
                                      .causal = a->causal,
                                      .window = a->window,
                                      .scale = a->scale,
                                      .dropout = a->dropout,
                                      .site = a->site,
                                      .all_heads = a->all_heads,
                                      .cap = a->cap,
                                      .alibi = a->alibi,
                                      .alibi_rounded = a->alibi_rounded,
                                      .all_keys = q->all_keys,
                                      .part = part,
                                      .key_part = key_part == part ? 0 : key_part};
}

static ds_status turn(ds_graph *to, const dsi_part_round *round, ds_value *value)
{
    const dsi_turn_attrs attrs = {.part = round->length / round->ranks};
    ds_value out[DS_MAX_OUT];
    if (round->ranks <= 1) {
        return DS_OK;
    }
    DS_TRY(ds_graph_apply(to, &dsi_op_turn_parts, &attrs, value, 1, out));
    *value = out[0];
    return DS_OK;
}

ds_status dsi_part_numbers(ds_graph *to, const dsi_part_round *round, int64_t turns,
                           ds_value *value_out)
{
    const dsi_row_numbers_attrs attrs = {.n_rows = round->length,
                                         .n_parts = round->ranks > 1 ? round->ranks : 0,
                                         .turn = turns,
                                         .halves = round->halves,
                                         .start = round->start};
    ds_value out[DS_MAX_OUT];
    if (turns == 0 && round->numbers != DS_NONE) {
        *value_out = round->numbers;
        return DS_OK;
    }
    DS_TRY(ds_graph_apply(to, &dsi_op_row_numbers, &attrs, NULL, 0, out));
    *value_out = out[0];
    return DS_OK;
}

/* The next step's keys, in now, and the turn behind them, in next. */
static ds_status advance(ds_graph *to, const dsi_part_round *round, int64_t step, ds_value *now,
                         ds_value *next, ds_value *numbers_out)
{
    now[0] = next[0];
    now[1] = next[1];
    if (step < round->ranks - 1) {
        DS_TRY(turn(to, round, &next[0]));
        DS_TRY(turn(to, round, &next[1]));
    }
    return dsi_part_numbers(to, round, step, numbers_out);
}

/* Operands up to the last that is there, at least so many. */
static uint32_t n_there(const ds_value *in, uint32_t n, uint32_t least)
{
    while (n > least && in[n - 1] == DS_NONE) {
        --n;
    }
    return n;
}

ds_status dsi_part_forward(ds_graph *to, const dsi_part_queries *queries,
                           const dsi_part_round *round, ds_value *seen)
{
    enum { LEAST = 8, N_IN = 11 };
    const ds_value *of = queries->of;
    dsi_attention_part_attrs attrs = attrs_of(queries, round);
    ds_value now[2];
    ds_value next[2] = {round->k, round->v};
    ds_value keys = DS_NONE;
    ds_value out[DS_MAX_OUT];
    for (int64_t step = 0; step < round->ranks; ++step) {
        DS_TRY(advance(to, round, step, now, next, &keys));
        const ds_value in[N_IN] = {of[DSI_AT_Q], now[0],           now[1],         of[DSI_AT_ROWS],
                                   keys,         of[DSI_AT_FIRST], of[DSI_AT_RNG], of[DSI_AT_HEADS],
                                   seen[0],      seen[1],          of[DSI_AT_END]};
        attrs.last = round->last && step == round->ranks - 1;
        DS_TRY(
            ds_graph_apply(to, &dsi_op_attention_part, &attrs, in, n_there(in, N_IN, LEAST), out));
        seen[0] = out[0];
        seen[1] = out[1];
    }
    return DS_OK;
}

ds_status dsi_part_backward(ds_graph *to, const dsi_part_queries *queries,
                            const dsi_part_round *round, ds_value *sums)
{
    enum { LEAST = 11, N_IN = 16 };
    const ds_value *of = queries->of;
    dsi_attention_part_attrs attrs = attrs_of(queries, round);
    ds_value now[2];
    ds_value next[2] = {round->k, round->v};
    ds_value keys = DS_NONE;
    ds_value out[DS_MAX_OUT];
    for (int64_t step = 0; step < round->ranks; ++step) {
        DS_TRY(advance(to, round, step, now, next, &keys));
        const ds_value in[N_IN] = {of[DSI_ATB_DY],
                                   of[DSI_ATB_Q],
                                   now[0],
                                   now[1],
                                   of[DSI_ATB_Y],
                                   of[DSI_ATB_LSE],
                                   of[DSI_ATB_ROWS],
                                   keys,
                                   of[DSI_ATB_FIRST],
                                   of[DSI_ATB_RNG],
                                   of[DSI_ATB_HEADS],
                                   sums[0],
                                   sums[1],
                                   sums[2],
                                   of[DSI_ATB_END],
                                   of[DSI_ATB_DLSE]};
        attrs.last = round->last && step == round->ranks - 1;
        DS_TRY(ds_graph_apply(to, &dsi_op_attention_part_backward, &attrs, in,
                              n_there(in, N_IN, LEAST), out));
        for (uint32_t i = 0; i < 3; ++i) {
            sums[i] = out[i];
        }
        DS_TRY(turn(to, round, &sums[1]));
        DS_TRY(turn(to, round, &sums[2]));
    }
    return DS_OK;
}

ds_status dsi_part_cast(ds_graph *to, ds_dtype dtype, ds_value *value)
{
    const dsi_cast_attrs attrs = {.dtype = dtype};
    ds_value out[DS_MAX_OUT];
    if (ds_graph_meta(to, *value).dtype == dtype) {
        return DS_OK;
    }
    DS_TRY(ds_graph_apply(to, &dsi_op_cast, &attrs, value, 1, out));
    *value = out[0];
    return DS_OK;
}
