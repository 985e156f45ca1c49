/* SPDX-License-Identifier: Apache-2.0 */
/* take_slice and take_term: what this rank has of a whole tensor. Nothing is sent. At once, or on a
 * stream. Called by exec_run.c and exec_stream.c.
 *
 * Invariant: behind a slice stand zeros. What is no term is what changes no bit of a sum: -0, since
 * +0 + -0 is +0 and -0 + x is x for every x.
 */
#include "exec/exec_state.h"
#include "op/ops.h"

typedef struct target {
    const dsi_exec *exec;
    ds_accel_stream *stream; /* NULL: at once */
} target;

static ds_status copy(const target *t, void *to, const void *from, size_t bytes)
{
    return t->stream != NULL ? t->exec->accel->streams->copy(t->stream, to, from, bytes)
                             : t->exec->accel->memory->copy(t->exec->device, to, from, bytes);
}

static ds_status fill_zero(const target *t, void *to, size_t bytes)
{
    return t->stream != NULL ? t->exec->accel->streams->fill(t->stream, to, 0, bytes)
                             : t->exec->accel->memory->fill(t->exec->device, to, 0, bytes);
}

/* Accelerators fill with one byte, and -0 has more: one element from the host, then doubled. */
static ds_status fill_minus_zero(const target *t, unsigned char *to, size_t width, size_t bytes)
{
    static const unsigned char last[8] = {0, 0, 0, 0, 0, 0, 0, 0x80};
    DS_TRY(bytes > 0 ? copy(t, to, last + sizeof last - width, width) : DS_OK);
    for (size_t n = width; n < bytes; n *= 2) {
        DS_TRY(copy(t, to + n, to, bytes - n < n ? bytes - n : n));
    }
    return DS_OK;
}

static ds_status take_term(const target *t, bool first, const ds_tensor *x, const ds_tensor *term)
{
    const size_t bytes = ds_meta_bytes(x->meta);
    return first ? copy(t, term->data, x->data, bytes)
                 : fill_minus_zero(t, term->data, ds_dtype_bytes(x->meta.dtype), bytes);
}

static ds_status take_slice(const target *t, uint32_t rank, const ds_tensor *x,
                            const ds_tensor *slice)
{
    const size_t size = ds_dtype_bytes(x->meta.dtype);
    const size_t count = (size_t)ds_shape_count(x->meta.shape);
    const size_t length = (size_t)ds_shape_count(slice->meta.shape);
    const size_t begin = length * rank < count ? length * rank : count;
    const size_t n = count - begin < length ? count - begin : length;
    unsigned char *to = slice->data;
    DS_TRY(copy(t, to, (const unsigned char *)x->data + begin * size, n * size));
    return fill_zero(t, to + n * size, (length - n) * size);
}

ds_status dsi_exec_take(const dsi_exec *exec, const dsi_loaded *l, uint32_t s,
                        ds_accel_stream *stream)
{
    const dsi_step *step = &l->plan->steps[s];
    const target t = {exec, stream};
    const uint32_t rank = l->comms[s]->rank;
    const ds_tensor *tensors =
        l->tensors + (size_t)dsi_exec_slot_of(exec, l, step) * l->plan->n_refs;
    const ds_tensor *x = &tensors[step->in_at];
    const ds_tensor *taken = &tensors[step->out_at];
    return step->op == &dsi_op_take_term ? take_term(&t, rank == 0, x, taken)
                                         : take_slice(&t, rank, x, taken);
}
