/* SPDX-License-Identifier: Apache-2.0 */
/* The operator harness: cases of every operator, run on every kernel.
 *
 * A case is a row of the table in op_cases.c: an operator, attributes, and operands in a small
 * notation. Modes: compare every kernel of this machine with the reference (harness_compare.c),
 * compare gradient rules with finite differences in fp64 (harness_grad.c), and time
 * (bench/bench_op.c). A new kernel needs nothing here: the registry is asked for it. A new operator
 * needs a row.
 *
 * Operands, separated by blanks; "-" is an absent one, else TYPE[dims]FILL:
 *   TYPE  act (the dtype under test), stat (f32; f64 in fp64 runs), f32, f64, bf16, i32, i64, u8,
 *         bool
 *   FILL  nothing: normal deviates; ~S: those times S; +: uniform in [0.25,1.25)
 *         0: zeros; =S: S everywhere; <N: integers in [0,N); <Nm: and every fifth is -100
 *         s: each of [0,n) once; oN: i32 (E+1) ascending, 0 to N; eN: likewise in about equal steps
 *         p: i32 (B,T) positions 0,1,…; pN: from N on; PN: in two runs, the second T behind its
 *         place; d: i32 (B,T) first visible key of documents of 5 tokens
 *         r: the random state; h: an optimizer's hyper; k: the packed matrix of the case
 */
#ifndef DS_TEST_OP_HARNESS_H
#define DS_TEST_OP_HARNESS_H

#include "op/ops.h"

/* Runs `op` on operands of the case first (in[i] = operand from[i]) and puts its outputs where they
 * are saved (operand to[o], or -1): so that a backward operator gets consistent statistics. */
typedef struct op_forward {
    const ds_op *op;
    const void *attrs;
    uint32_t n_in;
    int8_t from[DS_MAX_IN]; /* -1: absent */
    int8_t to[DS_MAX_OUT];  /* -1: not saved; every entry up to op->n_out is read */
} op_forward;

enum { OP_F32 = 1, OP_BF16 = 2, OP_F16 = 4, OP_EXACT = 8, OP_NO_GRAD = 16 };

typedef struct op_case {
    const ds_op *op;
    const char *label;
    const char *in;
    const void *attrs;
    uint32_t flags; /* dtypes (none: all three), OP_EXACT: every kernel gives the reference's bits,
                       OP_NO_GRAD: not differentiable here though the operator is */
    double loose;   /* factor on the tolerance; 0 means 1 */
    const op_forward *forward; /* or NULL */
    uint32_t frozen;           /* mask of operands without gradient */
} op_case;

/* The table; op NULL ends it. */
extern const op_case op_cases[];
/* Shapes of GPT-2 124M, sequence 1024, for timing. */
extern const op_case op_bench_cases[];

/* Everything to run one case in one dtype. Owned memory has a canary behind each tensor. */
typedef struct op_operands {
    const op_case *c;
    ds_dtype act;
    ds_kernel_sig sig;
    ds_meta in_meta[DS_MAX_IN], out_meta[DS_MAX_OUT];
    ds_tensor in[DS_MAX_IN], out[DS_MAX_OUT];
    void *original[DS_MAX_IN]; /* what in[] is reset to before each run */
} op_operands;

/* Parses, allocates, fills, runs `forward`. An error is in ctx. */
ds_status op_operands_create(ds_ctx *ctx, const op_case *c, ds_dtype act, op_operands *o_out);
void op_operands_destroy(op_operands *o);
/* Runs `forward` again, on original[] as it is now. */
ds_status op_operands_forward(ds_ctx *ctx, op_operands *o);
/* Resets inputs, poisons outputs and workspace, runs. in_place: output 0 over input 0. A written
 * canary is ERR_INTERNAL. */
ds_status op_operands_run(ds_ctx *ctx, op_operands *o, const ds_kernel *kernel, bool in_place);
/* The kernel named "ref" for a signature, of the fp64 twins when it has f64 activations. */
const ds_kernel *op_reference(const ds_kernel_sig *sig);
double op_element(const ds_tensor *t, int64_t i);
ds_dtype op_case_dtype(const op_case *c,
                       uint32_t i); /* i-th dtype of the case, NONE past the last */

/* Modes. 0 when all is well; failures are printed, and counted. */
int op_compare_case(ds_ctx *one_thread, ds_ctx *three_threads, const op_case *c);
/* The same of the kernels at(sig, 0), at(sig, 1), … up to NULL. *n_inout: counts them. */
typedef const ds_kernel *(*op_kernel_at)(const ds_kernel_sig *sig, uint32_t index);
int op_compare_kernels(ds_ctx *one_thread, ds_ctx *three_threads, const op_case *c, op_kernel_at at,
                       uint32_t *n_inout);
int op_grad_case(ds_ctx *ctx, const op_case *c);

#endif
