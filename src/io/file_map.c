/* SPDX-License-Identifier: Apache-2.0 */
/* Read-only maps of regular files. See file.h. The mapping is private; a file that another process
 * cuts short while it is mapped ends this one with SIGBUS, as for every user of mmap. */
#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static ds_status map_fd(ds_ctx *ctx, const char *path, int fd, dsi_map *map_out)
{
    struct stat st;
    if (fstat(fd, &st) != 0) {
        return dsi_io_fail(ctx, "read", path, errno);
    }
    if (!S_ISREG(st.st_mode)) {
        return ds_fail(ctx, DS_ERR_IO, "cannot read %s: it is %s, not a regular file", path,
                       S_ISDIR(st.st_mode) ? "a folder" : "a device or pipe");
    }
    dsi_map map = {.data = (const uint8_t *)"", .size = (size_t)st.st_size};
    if (map.size > 0) {
        void *data = mmap(NULL, map.size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED) {
            return dsi_io_fail(ctx, "map", path, errno);
        }
        map.data = data;
    }
    *map_out = map;
    return DS_OK;
}

ds_status dsi_map_open(ds_ctx *ctx, const char *path, uint32_t flags, dsi_map *map_out)
{
    const int no_link = (flags & DSI_MAP_NO_LINK) != 0 ? O_NOFOLLOW : 0;
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | no_link);
    if (fd < 0) {
        if (errno == ELOOP && no_link != 0) {
            return ds_fail(ctx, DS_ERR_IO, "cannot read %s: it is a symbolic link, expected a file",
                           path);
        }
        return dsi_io_fail(ctx, "open", path, errno);
    }
    const ds_status status = map_fd(ctx, path, fd, map_out);
    (void)close(fd);
    return status;
}

void dsi_map_close(dsi_map *map)
{
    if (map->size > 0) {
        (void)munmap((void *)(uintptr_t)map->data, map->size);
    }
    *map = (dsi_map){0};
}
