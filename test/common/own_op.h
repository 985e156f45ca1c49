/* SPDX-License-Identifier: Apache-2.0 */
/* A custom operator with a parameter, stated in full, and the same without any fact. For tests.
 *
 * own_scale: x f32 (..,C), w f32 (C) → x·w. Its gradient for w is own_scale_dw: x, dy → sums over
 * rows, in row order.
 */
#ifndef DS_TEST_OWN_OP_H
#define DS_TEST_OWN_OP_H

#include <deepspeed/op.h>

extern const ds_op own_scale, own_scale_dw;
extern const ds_op own_plain, own_plain_dw; /* "own_plain …": neither class nor place rule */

#endif
