/* SPDX-License-Identifier: Apache-2.0 */
/* The globals that a pickle may name, and what each means here. A name that is not in this list is
 * refused. Included by pickle.h. */
#ifndef DSI_IO_PICKLE_GLOBALS_H
#define DSI_IO_PICKLE_GLOBALS_H

#include <deepspeed/tensor.h>
#include <stddef.h>

typedef enum dsi_pickle_role {
    DSI_PICKLE_REBUILD,   /* (storage, offset, sizes, strides, requires_grad, hooks) → tensor */
    DSI_PICKLE_PARAMETER, /* (tensor, requires_grad, hooks) → the tensor */
    DSI_PICKLE_TYPED,     /* (rebuild, type, its arguments, state) → the tensor */
    DSI_PICKLE_ORDERED,   /* () or (pairs,) → dict */
    DSI_PICKLE_SIZE,      /* (extents,) → tuple */
    DSI_PICKLE_ENUM,      /* (number,) → the number */
    DSI_PICKLE_TYPE,      /* a storage's type: dtype, bytes */
    DSI_PICKLE_RECORD     /* any arguments and state → object */
} dsi_pickle_role;

typedef struct dsi_pickle_global {
    const char *module, *name;
    dsi_pickle_role role;
    ds_dtype dtype; /* of a TYPE; NONE: one that this library has not */
    size_t bytes;   /* an element of a TYPE */
} dsi_pickle_global;

/* NULL for one that is not in the list. The texts need no zero byte at their ends. */
const dsi_pickle_global *dsi_pickle_global_find(const char *module, size_t n_module,
                                                const char *name, size_t n_name);

#endif
