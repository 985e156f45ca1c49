/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary positions of type longrope (Ding et al., "LongRoPE", 2024), up to the positions that the
 * model was trained with at first: each frequency is divided by a number of its own. See fields.h.
 */
#include "model/family.h"
#include "model/fields.h"
#include "op/constants.h"
#include "op/ops.h"

#include <math.h>
#include <string.h>

static ds_status read_factors(const ds_reader *inner, const char *key, int64_t n, double *out)
{
    const json_t *list = json_object_get(inner->json, key);
    bool good = json_is_array(list) && json_array_size(list) == (size_t)n;
    for (size_t i = 0; good && i < (size_t)n; ++i) {
        const json_t *value = json_array_get(list, i);
        out[i] = json_number_value(value);
        good = json_is_number(value) && out[i] > 1e-6 && out[i] < 1e6;
    }
    return good ? DS_OK
                : ds_field_bad(inner, key, "a list of numbers above 0, one for two rotated dims");
}

ds_status ds_longrope_read(const ds_reader *outer, const ds_reader *inner, int64_t max_positions,
                           ds_rope_params *rope, ds_longrope *out)
{
    static const char *const original = "original_max_position_embeddings";
    double unused[DSI_MOST_CONSTANTS];
    const json_t *factor = json_object_get(inner->json, "factor");
    const json_t *scale = json_object_get(inner->json, "attention_factor");
    int64_t before = 4096; /* the default of its class, whatever is inside */
    const int64_t n = rope->head_dim / 2;
    if (n > DSI_MOST_CONSTANTS) {
        return ds_fail(outer->ctx, DS_ERR_UNSUPPORTED,
                       "config.json: longrope of more than %d dims of a head is not supported",
                       2 * DSI_MOST_CONSTANTS);
    }
    DS_TRY(read_factors(inner, "short_factor", n, out->divisors));
    DS_TRY(read_factors(inner, "long_factor", n, unused));
    DS_TRY(ds_field_int(outer, original, 2, &before));
    double times = (double)max_positions / (double)before;
    if (factor != NULL && !json_is_null(factor)) {
        DS_TRY(ds_field_number(inner, "factor", &times));
    }
    rope->attention_factor = times <= 1.0 ? 1.0 : sqrt(1.0 + log(times) / log((double)before));
    if (scale != NULL && !json_is_null(scale)) {
        DS_TRY(ds_field_number(inner, "attention_factor", &rope->attention_factor));
    }
    if (!(rope->attention_factor >= 0.0 && rope->attention_factor <= 100.0)) {
        return ds_field_bad(inner, "attention_factor", "0 to 100");
    }
    out->max_positions = before < max_positions ? before : max_positions;
    return DS_OK;
}

ds_value ds_model_longrope_table(ds_nn *nn, ds_value positions, const ds_rope_params *rope,
                                 const ds_longrope *longrope)
{
    dsi_constants_attrs divisors = {.n = rope->head_dim / 2};
    memcpy(divisors.v, longrope->divisors, (size_t)divisors.n * sizeof divisors.v[0]);
    const dsi_rope_table_attrs attrs = {.head_dim = rope->head_dim,
                                        .theta = rope->theta,
                                        .attention_factor = rope->attention_factor};
    const ds_value in[3] = {positions, DS_NONE,
                            ds_nn_apply(nn, &dsi_op_constants, &divisors, NULL, 0)};
    return ds_nn_apply(nn, &dsi_op_rope_table, &attrs, in, 3);
}
