/* SPDX-License-Identifier: Apache-2.0 */
/* Products by cuBLASLt, where its library is: `linear` and `linear_dw` of a plan become calls of
 * it, by an algorithm that is asked for once for each product and kept. Shared by driver/lt_*.c and
 * driver_entry.c:
 *
 *     lt_api.h       the library's functions, by name
 *     lt_choice.c    which algorithm a product has; for plans, any thread
 *     lt_run.c       the calls
 *
 * Invariants:
 *  1. a product has one algorithm as long as the process lives, which its kernel's name states, so
 *     that ranks with other algorithms are refused when plans are compared (LAW 1, LAW 4);
 *  2. no algorithm adds in an order that is not its own: reductions are of the type that computes;
 *  3. a step creates nothing: descriptors are made with the choice, the workspace is the plan's.
 */
#ifndef DSC_LT_H
#define DSC_LT_H

#include "accel/cuda/driver/driver_device.h"
#include "accel/cuda/driver/lt_api.h"

/* D (m,n) = op(A)·op(B) [+ C] [+ bias over columns], column-major. */
typedef struct dsc_lt_product {
    int64_t m, n, k;
    ds_dtype in, out; /* of A and B; of C, D and bias */
    bool a_transposed, b_transposed, has_bias, adds;
} dsc_lt_product;

typedef struct dsc_lt_choice {
    ds_kernel kernel; /* first: the plan's pointer to it is one to the choice */
    char name[80];
    dsc_lt_product product;
    bool found; /* else the library has no algorithm for it */
    dsc_lt_algo algo;
    size_t work_bytes;
    dsc_lt_desc desc;
    dsc_lt_layout a, b, d; /* C has D's */
} dsc_lt_choice;

/* NULL with a reason when the library is not there. */
const dsc_lt_api *dsc_lt_load(const char **why_out);
/* The kernel of a step that is a product; NULL: another has to do it. */
const ds_kernel *dsc_lt_kernel(const ds_kernel_sig *sig);
/* Whatever choices keep of the device that they asked. */
void dsc_lt_forget_device(void);

/* What a step of the plan is as a product; false: none that this does. */
bool dsc_lt_product_of(const ds_kernel_sig *sig, dsc_lt_product *product_out);
/* ds_kernel.run of choices. */
ds_status dsc_lt_linear(const ds_kernel_call *call);
ds_status dsc_lt_linear_dw(const ds_kernel_call *call);
/* The choice made for a product; NULL: none was. */
const dsc_lt_choice *dsc_lt_find(const dsc_lt_product *product);
/* While a descriptor has a call's bias. */
void dsc_lt_lock(void);
void dsc_lt_unlock(void);

/* A line for lists: "cuBLASLt 13.1.0", or why there is none. */
void dsc_lt_say(char *text_out, size_t n);

/* "cublasLtMatmul: … (13)" */
ds_status dsc_lt_fail(ds_ctx *ctx, const dsc_lt_api *lt, dsc_lt_status status, const char *what);

#endif
