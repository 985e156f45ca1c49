/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers in texts of flags and of the environment, read strictly: the whole text is one decimal
 * number, in range, or it is refused. No white space, hexadecimal, "inf" or "nan".
 */
#ifndef DSI_BASE_NUMBER_H
#define DSI_BASE_NUMBER_H

#include <deepspeed/context.h>
#include <stdbool.h>
#include <stdint.h>

/* A whole number from least to most. *value_out is written only on success. */
bool dsi_number_int(const char *text, int64_t least, int64_t most, int64_t *value_out);
/* A finite number: "1", "-2.5", "1e-3", ".5". */
bool dsi_number_real(const char *text, double *value_out);
/* The finite number that the text starts with, and where it ends; NULL: there is none. */
const char *dsi_number_start(const char *text, double *value_out);

/* A whole number from least to most in the environment; `absent` where the variable is not set or
 * empty. Errors: ERR_CONFIG (names the variable, what was expected and found). */
ds_status dsi_number_env(ds_ctx *ctx, const char *name, int64_t least, int64_t most, int64_t absent,
                         int64_t *value_out);

#endif
