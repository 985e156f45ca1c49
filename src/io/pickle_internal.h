/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a pickle that is being run: shared by pickle.c, which reads opcodes, and
 * pickle_build.c, which makes values of globals. */
#ifndef DSI_IO_PICKLE_INTERNAL_H
#define DSI_IO_PICKLE_INTERNAL_H

#include "io/pickle.h"

/* Invariants: stack and memo hold no more than a value for each byte that was read; no value on the
 * stack below n is NULL; the mark is on the stack alone, never in a value or the memo. */
typedef struct dsi_pickle_machine {
    ds_ctx *ctx;
    const dsi_pickle_source *source;
    dsi_arena *arena;
    size_t at;     /* behind the bytes that were read */
    size_t opcode; /* place of the present opcode */
    dsi_pickle **stack;
    size_t n, room;
    dsi_pickle **memo;
    size_t n_memo;
    size_t n_memoized; /* by the opcode that counts by itself */
    bool framed;       /* protocol 4 */
} dsi_pickle_machine;

/* Records "FILE: byte N: what" and returns status. */
ds_status dsi_pickle_fail(const dsi_pickle_machine *m, ds_status status, const char *what);
/* A zeroed value; NULL with a recorded error when the arena is full. */
dsi_pickle *dsi_pickle_make(dsi_pickle_machine *m, dsi_pickle_kind kind);
/* Appends to a tuple, list or dict. */
ds_status dsi_pickle_append(dsi_pickle_machine *m, dsi_pickle *list, dsi_pickle *item);

/* What a global gives for its arguments (a tuple). */
ds_status dsi_pickle_reduce(dsi_pickle_machine *m, const dsi_pickle *callee, dsi_pickle *args,
                            dsi_pickle **value_out);
/* A new object of a class; its state may follow. */
ds_status dsi_pickle_new(dsi_pickle_machine *m, const dsi_pickle *cls, dsi_pickle *args,
                         dsi_pickle **value_out);
/* Gives a state to an object; a dict takes none. */
ds_status dsi_pickle_set_state(dsi_pickle_machine *m, dsi_pickle *object, dsi_pickle *state);
/* ("storage", type, key, device, count) → the storage. */
ds_status dsi_pickle_persistent(dsi_pickle_machine *m, const dsi_pickle *id,
                                dsi_pickle **value_out);

#endif
