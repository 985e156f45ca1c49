/* SPDX-License-Identifier: Apache-2.0 */
/* Cells on disk of an accelerator with memory of its own: who moves them. The host does where it
 * reaches that memory (peer_view), the device itself with `aio.use_gds`. Called by exec_memory.c.
 */
#include "exec/exec_state.h"

/* ---- the accelerator's table, as the mover of asynchronous I/O ------------------------------- */

static ds_status open_file(void *user, int fd, const char *path, void **file_out)
{
    const dsi_exec *exec = user;
    ds_accel_file *file = NULL;
    DS_TRY(exec->accel->disks->open(exec->device, exec->ctx, fd, path, &file));
    *file_out = file;
    return DS_OK;
}

static void close_file(void *user, void *file)
{
    const dsi_exec *exec = user;
    ds_accel_file *own = file;
    exec->accel->disks->close(&own);
}

static int64_t move(void *user, void *file, bool write, void *memory, size_t bytes, uint64_t offset)
{
    const dsi_exec *exec = user;
    return exec->accel->disks->move(file, write, memory, bytes, offset);
}

/* ---- what is asked for ------------------------------------------------------------------------
 */

static ds_status find_mover(dsi_exec *exec)
{
    if (exec->accel->disks == NULL) {
        return ds_fail(exec->ctx, DS_ERR_UNSUPPORTED,
                       "aio.use_gds: the accelerator %s moves nothing between disk and device by "
                       "itself; set use_gds to false, or use the accelerator cuda",
                       exec->accel->name);
    }
    DS_TRY(exec->accel->disks->check(exec->device, exec->ctx));
    exec->mover = (dsi_aio_mover){.user = exec,
                                  .open = open_file,
                                  .close = close_file,
                                  .move = move,
                                  .text = exec->accel->disks->text};
    exec->swap_params.mover = &exec->mover;
    return DS_OK;
}

ds_status dsi_exec_find_mover(dsi_exec *exec, bool disk)
{
    if (exec->swap_params.use_gds) {
        return find_mover(exec);
    }
    if (disk && !dsi_exec_is_on_host(exec) && exec->accel->memory->peer_view == NULL) {
        return ds_fail(exec->ctx, DS_ERR_UNSUPPORTED,
                       "the host moves nothing between a disk and the accelerator %s; %soffload to "
                       "cpu instead of nvme, or use the accelerator cpu",
                       exec->accel->name,
                       exec->accel->disks != NULL ? "set aio.use_gds to true, " : "");
    }
    return DS_OK;
}

/* ---- memory that transfers reach --------------------------------------------------------------
 */

static ds_status map_block(dsi_exec *exec, uint32_t which, void *memory, size_t bytes)
{
    const ds_status status = exec->accel->disks->map(exec->device, exec->ctx, memory, bytes);
    if (status == DS_ERR_LIMIT) {
        ds_log(exec->ctx, DS_LOG_WARN, "aio.use_gds: %s", ds_ctx_error(exec->ctx));
        return DS_OK;
    }
    exec->mapped[which] = status >= 0 ? memory : NULL;
    return status;
}

ds_status dsi_exec_map_memory(dsi_exec *exec)
{
    if (exec->swap_params.mover == NULL || dsi_swap_disk_is_unused(exec->swap)) {
        return DS_OK;
    }
    DS_TRY(map_block(exec, 0, exec->map, exec->map_bytes));
    return exec->shared != NULL ? map_block(exec, 1, exec->shared, exec->shared_bytes) : DS_OK;
}

void dsi_exec_unmap_memory(dsi_exec *exec)
{
    for (uint32_t i = 0; i < sizeof exec->mapped / sizeof exec->mapped[0]; ++i) {
        if (exec->mapped[i] != NULL) {
            exec->accel->disks->unmap(exec->device, exec->mapped[i]);
            exec->mapped[i] = NULL;
        }
    }
}
