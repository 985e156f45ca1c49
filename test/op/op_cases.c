/* The table of cases of the operator harness: one row a case. harness.h explains the notation. */
#include "op/harness.h"

/* A row names only what matters to it. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"

#define ATTRS(type, ...)                                                                           \
    &(const type)                                                                                  \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define LINEAR(...) ATTRS(dsi_linear_attrs, __VA_ARGS__)
#define DW(...)     ATTRS(dsi_linear_dw_attrs, __VA_ARGS__)
#define ATT(...)    ATTRS(dsi_attention_attrs, __VA_ARGS__)
#define ACT(k)      ATTRS(dsi_act_attrs, .kind = DSI_ACT_##k)
#define CE(...)     ATTRS(dsi_ce_attrs, .ignore_index = -100, __VA_ARGS__)
#define EPS         ATTRS(dsi_norm_attrs, .eps = 1e-5)
#define ROPE(...)   ATTRS(dsi_rope_table_attrs, .theta = 10000.0, __VA_ARGS__)
#define OPTIM(...)  ATTRS(dsi_optim_attrs, .eps = 1e-8, __VA_ARGS__)
#define FORWARD(...)                                                                               \
    &(const op_forward)                                                                            \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

/* ---- attributes and forward runs that several rows use
 * --------------------------------------------- */
#define HEADS3        .n_heads = 3, .n_kv_heads = 3, .head_dim = 8, .causal = 1, .scale = 0.35
#define GROUPED       .n_heads = 4, .n_kv_heads = 2, .head_dim = 16, .causal = 1, .scale = 0.25
#define WIDE          .n_heads = 2, .n_kv_heads = 1, .head_dim = 64, .causal = 1, .scale = 0.125
#define LAYER_STATS   FORWARD(&dsi_op_layer_norm, EPS, 2, {1, 2}, {-1, 3, 4})
#define RMS_STATS     FORWARD(&dsi_op_rms_norm, EPS, 2, {1, 2}, {-1, 3})
#define ATT_SAVED(a)  FORWARD(&dsi_op_attention, a, 6, {1, 2, 3, 6, -1, 7}, {4, 5})
#define ATT_PLAIN(a)  FORWARD(&dsi_op_attention, a, 3, {1, 2, 3}, {4, 5})
#define ATT_PACKED(a) FORWARD(&dsi_op_attention, a, 1, {1}, {4, 5})
#define CE_SAVED(a)   FORWARD(&dsi_op_linear_cross_entropy, a, 3, {1, 2, 3}, {-1, 4, 5})
#define TOP           FORWARD(&dsi_op_abs_max, NULL, 1, {0}, {1})

#define BINARY_ROWS(op)                                                                            \
    {&op, "same shape", "act[3,5,33] act[3,5,33]+", .flags = OP_EXACT},                            \
        {&op, "row", "act[7,131] act[131]+", .flags = OP_EXACT},                                   \
        {&op, "scalar", "act[17,3] f32[]+", .flags = OP_EXACT | OP_NO_GRAD},                       \
        {&op, "f32 row", "act[7,33] f32[33]+", .flags = OP_EXACT | OP_NO_GRAD},                    \
        {&op, "many", "act[3,20011] act[3,20011]+", .flags = OP_EXACT | OP_NO_GRAD},               \
    {                                                                                              \
        &op, "one", "act[1] act[1]+", .flags = OP_EXACT                                            \
    }

const op_case op_cases[] = {
    /* linear */
    {&dsi_op_linear, "out,in", "act[2,3,17] act[33,17]", LINEAR(.transposed = 0)},
    {&dsi_op_linear, "in,out", "act[5,17] act[17,33]", LINEAR(.transposed = 1)},
    {&dsi_op_linear, "one", "act[1,1] act[1,1]", LINEAR(.transposed = 0)},
    {&dsi_op_linear, "bias", "act[33,64] act[64,131] act[131]", LINEAR(.transposed = 1)},
    {&dsi_op_linear, "bias, GELU, pre, residual", "act[19,33] act[33,70] act[70] act[19,70]",
     LINEAR(.transposed = 1, .activation = DSI_ACT_GELU_TANH, .save_pre = 1), .loose = 2},
    {&dsi_op_linear, "GELU", "act[3,65] act[40,65] act[40]",
     LINEAR(.activation = DSI_ACT_GELU_TANH), .loose = 2},
    {&dsi_op_linear, "SiLU", "act[3,65] act[40,65]", LINEAR(.activation = DSI_ACT_SILU)},
    {&dsi_op_linear, "residual", "act[70,96] act[128,96] - act[70,128]", LINEAR(.transposed = 0)},
    {&dsi_op_linear, "f32 result", "act[9,64] act[48,64]", LINEAR(.out_dtype = DS_DTYPE_F32),
     .flags = OP_NO_GRAD},
    {&dsi_op_linear, "one row", "act[1,768] act[129,768] act[129]", LINEAR(.transposed = 0)},
    {&dsi_op_linear, "tall", "act[200,160] act[96,160] act[96]", LINEAR(.transposed = 0),
     .flags = OP_NO_GRAD},
    {&dsi_op_linear_dw, "out,in", "act[3,7,33] act[3,7,17]", DW(.transposed = 0)},
    {&dsi_op_linear_dw, "in,out, bias", "act[37,65] act[37,31]",
     DW(.transposed = 1, .with_bias = 1)},
    {&dsi_op_linear_dw, "adds", "act[130,64] act[130,48] f32[48,64] f32[48]", DW(.with_bias = 1)},
    {&dsi_op_linear_dw, "one", "act[1,1] act[1,1]", DW(.with_bias = 1)},
    {&dsi_op_linear_dw, "own dtype", "act[40,33] act[40,96]",
     DW(.transposed = 1, .out_dtype = DS_DTYPE_BF16), .flags = OP_BF16},
    /* embedding */
    {&dsi_op_embedding, "tokens", "act[11,33] i32[2,7]<11", .flags = OP_EXACT},
    {&dsi_op_embedding, "positions", "act[131,64] i32[3,17]<131 act[20,64] i32[3,17]p",
     .flags = OP_EXACT},
    {&dsi_op_embedding_dw, "repeated ids", "i32[3,50]<11 act[3,50,33]",
     ATTRS(dsi_embedding_dw_attrs, .n_rows = 11)},
    {&dsi_op_embedding_dw, "adds", "i32[20]<131 act[20,64] f32[131,64]",
     ATTRS(dsi_embedding_dw_attrs, .n_rows = 131)},
    /* norms */
    {&dsi_op_layer_norm, "bias", "act[3,5,33] act[33] act[33]", EPS},
    {&dsi_op_layer_norm, "no bias", "act[7,131] act[131]", EPS},
    {&dsi_op_layer_norm, "one channel", "act[4,1] act[1] act[1]", EPS, .flags = OP_NO_GRAD},
    {&dsi_op_layer_norm, "wide", "act[67,768] act[768] act[768]", EPS, .flags = OP_NO_GRAD},
    {&dsi_op_layer_norm_backward, "bias", "act[5,33] act[5,33] act[33] stat[5] stat[5]",
     ATTRS(dsi_norm_backward_attrs, .has_bias = 1), .loose = 2, .forward = LAYER_STATS},
    {&dsi_op_layer_norm_backward, "residual",
     "act[67,131] act[67,131] act[131] stat[67] stat[67] act[67,131]",
     ATTRS(dsi_norm_backward_attrs, .has_bias = 0), .loose = 2, .forward = LAYER_STATS},
    {&dsi_op_rms_norm, "odd", "act[3,5,33] act[33]", EPS},
    {&dsi_op_rms_norm, "wide", "act[67,768] act[768]", EPS, .flags = OP_NO_GRAD},
    {&dsi_op_rms_norm_backward, "odd", "act[5,33] act[5,33] act[33] stat[5]", .loose = 2,
     .forward = RMS_STATS},
    {&dsi_op_rms_norm_backward, "residual", "act[67,131] act[67,131] act[131] stat[67] act[67,131]",
     .loose = 2, .forward = RMS_STATS},
    /* activations */
    {&dsi_op_activation, "GELU", "act[3,131]~3", ACT(GELU_TANH)},
    {&dsi_op_activation, "SiLU", "act[3,131]~3", ACT(SILU)},
    {&dsi_op_activation, "GELU erf", "act[3,131]~3", ACT(GELU_ERF)},
    {&dsi_op_activation, "identity", "act[17]", ACT(NONE), .flags = OP_EXACT},
    {&dsi_op_activation, "many", "act[40003]~3", ACT(GELU_TANH), .flags = OP_NO_GRAD},
    {&dsi_op_activation_backward, "GELU", "act[3,131] act[3,131]~3", ACT(GELU_TANH)},
    {&dsi_op_activation_backward, "SiLU", "act[3,131] act[3,131]~3", ACT(SILU)},
    {&dsi_op_activation_backward, "GELU erf", "act[3,131] act[3,131]~3", ACT(GELU_ERF)},
    {&dsi_op_activation_backward, "many", "act[40003] act[40003]~3", ACT(GELU_TANH)},
    {&dsi_op_glu, "SwiGLU", "act[5,131]~2 act[5,131]", ACT(SILU)},
    {&dsi_op_glu, "GeGLU", "act[5,33]~2 act[5,33]", ACT(GELU_TANH)},
    {&dsi_op_glu_backward, "SwiGLU", "act[5,131] act[5,131]~2 act[5,131]", ACT(SILU)},
    {&dsi_op_glu_backward, "GeGLU erf", "act[5,33] act[5,33]~2 act[5,33]", ACT(GELU_ERF)},
    /* rope */
    {&dsi_op_rope_table, "plain", "i32[2,37]p", ROPE(.head_dim = 16), .flags = OP_F32},
    {&dsi_op_rope_table, "linear", "i32[1,37]p",
     ROPE(.head_dim = 16, .scaling = DSI_ROPE_LINEAR, .factor = 4.0), .flags = OP_F32},
    {&dsi_op_rope_table, "dynamic", "i32[1,37]p",
     ROPE(.head_dim = 16, .scaling = DSI_ROPE_DYNAMIC, .factor = 2.0, .original_max_positions = 16,
          .seq_length = 37),
     .flags = OP_F32},
    {&dsi_op_rope_table, "YaRN", "i32[1,37]p",
     ROPE(.head_dim = 16, .scaling = DSI_ROPE_YARN, .factor = 4.0, .original_max_positions = 16,
          .beta_fast = 32.0, .beta_slow = 1.0, .attention_factor = -1.0, .truncate = 1),
     .flags = OP_F32},
    {&dsi_op_rope_table, "Llama 3", "i32[1,37]p",
     ROPE(.head_dim = 16, .scaling = DSI_ROPE_LLAMA3, .factor = 8.0, .low_freq_factor = 1.0,
          .high_freq_factor = 4.0, .original_max_positions = 32),
     .flags = OP_F32},
    {&dsi_op_rope, "forward", "act[2,5,48] f32[2,5,16]", ATTRS(dsi_rope_attrs, .head_dim = 16)},
    {&dsi_op_rope, "inverse", "act[2,5,30] f32[2,5,10]",
     ATTRS(dsi_rope_attrs, .head_dim = 10, .inverse = 1)},
    /* attention */
    {&dsi_op_attention, "packed", "act[2,17,72]", ATT(HEADS3, .packed = 1), .loose = 2},
    {&dsi_op_attention, "one token", "act[1,1,72]", ATT(HEADS3, .packed = 1), .loose = 2},
    {&dsi_op_attention, "grouped", "act[2,33,64] act[2,33,32] act[2,33,32]", ATT(GROUPED),
     .loose = 2},
    {&dsi_op_attention, "window", "act[1,67,64] act[1,67,32] act[1,67,32]",
     ATT(GROUPED, .window = 9), .loose = 2},
    {&dsi_op_attention, "documents", "act[2,33,64] act[2,33,32] act[2,33,32] i32[2,33]d",
     ATT(GROUPED), .loose = 2},
    {&dsi_op_attention, "wide heads", "act[1,130,256]", ATT(WIDE, .packed = 1), .loose = 2,
     .flags = OP_NO_GRAD},
    {&dsi_op_attention, "all keys", "act[2,5,64] act[2,19,32] act[2,19,32]",
     ATT(.n_heads = 4, .n_kv_heads = 2, .head_dim = 16, .scale = 0.25), .loose = 2},
    {&dsi_op_attention, "generation", "act[2,1,64] act[2,40,32] act[2,40,32] - i32[2]<40",
     ATT(GROUPED), .loose = 2, .flags = OP_NO_GRAD},
    {&dsi_op_attention, "prefill at offset", "act[2,7,64] act[2,40,32] act[2,40,32] - i32[2]<33",
     ATT(GROUPED, .window = 11), .loose = 2, .flags = OP_NO_GRAD},
    {&dsi_op_attention, "dropout", "act[2,17,72] - - - - i64[4]r",
     ATT(HEADS3, .packed = 1, .dropout = 0.25, .site = 5), .loose = 2},
    {&dsi_op_attention_backward, "packed",
     "act[2,17,24] act[2,17,72] - - act[2,17,24] stat[2,3,17]", ATT(HEADS3, .packed = 1),
     .loose = 4, .forward = ATT_PACKED(ATT(HEADS3, .packed = 1))},
    {&dsi_op_attention_backward, "grouped",
     "act[2,33,64] act[2,33,64] act[2,33,32] act[2,33,32] act[2,33,64] stat[2,4,33]", ATT(GROUPED),
     .loose = 4, .forward = ATT_PLAIN(ATT(GROUPED))},
    {&dsi_op_attention_backward, "window and documents",
     "act[2,67,64] act[2,67,64] act[2,67,32] act[2,67,32] act[2,67,64] stat[2,4,67] i32[2,67]d",
     ATT(GROUPED, .window = 4), .loose = 4,
     .forward = FORWARD(&dsi_op_attention, ATT(GROUPED, .window = 4), 4, {1, 2, 3, 6}, {4, 5})},
    {&dsi_op_attention_backward, "dropout",
     "act[2,17,24] act[2,17,72] - - act[2,17,24] stat[2,3,17] - i64[4]r",
     ATT(HEADS3, .packed = 1, .dropout = 0.25, .site = 5), .loose = 4,
     .forward = FORWARD(&dsi_op_attention, ATT(HEADS3, .packed = 1, .dropout = 0.25, .site = 5), 6,
                        {1, -1, -1, -1, -1, 7}, {4, 5})},
    {&dsi_op_attention_backward, "wide heads",
     "act[1,130,128] act[1,130,256] - - act[1,130,128] stat[1,2,130]", ATT(WIDE, .packed = 1),
     .loose = 4, .forward = ATT_PACKED(ATT(WIDE, .packed = 1))},
    /* cross entropy */
    {&dsi_op_linear_cross_entropy, "V,C", "act[2,9,33] act[67,33] i32[2,9]<67", CE(0), .loose = 2},
    {&dsi_op_linear_cross_entropy, "C,V and ignored", "act[37,64] act[64,131] i32[37]<131m",
     CE(.transposed = 1), .loose = 2},
    {&dsi_op_linear_cross_entropy, "all ignored", "act[3,16] act[20,16] i32[3]=-100", CE(0)},
    {&dsi_op_linear_cross_entropy, "large vocabulary", "act[70,48] act[1037,48] i32[70]<1037m",
     CE(0), .loose = 2, .flags = OP_NO_GRAD},
    {&dsi_op_linear_cross_entropy_backward, "V,C",
     "stat[]=1.5 act[18,33] act[67,33] i32[18]<67 stat[18] stat[]", CE(0), .loose = 4,
     .forward = CE_SAVED(CE(0))},
    {&dsi_op_linear_cross_entropy_backward, "C,V, ignored, adds",
     "stat[]=1.5 act[37,64] act[64,131] i32[37]<131m stat[37] stat[] f32[64,131]~0.01",
     CE(.transposed = 1), .loose = 4, .forward = CE_SAVED(CE(.transposed = 1))},
    {&dsi_op_linear_cross_entropy_backward, "all ignored",
     "stat[]=1.5 act[3,16] act[20,16] i32[3]=-100 stat[3] stat[]", CE(0),
     .forward = CE_SAVED(CE(0))},
    {&dsi_op_linear_cross_entropy_backward, "large vocabulary",
     "stat[]=1 act[70,48] act[1037,48] i32[70]<1037m stat[70] stat[]", CE(0), .loose = 4,
     .forward = CE_SAVED(CE(0))},
    {&dsi_op_cross_entropy, "odd", "act[2,9,67]~2 i32[2,9]<67m", CE(0), .loose = 2},
    {&dsi_op_cross_entropy_backward, "odd", "stat[]=1.5 act[18,67]~2 i32[18]<67m stat[18] stat[]",
     CE(0), .loose = 2, .forward = FORWARD(&dsi_op_cross_entropy, CE(0), 2, {1, 2}, {-1, 3, 4})},
    /* softmax, dropout */
    {&dsi_op_softmax, "odd", "act[5,33]~3"},
    {&dsi_op_softmax, "one", "act[5,1]"},
    {&dsi_op_softmax_backward, "odd", "act[5,33] act[5,33]+"},
    {&dsi_op_dropout, "odd", "act[3,5,33] i64[4]r", ATTRS(dsi_dropout_attrs, .p = 0.3, .site = 9),
     .flags = OP_EXACT},
    {&dsi_op_dropout, "many", "act[2,40003] i64[4]r", ATTRS(dsi_dropout_attrs, .p = 0.1, .site = 2),
     .flags = OP_EXACT | OP_NO_GRAD},
    {&dsi_op_dropout, "none", "act[3,5] i64[4]r", ATTRS(dsi_dropout_attrs, .p = 0.0),
     .flags = OP_EXACT},
    /* elementwise */
    BINARY_ROWS(dsi_op_add),
    BINARY_ROWS(dsi_op_sub),
    BINARY_ROWS(dsi_op_mul),
    BINARY_ROWS(dsi_op_div),
    {&dsi_op_scale, "odd", "act[7,33]", ATTRS(dsi_scale_attrs, .factor = 0.3), .flags = OP_EXACT},
    {&dsi_op_neg, "odd", "act[7,33]", .flags = OP_EXACT},
    {&dsi_op_exp, "odd", "act[7,33]"},
    {&dsi_op_log, "odd", "act[7,33]+"},
    {&dsi_op_sqrt, "odd", "act[7,33]+", .flags = OP_EXACT},
    {&dsi_op_tanh, "odd", "act[7,33]"},
    {&dsi_op_sigmoid, "odd", "act[7,33]~3"},
    {&dsi_op_relu, "odd", "act[7,33]", .flags = OP_EXACT},
    {&dsi_op_relu_backward, "odd", "act[7,33] act[7,33]", .flags = OP_EXACT},
    {&dsi_op_square, "odd", "act[7,33]", .flags = OP_EXACT},
    {&dsi_op_square, "scalar", "act[]", .flags = OP_EXACT},
    /* reductions */
    {&dsi_op_sum_all, "odd", "act[7,33]"},
    {&dsi_op_mean_all, "odd", "act[7,33]"},
    {&dsi_op_sum_last, "odd", "act[3,7,33]"},
    {&dsi_op_sum_rows, "odd", "act[3,7,33]"},
    {&dsi_op_fill, "odd", "act[3,33] stat[]", .flags = OP_EXACT},
    {&dsi_op_expand_last, "odd", "stat[3,7] act[3,7,33]", .flags = OP_EXACT},
    {&dsi_op_expand_rows, "odd", "stat[33] act[3,7,33]", .flags = OP_EXACT},
    /* shapes */
    {&dsi_op_cast, "to f32", "act[7,33]", ATTRS(dsi_cast_attrs, .dtype = DS_DTYPE_F32),
     .flags = OP_EXACT | OP_NO_GRAD},
    {&dsi_op_cast, "to bf16", "act[7,133]", ATTRS(dsi_cast_attrs, .dtype = DS_DTYPE_BF16),
     .flags = OP_EXACT | OP_NO_GRAD},
    {&dsi_op_cast, "to f16", "act[40003]~100", ATTRS(dsi_cast_attrs, .dtype = DS_DTYPE_F16),
     .flags = OP_EXACT | OP_NO_GRAD},
    {&dsi_op_cast, "tiny to f16", "act[133]~1e-6", ATTRS(dsi_cast_attrs, .dtype = DS_DTYPE_F16),
     .flags = OP_EXACT | OP_NO_GRAD},
    {&dsi_op_reshape, "odd", "act[6,33]", ATTRS(dsi_reshape_attrs, .n_dims = 3, .dims = {2, 11, 9}),
     .flags = OP_EXACT},
    {&dsi_op_permute, "three", "act[3,5,7]",
     ATTRS(dsi_permute_attrs, .n_dims = 3, .order = {2, 0, 1}), .flags = OP_EXACT},
    {&dsi_op_permute, "four", "act[2,3,5,4]",
     ATTRS(dsi_permute_attrs, .n_dims = 4, .order = {0, 2, 1, 3}), .flags = OP_EXACT},
    {&dsi_op_slice, "middle", "act[3,7,5]",
     ATTRS(dsi_slice_attrs, .dim = 1, .start = 2, .length = 3), .flags = OP_EXACT},
    {&dsi_op_slice, "last dim", "act[3,33]",
     ATTRS(dsi_slice_attrs, .dim = 1, .start = 1, .length = 17), .flags = OP_EXACT},
    {&dsi_op_pad, "middle", "act[3,7,5]", ATTRS(dsi_pad_attrs, .dim = 1, .before = 2, .after = 1),
     .flags = OP_EXACT},
    {&dsi_op_concat, "three", "act[3,7,5] act[3,1,5] act[3,2,5]", ATTRS(dsi_concat_attrs, .dim = 1),
     .flags = OP_EXACT},
    {&dsi_op_take_rows, "odd", "act[5,7,33] i32[5]<7", .flags = OP_EXACT},
    /* cells */
    {&dsi_op_store, "same", "act[7,33] act[7,33]", .flags = OP_EXACT},
    {&dsi_op_store, "to bf16", "bf16[7,33] act[7,33]", .flags = OP_EXACT},
    {&dsi_op_store, "to f32", "f32[7,33] act[7,33]", .flags = OP_EXACT},
    {&dsi_op_store, "integers", "i32[33] i32[33]<9", .flags = OP_EXACT | OP_F32},
    {&dsi_op_accumulate, "f32 cell", "f32[7,33] act[7,33]", .flags = OP_EXACT},
    {&dsi_op_accumulate, "own cell", "act[20011] act[20011]", .flags = OP_EXACT},
    {&dsi_op_kv_write, "odd", "act[3,9,33] act[3,2,33] i32[3]<8", .flags = OP_EXACT},
    /* gradient norm */
    {&dsi_op_abs_max, "odd", "act[7,133]", .flags = OP_EXACT},
    {&dsi_op_abs_max, "many", "act[100003]", .flags = OP_EXACT},
    {&dsi_op_max_of, "three", "f32[] f32[] f32[]", .flags = OP_EXACT | OP_F32},
    {&dsi_op_sum_squares, "odd", "act[7,133] f32[]", .flags = OP_EXACT, .forward = TOP},
    {&dsi_op_sum_squares, "many", "act[600011] f32[]", .flags = OP_EXACT, .forward = TOP},
    {&dsi_op_sum_parts, "three", "f64[2]+ f64[2]+ f64[2]+", .flags = OP_EXACT | OP_F32},
    {&dsi_op_clip_factor, "clips", "f64[2]=8 f32[]=3 f32[]=0.5",
     ATTRS(dsi_clip_attrs, .max_norm = 1.0), .flags = OP_EXACT | OP_F32},
    {&dsi_op_clip_factor, "no clipping", "f64[2]=8 f32[]=3 f32[]=0.5",
     ATTRS(dsi_clip_attrs, .max_norm = 0.0), .flags = OP_EXACT | OP_F32},
    {&dsi_op_clip_factor, "overflow", "f64[2]0 f32[]=inf f32[]=0.5",
     ATTRS(dsi_clip_attrs, .max_norm = 1.0), .flags = OP_EXACT | OP_F32},
    /* optimizers */
    {&dsi_op_adam, "AdamW f32",
     "f32[3,133] act[3,133] f32[8]h f32[]=0.7 - f32[3,133]~0.1 f32[3,133]+", OPTIM(.adamw = 1),
     .flags = OP_EXACT},
    {&dsi_op_adam, "AdamW master",
     "act[20011] act[20011] f32[8]h f32[]=0.7 f32[20011] f32[20011]~0.1 f32[20011]+",
     OPTIM(.adamw = 1), .flags = OP_EXACT | OP_BF16 | OP_F16},
    {&dsi_op_adam, "Adam, f32 gradient",
     "act[133] f32[133] f32[8]h f32[]=1 f32[133] f32[133]~0.1 f32[133]+", OPTIM(.adamw = 0),
     .flags = OP_EXACT | OP_BF16 | OP_F16},
    {&dsi_op_adam, "bf16 states",
     "act[133] act[133] f32[8]h f32[]=1 f32[133] bf16[133]~0.1 bf16[133]+", OPTIM(.adamw = 1),
     .flags = OP_EXACT | OP_BF16 | OP_F16},
    {&dsi_op_adam, "no master", "act[133] act[133] f32[8]h f32[]=1 - f32[133]~0.1 f32[133]+",
     OPTIM(.adamw = 1), .flags = OP_EXACT},
    {&dsi_op_sgd, "momentum", "f32[133] act[133] f32[8]h f32[]=0.7 - f32[133]~0.1",
     OPTIM(.dampening = 0.1), .flags = OP_EXACT},
    {&dsi_op_sgd, "Nesterov, master", "act[133] act[133] f32[8]h f32[]=0.7 f32[133] f32[133]~0.1",
     OPTIM(.nesterov = 1), .flags = OP_EXACT | OP_BF16 | OP_F16},
    {&dsi_op_sgd, "plain", "act[133] act[133] f32[8]h f32[]=0.7", OPTIM(0), .flags = OP_EXACT},
    {&dsi_op_lion, "f32", "f32[133] act[133] f32[8]h f32[]=0.7 - f32[133]~0.1", OPTIM(0),
     .flags = OP_EXACT},
    {&dsi_op_lion, "master", "act[133] act[133] f32[8]h f32[]=0.7 f32[133] bf16[133]~0.1", OPTIM(0),
     .flags = OP_EXACT | OP_BF16 | OP_F16},
    {&dsi_op_adagrad, "f32", "f32[133] act[133] f32[8]h f32[]=0.7 - f32[133]+", OPTIM(0),
     .flags = OP_EXACT},
    {&dsi_op_adagrad, "master", "act[133] act[133] f32[8]h f32[]=0.7 f32[133] f32[133]+", OPTIM(0),
     .flags = OP_EXACT | OP_BF16 | OP_F16},
    {&dsi_op_lamb, "f32", "f32[7,133] act[7,133] f32[8]h f32[]=0.7 - f32[7,133]~0.1 f32[7,133]+",
     OPTIM(.max_coeff = 10.0, .min_coeff = 0.01), .flags = OP_EXACT},
    {&dsi_op_lamb, "master", "act[133] act[133] f32[8]h f32[]=0.7 f32[133] f32[133]~0.1 f32[133]+",
     OPTIM(.max_coeff = 10.0, .min_coeff = 0.01), .flags = OP_EXACT | OP_BF16 | OP_F16},
    {0},
};

#define GPT2                                                                                       \
    .n_heads = 12, .n_kv_heads = 12, .head_dim = 64, .packed = 1, .causal = 1, .scale = 0.125

const op_case op_bench_cases[] = {
    {&dsi_op_linear, "qkv", "act[4096,768] act[768,2304] act[2304]", LINEAR(.transposed = 1)},
    {&dsi_op_linear, "fc with GELU", "act[4096,768] act[768,3072] act[3072]",
     LINEAR(.transposed = 1, .activation = DSI_ACT_GELU_TANH, .save_pre = 1)},
    {&dsi_op_linear, "projection", "act[4096,3072] act[3072,768] act[768] act[4096,768]",
     LINEAR(.transposed = 1)},
    {&dsi_op_linear, "dx of fc", "act[4096,3072] act[768,3072]", LINEAR(.transposed = 0)},
    {&dsi_op_linear, "one token", "act[1,768] act[768,3072] act[3072]", LINEAR(.transposed = 1)},
    {&dsi_op_linear_dw, "fc", "act[4096,768] act[4096,3072]", DW(.transposed = 1, .with_bias = 1)},
    {&dsi_op_embedding, "tokens", "act[50257,768] i32[4,1024]<50257 act[1024,768] i32[4,1024]p"},
    {&dsi_op_embedding_dw, "tokens", "i32[4,1024]<50257 act[4,1024,768]",
     ATTRS(dsi_embedding_dw_attrs, .n_rows = 50257)},
    {&dsi_op_layer_norm, "768", "act[4096,768] act[768] act[768]", EPS},
    {&dsi_op_layer_norm_backward, "768",
     "act[4096,768] act[4096,768] act[768] stat[4096] stat[4096] act[4096,768]",
     ATTRS(dsi_norm_backward_attrs, .has_bias = 1), .forward = LAYER_STATS},
    {&dsi_op_rms_norm, "768", "act[4096,768] act[768]", EPS},
    {&dsi_op_rms_norm_backward, "768", "act[4096,768] act[4096,768] act[768] stat[4096]",
     .forward = RMS_STATS},
    {&dsi_op_activation, "GELU", "act[4096,3072]", ACT(GELU_TANH)},
    {&dsi_op_activation_backward, "GELU", "act[4096,3072] act[4096,3072]", ACT(GELU_TANH)},
    {&dsi_op_glu, "SwiGLU", "act[4096,2048] act[4096,2048]", ACT(SILU)},
    {&dsi_op_glu_backward, "SwiGLU", "act[4096,2048] act[4096,2048] act[4096,2048]", ACT(SILU)},
    {&dsi_op_rope, "12 heads", "act[4,1024,768] f32[4,1024,64]",
     ATTRS(dsi_rope_attrs, .head_dim = 64)},
    {&dsi_op_attention, "1024", "act[4,1024,2304]", ATT(GPT2)},
    {&dsi_op_attention_backward, "1024",
     "act[4,1024,768] act[4,1024,2304] - - act[4,1024,768] stat[4,12,1024]", ATT(GPT2),
     .forward = ATT_PACKED(ATT(GPT2))},
    {&dsi_op_linear_cross_entropy, "50257", "act[4096,768] act[50257,768] i32[4096]<50257", CE(0)},
    {&dsi_op_linear_cross_entropy_backward, "50257",
     "stat[]=1 act[4096,768] act[50257,768] i32[4096]<50257 stat[4096]=10 stat[]=4096", CE(0)},
    {&dsi_op_softmax, "1024", "act[4096,1024]"},
    {&dsi_op_dropout, "768", "act[4,1024,768] i64[4]r", ATTRS(dsi_dropout_attrs, .p = 0.1)},
    {&dsi_op_add, "768", "act[4096,768] act[4096,768]"},
    {&dsi_op_cast, "to f32", "act[4096,3072]", ATTRS(dsi_cast_attrs, .dtype = DS_DTYPE_F32)},
    {&dsi_op_accumulate, "f32", "f32[4096,3072] act[4096,3072]"},
    {&dsi_op_abs_max, "f32", "f32[8000000]", .flags = OP_F32},
    {&dsi_op_sum_squares, "f32", "f32[8000000] f32[]=6", .flags = OP_F32},
    {&dsi_op_adam, "AdamW with master",
     "act[8000000] f32[8000000] f32[8]h f32[]=1 f32[8000000] f32[8000000] f32[8000000]+",
     OPTIM(.adamw = 1), .flags = OP_BF16 | OP_F16},
    {&dsi_op_adam, "AdamW",
     "f32[8000000] f32[8000000] f32[8]h f32[]=1 - f32[8000000] f32[8000000]+", OPTIM(.adamw = 1),
     .flags = OP_F32},
    {0},
};
