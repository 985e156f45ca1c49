/* SPDX-License-Identifier: Apache-2.0 */
/* Cells and outputs that the host reads, writes and exchanges between phases, wherever they live.
 * See exec.h.
 */
#include "exec/exec_state.h"

#include "base/process_memory.h"

#include <string.h>

void dsi_exec_exchange(dsi_exec *exec, const ds_cell *a, const ds_cell *b, uint32_t n)
{
    exec->n_known = 0;
    (void)dsi_exec_look(exec); /* the next call reports */
    for (uint32_t i = 0; i < n; ++i) {
        if (dsi_exec_is_swapped(exec, a[i])) {
            dsi_exec_note_written(exec);
            dsi_swap_exchange(exec->swap, a[i], b[i]);
        } else {
            void *data = exec->cell_data[a[i]];
            exec->cell_data[a[i]] = exec->cell_data[b[i]];
            exec->cell_data[b[i]] = data;
        }
    }
    if (exec->swap != NULL) {
        dsi_swap_place_parts(exec->swap, exec->residencies);
    }
    dsi_exec_relink(exec);
}

void dsi_exec_set_slot(dsi_exec *exec, uint32_t slot)
{
    exec->slot = slot < exec->n_slots ? slot : 0;
}

/* On the device, in the slot that is set. */
static void *data_of(const dsi_exec *exec, ds_cell cell)
{
    return dsi_exec_cell_of(exec, cell, exec->slot);
}

ds_status dsi_exec_read(dsi_exec *exec, ds_cell cell, size_t offset, void *data, size_t bytes)
{
    DS_TRY(dsi_exec_arrive(exec));
    if (dsi_exec_is_swapped(exec, cell)) {
        DS_TRY(dsi_exec_drain(exec));
        return dsi_swap_read(exec->swap, cell, offset, data, bytes);
    }
    return exec->accel->memory->copy(exec->device, data,
                                     (const unsigned char *)data_of(exec, cell) + offset, bytes);
}

/* Somebody else writes the cell. */
static void forget_known(dsi_exec *exec, ds_cell cell)
{
    for (uint32_t i = 0; i < exec->n_known; ++i) {
        exec->known[i].bytes = exec->known[i].cell == cell ? 0 : exec->known[i].bytes;
    }
}

ds_status dsi_exec_write(dsi_exec *exec, ds_cell cell, size_t offset, const void *data,
                         size_t bytes)
{
    forget_known(exec, cell);
    DS_TRY(dsi_exec_arrive(exec));
    if (dsi_exec_is_swapped(exec, cell)) {
        dsi_exec_note_written(exec);
        DS_TRY(dsi_exec_drain(exec));
        return dsi_swap_write(exec->swap, cell, offset, data, bytes);
    }
    return exec->accel->memory->copy(exec->device, (unsigned char *)data_of(exec, cell) + offset,
                                     data, bytes);
}

ds_status dsi_exec_copy(dsi_exec *exec, ds_cell cell, size_t from, size_t to, size_t bytes)
{
    if (dsi_exec_is_swapped(exec, cell) || (from < to + bytes && to < from + bytes)) {
        return ds_fail(exec->ctx, DS_ERR_STATE,
                       "cell %u: bytes %zu to %zu are not copied to %zu: %s", cell, from,
                       from + bytes, to,
                       dsi_exec_is_swapped(exec, cell) ? "the cell is swapped" : "they overlap");
    }
    forget_known(exec, cell);
    DS_TRY(dsi_exec_arrive(exec));
    unsigned char *data = data_of(exec, cell);
    return exec->accel->memory->copy(exec->device, data + to, data + from, bytes);
}

/* What is known of a cell; a row for it; NULL when there is no room. */
static dsi_exec_known *known_of(dsi_exec *exec, ds_cell cell)
{
    uint32_t i = 0;
    while (i < exec->n_known && exec->known[i].cell != cell) {
        ++i;
    }
    if (i == exec->n_known && i < EXEC_MAX_KNOWN) {
        exec->known[exec->n_known++] = (dsi_exec_known){.cell = cell};
    }
    return i < EXEC_MAX_KNOWN ? &exec->known[i] : NULL;
}

ds_status dsi_exec_write_known(dsi_exec *exec, ds_cell cell, const void *data, size_t bytes)
{
    dsi_exec_known *known =
        exec->n_slots > 1 || bytes > EXEC_KNOWN_BYTES ? NULL : known_of(exec, cell);
    if (known != NULL && known->bytes == bytes && memcmp(known->data, data, bytes) == 0) {
        return DS_OK;
    }
    exec->n_known_writes += 1;
    DS_TRY(dsi_exec_write(exec, cell, 0, data, bytes));
    if (known != NULL) {
        memcpy(known->data, data, bytes);
        known->bytes = bytes;
    }
    return DS_OK;
}

uint64_t dsi_exec_known_writes(const dsi_exec *exec)
{
    return exec->n_known_writes;
}

ds_status dsi_exec_clear(dsi_exec *exec, ds_cell cell)
{
    const size_t bytes = ds_meta_bytes(ds_cells_get(exec->cells, cell)->meta);
    forget_known(exec, cell);
    DS_TRY(dsi_exec_arrive(exec));
    if (dsi_exec_is_swapped(exec, cell)) {
        dsi_exec_note_written(exec);
        DS_TRY(dsi_exec_drain(exec));
        return dsi_swap_clear(exec->swap, cell);
    }
    return exec->accel->memory->fill(exec->device, data_of(exec, cell), 0, bytes);
}

bool dsi_exec_is_swapped(const dsi_exec *exec, ds_cell cell)
{
    return dsi_exec_residency_of(exec, cell).where != DSI_RESIDENCY_DEVICE;
}

size_t dsi_exec_host_bytes(const dsi_exec *exec)
{
    return dsi_swap_host_bytes(exec->swap);
}

size_t dsi_exec_disk_bytes_of(const dsi_exec *exec, dsi_swap_content content)
{
    return dsi_swap_disk_bytes_of(exec->swap, content);
}

size_t dsi_exec_disk_bytes(const dsi_exec *exec)
{
    return dsi_swap_disk_bytes(exec->swap);
}

double dsi_exec_swap_waited(const dsi_exec *exec)
{
    return dsi_swap_waited(exec->swap);
}

/* Where the host sees an address of device memory, or NULL. */
static void *view_of(const dsi_exec *exec, void *memory)
{
    return memory != NULL && dsi_exec_is_on_host(exec) ? memory : NULL;
}

void *dsi_exec_host_view(const dsi_exec *exec, ds_cell cell)
{
    return cell < exec->n_cells ? view_of(exec, data_of(exec, cell)) : NULL;
}

size_t dsi_exec_resident_of(const dsi_exec *exec, ds_cell cell)
{
    const size_t bytes = ds_meta_bytes(ds_cells_get(exec->cells, cell)->meta);
    const dsi_cell_residency residency = dsi_exec_residency_of(exec, cell);
    size_t sum = 0;
    if (residency.where == DSI_RESIDENCY_HOST) {
        for (uint32_t slot = 0; slot < (residency.per_slot ? exec->n_slots : 1); ++slot) {
            sum += dsi_resident_bytes(dsi_swap_host(exec->swap, cell, slot), bytes);
        }
        return sum;
    }
    const void *view = dsi_exec_host_view(exec, cell);
    if (view != NULL) {
        return dsi_resident_bytes(view, bytes);
    }
    return residency.where == DSI_RESIDENCY_DEVICE ? bytes
                                                   : 0; /* what the host cannot see is all there */
}

ds_status dsi_exec_write_real(dsi_exec *exec, ds_cell cell, double value)
{
    const float real = (float)value;
    return dsi_exec_write_known(exec, cell, &real, sizeof real);
}

static uint32_t slot_in(const dsi_exec *exec, const dsi_loaded *l)
{
    return exec->slot < l->plan->n_slots ? exec->slot : 0;
}

static ds_status find_output(const dsi_exec *exec, uint32_t id, const char *name, uint32_t *at_out)
{
    const dsi_plan *plan = exec->plans[id].plan;
    const dsi_plan_output *output = dsi_plan_find_output(plan, name);
    if (output == NULL) {
        return ds_fail(exec->ctx, DS_ERR_NOT_FOUND, "the plan has no output named %s", name);
    }
    *at_out = (uint32_t)(output - plan->outputs);
    return DS_OK;
}

ds_status dsi_exec_output(dsi_exec *exec, uint32_t id, const char *name, ds_tensor *tensor_out)
{
    uint32_t at = 0;
    DS_TRY(find_output(exec, id, name, &at));
    const dsi_loaded *l = &exec->plans[id];
    const dsi_ref *ref = &l->plan->outputs[at].ref;
    void *memory = dsi_exec_place_of(exec, l, ref, slot_in(exec, l));
    void *seen = view_of(exec, memory);
    DS_TRY(dsi_exec_arrive(exec));
    if (seen == NULL && memory != NULL) {
        seen = l->copies[at];
        DS_TRY(exec->accel->memory->copy(exec->device, seen, memory, ds_meta_bytes(ref->meta)));
    }
    *tensor_out = (ds_tensor){seen, ref->meta};
    return DS_OK;
}

/* Whether an output is one that dsi_exec_real returns. */
static bool is_real(const dsi_ref *ref)
{
    return ref->meta.dtype == DS_DTYPE_F32 && ds_shape_count(ref->meta.shape) == 1;
}

ds_status dsi_exec_keep_reals(const dsi_exec *exec, const dsi_loaded *l, ds_phase phase,
                              ds_accel_stream *stream)
{
    const uint32_t slot = dsi_phase_is_micro(&l->plan->phases, phase) ? slot_in(exec, l) : 0;
    const ds_accel *accel = exec->accel;
    for (uint32_t i = 0; i < l->plan->n_outputs; ++i) {
        const dsi_plan_output *output = &l->plan->outputs[i];
        const void *memory = dsi_exec_place_of(exec, l, &output->ref, slot);
        if (output->phase == phase && memory != NULL && is_real(&output->ref)) {
            float *to = &l->reals[(size_t)slot * l->plan->n_outputs + i];
            DS_TRY(stream != NULL ? accel->streams->copy(stream, to, memory, sizeof *to)
                                  : accel->memory->copy(exec->device, to, memory, sizeof *to));
        }
    }
    return DS_OK;
}

ds_status dsi_exec_real(dsi_exec *exec, uint32_t id, const char *name, double *value_out)
{
    uint32_t at = 0;
    DS_TRY(find_output(exec, id, name, &at));
    DS_TRY(dsi_exec_look(exec));
    const dsi_loaded *l = &exec->plans[id];
    const bool micro = dsi_phase_is_micro(&l->plan->phases, l->plan->outputs[at].phase);
    const uint32_t slot = micro ? slot_in(exec, l) : 0;
    *value_out = (double)l->reals[(size_t)slot * l->plan->n_outputs + at];
    return DS_OK;
}
