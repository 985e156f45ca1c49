/* SPDX-License-Identifier: Apache-2.0 */
/* Operators and kernels: the extension point for custom computations.
 *
 * An operator is one const struct with everything that is known of it apart from how it is
 * computed; a kernel computes one operator for some element types on one instruction set. Every
 * operator has a plain C reference kernel; faster ones are preferred when they support the case.
 */
#ifndef DEEPSPEED_OP_H
#define DEEPSPEED_OP_H

#include <deepspeed/graph.h>
#include <deepspeed/place.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DS_OP_VERSION 4u /* 4: ds_kernel says needs, a set of bits */

/* Attributes are a plain struct of int64_t and double fields, described by a table so that graphs
 * print, parse and hash. */
typedef enum ds_attr_type { DS_ATTR_INT, DS_ATTR_REAL } ds_attr_type;

typedef struct ds_attr {
    const char *name;
    ds_attr_type type;
    size_t offset;
} ds_attr;

/* One use of the shape rule. */
typedef struct ds_infer {
    ds_ctx *ctx; /* for ds_fail */
    const ds_op *op;
    const void *attrs; /* op->attrs_bytes bytes */
    uint32_t n_in;
    const ds_meta *in; /* dtype NONE where absent */
    uint32_t n_out;    /* in: op->n_out */
    ds_meta *out;      /* out: dtype NONE where absent */
} ds_infer;

/* One use of the gradient rule: emit nodes on `graph`, fill d_in. */
typedef struct ds_grad {
    ds_graph *graph;
    const ds_op *op;
    const void *attrs;
    uint32_t n_in;
    const ds_value *in; /* the node's inputs */
    const bool *needs;  /* input i wants a gradient */
    uint32_t n_out;
    const ds_value *out;   /* the node's outputs */
    const ds_value *d_out; /* their gradients, DS_NONE where none flows */
    ds_value *d_in;        /* out: gradients, DS_NONE where none. Parameter gradients are f32 */
} ds_grad;

typedef struct ds_cost {
    double flops;
    double bytes;    /* read and written once */
    double again;    /* the part of flops that repeats what the forward pass computed */
    int64_t m, n, k; /* of a product: rows, columns, summed length; of attention: queries of all
                        heads, keys, head dim. 0: not known, which counts as large */
} ds_cost;           /* zero when the rule is called */

/* Classes share one model of time. Products (LINEAR to ATTENTION_BACKWARD) are bound by arithmetic
 * and count as operations of the model (MFU); the others are bound by memory. */
#define DS_OP_CLASS_LIST(X)                                                                        \
    X(LINEAR, "linear")                                                                            \
    X(LINEAR_DW, "linear_dw")                                                                      \
    X(LOSS, "loss")                                                                                \
    X(LOSS_BACKWARD, "loss_backward")                                                              \
    X(ATTENTION, "attention")                                                                      \
    X(ATTENTION_BACKWARD, "attention_backward")                                                    \
    X(NORM, "norm")                                                                                \
    X(NORM_BACKWARD, "norm_backward")                                                              \
    X(ELEMENTWISE, "elementwise")                                                                  \
    X(EMBEDDING, "embedding")                                                                      \
    X(EMBEDDING_BACKWARD, "embedding_backward")                                                    \
    X(REDUCE, "reduce")                                                                            \
    X(OPTIMIZER, "optimizer")                                                                      \
    X(COPY, "copy")                                                                                \
    X(COMM, "comm")                                                                                \
    X(VIEW, "view")

typedef enum ds_op_class {
    DS_CLASS_UNSTATED, /* of a custom operator: ELEMENTWISE */
#define X(id, text) DS_CLASS_##id,
    DS_OP_CLASS_LIST(X)
#undef X
        DS_CLASS_COUNT
} ds_op_class;

/* What an operator is for. Passes, plans and the executor ask for it; all but COMPUTE belong to the
 * engine. */
typedef enum ds_op_role {
    DS_ROLE_UNSTATED,       /* of a custom operator: COMPUTE */
    DS_ROLE_COMPUTE,        /* part of a model or of its gradient */
    DS_ROLE_CAST,           /* another dtype, and nothing else */
    DS_ROLE_GRADIENT,       /* marks a complete gradient */
    DS_ROLE_STORE,          /* input 1 becomes the content of a cell */
    DS_ROLE_ACCUMULATE,     /* input 1 is added to a cell */
    DS_ROLE_WRITE,          /* writes part of a cell */
    DS_ROLE_MAGNITUDE,      /* largest magnitude of a gradient */
    DS_ROLE_NORM,           /* the rest of the norm of gradients */
    DS_ROLE_SELECT,         /* chooses and takes columns (ZenFlow) */
    DS_ROLE_POSTPONE,       /* sums gradients of a later update (ZenFlow) */
    DS_ROLE_UPDATE,         /* an optimizer's update of a parameter */
    DS_ROLE_TAKE_SLICE,     /* this rank's slice; nothing is sent */
    DS_ROLE_REDUCE_SCATTER, /* from here to GATHER_STORE: collectives */
    DS_ROLE_ALL_REDUCE,
    DS_ROLE_ALL_GATHER,
    DS_ROLE_ALL_TO_ALL,
    DS_ROLE_GATHER_STORE,
    DS_ROLE_SWAP_IN, /* between memory and where a cell lives */
    DS_ROLE_SWAP_OUT,
    DS_ROLE_DISPATCH_ROWS, /* collectives again: an all-to-all of rows, and the way back */
    DS_ROLE_RETURN_ROWS,
    DS_ROLE_SHIFT, /* a collective: to the next rank of the group, from the one before */
    DS_ROLE_COUNT
} ds_op_role;

/* Whether the backward pass rather runs the operator again than keeps its outputs, under
 * activation_checkpointing "selective" and its automatic form. */
typedef enum ds_op_again {
    DS_AGAIN_UNSTATED, /* of a custom operator: COSTLY */
    DS_AGAIN_CHEAP,    /* bound by memory: costs little beside what its outputs weigh */
    DS_AGAIN_COSTLY    /* its outputs are kept */
} ds_op_again;

enum {
    DS_OP_VIEW = 1,   /* output 0 is input 0's storage under another shape */
    DS_OP_RANDOM = 2, /* reads the random state input */
    DS_OP_SWAP = 16,  /* run by the executor between memory and where a cell lives; no kernels */
    DS_OP_COMM = 8,   /* run by the executor through the communicator; has no kernels */
    DS_OP_PARAMETER = 32, /* output 0 stands for the parameter that input 0 is or stands for: its
                             gradient is as wide as a parameter's */
    DS_OP_RANKS = 64,     /* between what ranks have of their own and what all have: lowered to
                             collectives or to nothing before a plan is made; has no kernels */
    DS_OP_INPLACE = 4 /* output 0 may overwrite input `inplace_in` when that dies here: same dtype
                         and shape, and its element i matters for element i of the output only */
};

struct ds_op {
    uint32_t version; /* DS_OP_VERSION */
    const char *name; /* unique, [a-z0-9_] */
    const char *doc;  /* inputs, outputs, attributes: one paragraph */
    uint32_t n_in_min, n_in_max;
    uint32_t n_out; /* most outputs */
    uint32_t flags;
    uint32_t inplace_in; /* of DS_OP_INPLACE; default 0 */
    size_t attrs_bytes;
    const ds_attr *attrs; /* n_attrs rows */
    uint32_t n_attrs;
    const int8_t
        *writes; /* NULL, or n_out entries: the input whose cell output i writes, -1 none */
    ds_status (*infer)(ds_infer *call);
    ds_status (*grad)(ds_grad *call);                      /* NULL: no gradient flows through */
    void (*cost)(const ds_infer *call, ds_cost *cost_out); /* NULL: bytes of all operands */
    const struct ds_kernel *const *kernels; /* of a custom op: NULL-terminated, best first; NULL for
                                               built-ins */
    ds_op_class op_class;       /* default ELEMENTWISE; VIEW with DS_OP_VIEW and only then */
    ds_op_role role;            /* of a custom op: COMPUTE or 0 */
    ds_op_again again;          /* default COSTLY */
    const ds_place_rule *place; /* NULL: runs on whole inputs on every rank, or on each
                                   data-parallel rank's own samples; see place.h */
    const struct ds_cuda_kernel *const *cuda; /* of a custom op, for the accelerator `cuda`:
                                                 NULL-terminated, best first; NULL: none. See
                                                 cuda_kernel.h */
    DS_RESERVED(7);
};

/* A built-in operator by name. For the gradient rule of a custom one: "add", "sub", "mul", "div",
 * "neg", "exp", "log", "sqrt", "tanh", "sigmoid", "relu", "square" and others that have no
 * attributes, whose doc says their operands; and for ds_graph_parse(): every one. NULL when there
 * is none of that name. Any thread. */
DS_API const ds_op *ds_op_find(const char *name);

/* What kernels need and machines have beyond plain C: a set of bits, in no order. Bits below 32 are
 * named here, of processors; those of DS_ISA_OWN an accelerator defines for itself (accel.h). */
typedef uint64_t ds_isa;
#define DS_ISA_REF         ((ds_isa)0) /* plain C */
#define DS_ISA_AVX2        ((ds_isa)1) /* with fma and f16c */
#define DS_ISA_AVX512      ((ds_isa)2)
#define DS_ISA_AVX512_BF16 ((ds_isa)4) /* dot products of pairs of bf16 */
#define DS_ISA_AMX         ((ds_isa)8)
#define DS_ISA_AVX512_VNNI ((ds_isa)16) /* products of bytes; a level before AVX512_BF16 */
#define DS_ISA_OWN(i)      ((ds_isa)1 << (32 + (i))) /* i below 32 */
/* The name of a set of one bit, "ref" of the empty one; NULL of others and of an accelerator's. */
DS_API const char *ds_isa_name(ds_isa bit);

/* What a kernel is chosen for. */
typedef struct ds_kernel_sig {
    const ds_op *op;
    const void *attrs;
    uint32_t n_in, n_out;
    const ds_meta *in; /* dtype NONE where absent */
    const ds_meta *out;
    uint32_t n_threads; /* the plan's; the split of work may depend on it */
} ds_kernel_sig;

/* One execution. Inputs and outputs are contiguous; a written cell is both input and output at the
 * same address. */
typedef struct ds_kernel_call {
    ds_ctx *ctx; /* for ds_fail, and for the thread pool */
    const ds_kernel_sig *sig;
    const ds_tensor *in;
    const ds_tensor *out;
    void *work; /* work_bytes(sig) bytes aligned to 64, contents undefined; NULL when 0 */
} ds_kernel_call;

typedef struct ds_kernel {
    uint32_t version; /* DS_OP_VERSION */
    const char *name; /* "ref", "avx512", "amx_packed": unique within the op */
    const char *op;   /* operator's name */
    ds_isa needs;     /* all of these, to run */
    bool (*supports)(const ds_kernel_sig *sig);     /* NULL: every signature that infer accepts */
    size_t (*work_bytes)(const ds_kernel_sig *sig); /* NULL: 0. Must not depend on data */
    ds_status (*run)(const ds_kernel_call *call);   /* no allocation, no clock, no global state */
} ds_kernel;

/* Runs fn(arg, task, thread) for each task in [0,n_tasks) on the context's threads. For kernels:
 * what a task computes may depend on its index only. */
DS_API void ds_parallel(ds_ctx *ctx, void (*fn)(void *arg, uint32_t task, uint32_t thread),
                        void *arg, uint32_t n_tasks);

#ifdef __cplusplus
}
#endif
#endif
