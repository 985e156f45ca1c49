/* SPDX-License-Identifier: Apache-2.0 */
/* A small checkpoint of many forms: tensors in slices of different cuts, of two dtypes, a scalar
 * and an empty one, and three states. Every value tells its step. */
#ifndef DS_TEST_CUT_SAVE_H
#define DS_TEST_CUT_SAVE_H

#include <deepspeed/checkpoint.h>

enum { CUT_ROWS = 6, CUT_COLUMNS = 5, CUT_COUNT = CUT_ROWS * CUT_COLUMNS };

/* Element i of the tensor "w". */
float cut_save_value(int step, int i);

/* Saves it under tag. */
ds_status cut_save(ds_ctx *ctx, const char *dir, const char *tag, int step);

/* Asserts that "w" of this kind has the values of the step. */
void cut_save_check(ds_ctx *ctx, ds_checkpoint *c, const char *kind, int step);

#endif
