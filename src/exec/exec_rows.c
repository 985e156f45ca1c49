/* SPDX-License-Identifier: Apache-2.0 */
/* All-to-alls of rows: how much goes to and comes from each rank is known when the step starts,
 * from a table of all ranks' offsets that a step before has made. Rank i's row of the table has the
 * offsets of its rows, sorted by expert; of E experts a rank has E/n, in the order of ranks. So
 * every rank knows what all others send, and nothing is asked.
 */
#include "exec/exec_state.h"

#include "op/ops.h"

#include <string.h>

static ds_status check_table(const dsi_exec *exec, const int32_t *table, int64_t n_ranks, int64_t n)
{
    for (int64_t i = 0; i < n_ranks * n; ++i) {
        const int64_t least = i % n == 0 ? 0 : table[i - 1];
        if (table[i] < least || (i % n == 0 && table[i] != 0)) {
            return ds_fail(exec->ctx, DS_ERR_ARG,
                           "rank %lld of the experts' group says that its rows for expert %lld "
                           "begin at %d, expected at least %lld",
                           (long long)(i / n), (long long)(i % n), table[i], (long long)least);
        }
    }
    return DS_OK;
}

static ds_status check_room(const dsi_exec *exec, const char *what, size_t n, size_t room)
{
    return n <= room
               ? DS_OK
               : ds_fail(exec->ctx, DS_ERR_ARG,
                         "%zu elements of rows are %s, but there is room for %zu", n, what, room);
}

static bool is_of_rows(const dsi_step *step)
{
    return step->op->role == DS_ROLE_DISPATCH_ROWS || step->op->role == DS_ROLE_RETURN_ROWS;
}

size_t dsi_exec_n_table(const dsi_plan *plan)
{
    size_t most = 0;
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        const dsi_step *step = &plan->steps[s];
        const size_t n = is_of_rows(step) && step->kind != DSI_STEP_WAIT
                             ? (size_t)ds_shape_count(plan->refs[step->in_at].meta.shape)
                             : 0;
        most = n > most ? n : most;
    }
    return most;
}

/* Whether the host reaches memory of the device, by itself or by peer_view. */
static bool is_reached(const dsi_exec *exec)
{
    return dsi_exec_is_on_host(exec) || exec->accel->groups == NULL;
}

static ds_status read_table(const dsi_exec *exec, const dsi_loaded *l, const ds_tensor *t,
                            const int32_t **table_out)
{
    if (is_reached(exec)) {
        *table_out = dsi_exec_peer_view(exec, t->data);
        return DS_OK;
    }
    *table_out = l->table;
    return exec->accel->memory->copy(exec->device, l->table, t->data, ds_meta_bytes(t->meta));
}

/* Zeros, in what a step makes. */
static ds_status clear(const dsi_exec *exec, void *memory, size_t at, size_t bytes)
{
    if (is_reached(exec)) {
        memset((char *)dsi_exec_peer_view(exec, memory) + at, 0, bytes);
        return DS_OK;
    }
    return exec->accel->memory->fill(exec->device, (char *)memory + at, 0, bytes);
}

ds_status dsi_exec_count_rows(const dsi_exec *exec, const dsi_loaded *l, uint32_t s, uint32_t slot)
{
    const dsi_step *step = &l->plan->steps[s];
    const bool returns = step->op->role == DS_ROLE_RETURN_ROWS;
    if (!is_of_rows(step)) {
        return DS_OK;
    }
    const size_t refs = (size_t)slot * l->plan->n_refs; /* of slots before */
    const ds_tensor *in = &l->tensors[refs + step->in_at];
    const ds_tensor *out = &l->tensors[refs + step->out_at];
    const int32_t *table = NULL;
    const int64_t n = in[0].meta.shape.dims[1];
    const int64_t n_ranks = ((const dsi_comm_attrs *)step->attrs)->n_ranks;
    const int64_t each = (n - 1) / n_ranks;
    const int64_t own = l->comms[s]->rank;
    const size_t width = (size_t)in[1].meta.shape.dims[1];
    size_t *counts = l->counts + (l->parts[refs + step->in_at].counts_in - l->counts);
    size_t total[2] = {0, 0}; /* sent away, and for the own experts */
    DS_TRY(read_table(exec, l, &in[0], &table));
    DS_TRY(check_table(exec, table, n_ranks, n));
    for (int64_t r = 0; r < n_ranks; ++r) {
        const int32_t *there = table + own * n + r * each;
        const int32_t *here = table + r * n + own * each;
        const size_t away = (size_t)(there[each] - there[0]) * width;
        const size_t come = (size_t)(here[each] - here[0]) * width;
        counts[returns ? n_ranks + r : r] = away;
        counts[returns ? r : n_ranks + r] = come;
        total[0] += away;
        total[1] += come;
    }
    const size_t room_in = (size_t)ds_shape_count(in[1].meta.shape);
    const size_t room_out = (size_t)ds_shape_count(out->meta.shape);
    DS_TRY(check_room(exec, "sent", total[returns ? 1 : 0], room_in));
    DS_TRY(check_room(exec, "received", total[returns ? 0 : 1], room_out));
    if (returns && total[0] < room_out) { /* rows that no expert took */
        const size_t element = ds_dtype_bytes(out->meta.dtype);
        DS_TRY(clear(exec, out->data, total[0] * element, (room_out - total[0]) * element));
    }
    return DS_OK;
}
