/* SPDX-License-Identifier: Apache-2.0 */
/* adam_8bit, ademamix_8bit: AdamW and AdEMAMix with states in 8 bits (Dettmers et al., "8-bit
 * Optimizers via Block-wise Quantization", 2022): rules. docs/internals/optim.md states the
 * arithmetic.
 *
 * A block is 256 neighbours of a whole tensor. Where no rank has a slice of it, one operator does
 * all. Where states are cut, every rank makes the direction of the whole tensor, of states that are
 * gathered for it, and keeps its slices of the states; the step is of slices. */
#include "op/op_place.h"
#include "op/op_update.h"

enum { IN_PARAM, IN_GRAD, IN_HYPER, IN_FACTOR, IN_MASTER, IN_STATE, TWO = 2, THREE = 3 };

/* n states, then the magnitudes of each. */
static ds_status infer(ds_infer *call, uint32_t n_states)
{
    static const char *const states[] = {"exp_avg", "exp_avg_sq", "exp_avg_slow"};
    static const char *const sizes[] = {"absmax", "absmax_sq", "absmax_slow"};
    DS_TRY(dsi_op_infer_weights(call));
    const ds_shape shape = call->out[0].shape;
    const int64_t n = ds_shape_count(shape);
    DS_TRY(dsi_op_need_float(call, IN_GRAD, "grad", 0));
    DS_TRY(dsi_op_need(call, IN_GRAD, "grad", call->in[IN_GRAD].dtype, shape));
    DS_TRY(dsi_op_need_hyper(call, IN_HYPER));
    DS_TRY(dsi_op_need(call, IN_FACTOR, "factor", DS_DTYPE_F32, (ds_shape){0}));
    for (uint32_t i = 0; i < n_states; ++i) {
        const uint32_t absmax = IN_STATE + n_states + i;
        DS_TRY(dsi_op_need(call, IN_STATE + i, states[i], DS_DTYPE_U8, shape));
        DS_TRY(dsi_op_need(call, absmax, sizes[i], DS_DTYPE_F32,
                           ds_shape_1d((n + DSI_8BIT_BLOCK - 1) / DSI_8BIT_BLOCK)));
        call->out[2 + i] = call->in[IN_STATE + i];
        call->out[2 + n_states + i] = call->in[absmax];
    }
    return DS_OK;
}

static ds_status two_infer(ds_infer *call)
{
    return infer(call, TWO);
}

static ds_status three_infer(ds_infer *call)
{
    return infer(call, THREE);
}

/* grad, hyper, factor, n states, their magnitudes → direction, the same states. */
static ds_status infer_direction(ds_infer *call, uint32_t n_states)
{
    static const char *const states[] = {"exp_avg", "exp_avg_sq", "exp_avg_slow"};
    static const char *const sizes[] = {"absmax", "absmax_sq", "absmax_slow"};
    DS_TRY(dsi_op_need_float(call, 0, "grad", 0));
    const ds_shape shape = dsi_op_in(call, 0).shape;
    const ds_shape blocks =
        ds_shape_1d((ds_shape_count(shape) + DSI_8BIT_BLOCK - 1) / DSI_8BIT_BLOCK);
    DS_TRY(dsi_op_need_hyper(call, 1));
    DS_TRY(dsi_op_need(call, 2, "factor", DS_DTYPE_F32, (ds_shape){0}));
    call->out[0] = dsi_meta_of(DS_DTYPE_F32, shape);
    for (uint32_t i = 0; i < n_states; ++i) {
        const uint32_t absmax = 3 + n_states + i;
        DS_TRY(dsi_op_need(call, 3 + i, states[i], DS_DTYPE_U8, shape));
        DS_TRY(dsi_op_need(call, absmax, sizes[i], DS_DTYPE_F32, blocks));
        call->out[1 + i] = call->in[3 + i];
        call->out[1 + n_states + i] = call->in[absmax];
    }
    return DS_OK;
}

static ds_status two_direction_infer(ds_infer *call)
{
    return infer_direction(call, TWO);
}

static ds_status three_direction_infer(ds_infer *call)
{
    return infer_direction(call, THREE);
}

static ds_status step_infer(ds_infer *call)
{
    DS_TRY(dsi_op_infer_weights(call));
    DS_TRY(dsi_op_need(call, IN_GRAD, "direction", DS_DTYPE_F32, call->out[0].shape));
    DS_TRY(dsi_op_need_hyper(call, IN_HYPER));
    return dsi_op_need_absent(call, IN_FACTOR, "factor");
}

static void step_cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->flops = 4.0 * dsi_op_count(call->in[0]);
    cost_out->bytes = dsi_op_bytes(call);
}

static void cost(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->flops = 48.0 * dsi_op_count(call->out[0]);
    cost_out->bytes = dsi_op_bytes(call);
}

static const ds_attr attrs[] = {
    DSI_ATTR_REAL(dsi_optim_attrs, eps),       DSI_ATTR_INT(dsi_optim_attrs, adamw),
    DSI_ATTR_REAL(dsi_optim_attrs, dampening), DSI_ATTR_INT(dsi_optim_attrs, nesterov),
    DSI_ATTR_REAL(dsi_optim_attrs, max_coeff), DSI_ATTR_REAL(dsi_optim_attrs, min_coeff),
};
static const int8_t two_writes[] = {IN_PARAM, IN_MASTER, 5, 6, 7, 8};
static const int8_t three_writes[] = {IN_PARAM, IN_MASTER, 5, 6, 7, 8, 9, 10};

#define STATES_8BIT                                                                                \
    "absmax f32 (ceil(N/256)) of each → the written ones: each 256 elements of a state are "     \
    "entries of a table of 256 numbers times their largest magnitude: "
#define OP(text, what, states, infer_fn, written, places_in, places_out)                           \
    {                                                                                              \
        .version = DS_OP_VERSION, .name = text,                                                    \
        .doc = "param, grad, hyper f32 (8), factor f32 (), [master f32], " what,                   \
        .n_in_min = IN_STATE + 2 * (states), .n_in_max = IN_STATE + 2 * (states),                  \
        .n_out = 2 + 2 * (states), .flags = DS_OP_INPLACE, .attrs_bytes = sizeof(dsi_optim_attrs), \
        .attrs = attrs, .n_attrs = DSI_N(attrs), .writes = written, .infer = infer_fn,             \
        .cost = cost, .op_class = DS_CLASS_OPTIMIZER, .role = DS_ROLE_UPDATE,                      \
        .again = DS_AGAIN_COSTLY,                                                                  \
        .place = DSI_PLACE(.in = places_in, .out = places_out, .flags = DS_PLACE_UPDATE),          \
    }

const ds_op dsi_op_adam_8bit = OP("adam_8bit", "exp_avg u8, exp_avg_sq u8, " STATES_8BIT "AdamW.",
                                  TWO, two_infer, two_writes, "_ _ _ _ _ _ _ _ _", "_ _ _ _ _ _");
const ds_op dsi_op_ademamix_8bit =
    OP("ademamix_8bit", "exp_avg u8, exp_avg_sq u8, exp_avg_slow u8, " STATES_8BIT "AdEMAMix.",
       THREE, three_infer, three_writes, "_ _ _ _ _ _ _ _ _ _ _", "_ _ _ _ _ _ _ _");

#define DIRECTION(text, states, infer_fn, places_in, places_out)                                    \
    {                                                                                               \
        .version = DS_OP_VERSION, .name = text "_direction",                                        \
        .doc = "grad, hyper f32 (8), factor f32 (), and what " text " has of states → direction " \
               "f32, the states' next values; of whole tensors.",                                   \
        .n_in_min = 3 + 2 * (states), .n_in_max = 3 + 2 * (states), .n_out = 1 + 2 * (states),      \
        .attrs_bytes = sizeof(dsi_optim_attrs), .attrs = attrs, .n_attrs = DSI_N(attrs),            \
        .infer = infer_fn, .cost = cost, .op_class = DS_CLASS_REDUCE, .role = DS_ROLE_COMPUTE,      \
        .again = DS_AGAIN_COSTLY,                                                                   \
        .place = DSI_PLACE(.in = places_in, .out = places_out, .flags = DSI_PLACE_WHOLE),           \
    }

const ds_op dsi_op_adam_8bit_direction =
    DIRECTION("adam_8bit", TWO, two_direction_infer, "_ _ _ _ _ _ _", "_ _ _ _ _");
const ds_op dsi_op_ademamix_8bit_direction =
    DIRECTION("ademamix_8bit", THREE, three_direction_infer, "_ _ _ _ _ _ _ _ _", "_ _ _ _ _ _ _");

static const ds_attr step_attrs[] = {DSI_ATTR_INT(dsi_8bit_step_attrs, mixes)};
static const int8_t step_writes[] = {IN_PARAM, IN_MASTER};

const ds_op dsi_op_adam_8bit_step = {
    .version = DS_OP_VERSION,
    .name = "adam_8bit_step",
    .doc = "param (written), direction f32, hyper f32 (8), none, [master f32, written] → param, "
           "[master]: param·(1 - lr·wd) - lr/bias1·direction, or lr·direction where it mixes.",
    .n_in_min = IN_HYPER + 1,
    .n_in_max = IN_MASTER + 1,
    .n_out = 2,
    .flags = DS_OP_INPLACE,
    .attrs_bytes = sizeof(dsi_8bit_step_attrs),
    .attrs = step_attrs,
    .n_attrs = DSI_N(step_attrs),
    .writes = step_writes,
    .infer = step_infer,
    .cost = step_cost,
    .op_class = DS_CLASS_OPTIMIZER,
    .role = DS_ROLE_UPDATE,
    .again = DS_AGAIN_COSTLY,
    .place = DSI_PLACE(.in = "* * _ . *", .out = "* *", .split = "*",
                       .flags = DS_PLACE_ELEMENTS | DS_PLACE_UPDATE),
};
