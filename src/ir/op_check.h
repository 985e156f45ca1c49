/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the facts that an operator states are sound: class, role, place rule, reserved words.
 *
 * Called by ds_graph_apply for custom operators, and by a test for each built-in one. Not whether
 * they are true: test_rules runs what the rules allow.
 */
#ifndef DSI_IR_OP_CHECK_H
#define DSI_IR_OP_CHECK_H

#include <deepspeed/op.h>

/* Errors: ERR_ARG names operator and field. What is not stated (0, NULL) is sound. */
ds_status dsi_op_check(ds_ctx *ctx, const ds_op *op);

#endif
