/* SPDX-License-Identifier: Apache-2.0 */
/* What carries a state from token to token, of the tokens of many sequences in a row: as
 * causal_conv_step and delta_rule_step of each sequence by itself, to the same bits, however its
 * tokens are spread over batches. */
#ifndef DSI_OP_PAGED_STATE_H
#define DSI_OP_PAGED_STATE_H

#include <deepspeed/op.h>

/* Both: sequence i32 (T), each token's row of the cell, -1: none; positions i32 (1,T). The tokens
 * of one sequence are neighbours at positions in a row. Its row goes on with them, from zeros where
 * the first of them is position 0. A token of none changes nothing, and its y is zeros. */

/* paged_causal_conv: x (1,T,C), w (C,1,K), cell (S,K-1,C), sequence, positions → y (1,T,C), the
 * cell's next version. */
extern const ds_op dsi_op_paged_causal_conv;
/* paged_delta_rule: q, k, v, g, beta with B = 1, cell f32 (S,H,D,V), sequence, positions → y, the
 * cell's next version. Attributes of delta_rule. */
extern const ds_op dsi_op_paged_delta_rule;

/* For their rules, and paged_attention's: input x is (1,T,..), a row of tokens; at `at` is the
 * sequence of each, i32 (T), then their positions, i32 (1,T). */
ds_status dsi_op_need_tokens(const ds_infer *call, uint32_t x, const char *name, uint32_t at);

#endif
