/* SPDX-License-Identifier: Apache-2.0 */
/* Measures memory, from /proc and mincore. See process_memory.h. */
#include "base/process_memory.h"

#include <fcntl.h>
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { FILE_BYTES = 8192, PAGES = 4096 };

/* A text file of /proc, by system calls alone. Empty when it cannot be read. */
static void read_text(const char *path, char text[FILE_BYTES])
{
    size_t n = 0;
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    while (file >= 0 && n + 1 < FILE_BYTES) {
        const ssize_t got = read(file, text + n, FILE_BYTES - 1 - n);
        if (got <= 0) {
            break;
        }
        n += (size_t)got;
    }
    if (file >= 0) {
        (void)close(file);
    }
    text[n] = '\0';
}

/* The bytes of a line "KEY:  123 kB". */
static size_t bytes_of(const char *text, const char *key)
{
    const size_t n = strlen(key);
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, n) == 0 && line[n] == ':') {
            return (size_t)strtoull(line + n + 1, NULL, 10) * 1024;
        }
    }
    return 0;
}

void dsi_process_memory_read(dsi_process_memory *memory_out)
{
    char text[FILE_BYTES];
    read_text("/proc/self/status", text);
    *memory_out = (dsi_process_memory){.anonymous = bytes_of(text, "RssAnon"),
                                       .files = bytes_of(text, "RssFile"),
                                       .shared = bytes_of(text, "RssShmem"),
                                       .peak = bytes_of(text, "VmHWM")};
    if (memory_out->shared > 0) { /* of what several map, the share: slower to ask for */
        read_text("/proc/self/smaps_rollup", text);
        const size_t share = bytes_of(text, "Pss_Shmem");
        memory_out->shared = share > 0 ? share : memory_out->shared;
    }
    read_text("/proc/meminfo", text);
    const size_t all = bytes_of(text, "MemTotal");
    const size_t free = bytes_of(text, "MemAvailable");
    memory_out->machine_memory = all;
    memory_out->machine_used = all > free ? all - free : 0;
}

void dsi_process_memory_trim(void)
{
#if defined(__GLIBC__)
    (void)malloc_trim(0);
#endif
}

void dsi_process_memory_release(const void *data, size_t bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t begin = (uintptr_t)data / page * page;
    if (bytes > 0) {
        (void)madvise((void *)begin, (uintptr_t)data + bytes - begin, MADV_DONTNEED);
    }
}

size_t dsi_resident_bytes(const void *data, size_t bytes)
{
    unsigned char in[PAGES];
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t begin = (uintptr_t)data;
    const uintptr_t end = begin + bytes;
    size_t sum = 0;
    for (uintptr_t at = begin / page * page; at < end; at += PAGES * page) {
        const uintptr_t left = (end - at + page - 1) / page;
        const size_t n = left < PAGES ? left : PAGES;
        if (mincore((void *)at, n * page, in) != 0) {
            return 0;
        }
        for (size_t i = 0; i < n; ++i) {
            const uintptr_t first = at + i * page > begin ? at + i * page : begin;
            const uintptr_t last = at + (i + 1) * page < end ? at + (i + 1) * page : end;
            sum += (in[i] & 1) != 0 ? last - first : 0;
        }
    }
    return sum;
}
