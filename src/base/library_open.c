/* SPDX-License-Identifier: Apache-2.0 */
/* See library_open.h. */
#include "base/library_open.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, MOST_HEADERS = 1024 };

static bool read_at(int fd, void *into, size_t n, uint64_t at)
{
    return at <= INT64_MAX && pread(fd, into, n, (off_t)at) == (ssize_t)n;
}

/* What this process could load: other files are passed over by the loader, or refused by it. */
static bool read_header(int fd, Elf64_Ehdr *header)
{
    return read_at(fd, header, sizeof *header, 0) &&
           memcmp(header->e_ident, ELFMAG, SELFMAG) == 0 &&
           header->e_ident[EI_CLASS] == ELFCLASS64 && header->e_ident[EI_DATA] == ELFDATA2LSB;
}

static uint64_t larger(uint64_t end, uint64_t offset, uint64_t bytes)
{
    const bool is_odd = offset > INT64_MAX || bytes > INT64_MAX;
    return is_odd || offset + bytes < end ? end : offset + bytes;
}

/* The bytes that the file must have by its headers. */
static uint64_t promised(int fd, const Elf64_Ehdr *header)
{
    uint64_t end = larger(0, header->e_phoff, (uint64_t)header->e_phnum * header->e_phentsize);
    if (header->e_shoff != 0) {
        end = larger(end, header->e_shoff, (uint64_t)header->e_shnum * header->e_shentsize);
    }
    for (uint32_t i = 0; i < header->e_phnum && i < MOST_HEADERS; ++i) {
        Elf64_Phdr part;
        if (header->e_phentsize != sizeof part ||
            !read_at(fd, &part, sizeof part, header->e_phoff + i * sizeof part)) {
            break;
        }
        if (part.p_type == PT_LOAD) {
            end = larger(end, part.p_offset, part.p_filesz);
        }
    }
    return end;
}

typedef enum found {
    FOUND_NOTHING, /* no file, or one of another kind of machine, which the loader passes over */
    FOUND_ANY,     /* for dlopen to judge */
    FOUND_CUT      /* why says it */
} found;

static found look_at(const char *path, char *why, size_t n)
{
    Elf64_Ehdr header;
    struct stat about;
    found what = FOUND_ANY;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return FOUND_NOTHING;
    }
    if (fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && read_header(fd, &header)) {
        const uint64_t bytes = promised(fd, &header);
        if ((uint64_t)about.st_size < bytes) {
            (void)snprintf(why, n, "%.200s: the file is cut off: it has %lld bytes of %llu", path,
                           (long long)about.st_size, (unsigned long long)bytes);
            what = FOUND_CUT;
        }
    }
    (void)close(fd);
    return what;
}

/* The first file that the folders of LD_LIBRARY_PATH have. */
static found search(const char *name, char *why, size_t n)
{
    char path[PATH_BYTES];
    found what = FOUND_NOTHING;
    const char *folders = getenv("LD_LIBRARY_PATH");
    while (folders != NULL && folders[0] != '\0' && what == FOUND_NOTHING) {
        const size_t length = strcspn(folders, ":;");
        const bool is_here = length == 0; /* an empty folder is the working one */
        const int used = snprintf(path, sizeof path, "%.*s/%s", is_here ? 1 : (int)length,
                                  is_here ? "." : folders, name);
        if (used > 0 && (size_t)used < sizeof path) {
            what = look_at(path, why, n);
        }
        folders += length + (folders[length] != '\0');
    }
    return what;
}

void *dsi_library_open(const char *name, int mode, bool *there_out, char *why, size_t n)
{
    const bool is_path = strchr(name, '/') != NULL;
    const found what = is_path ? look_at(name, why, n) : search(name, why, n);
    *there_out = what != FOUND_NOTHING || (is_path && access(name, F_OK) == 0);
    if (what == FOUND_CUT) {
        return NULL;
    }
    void *object = dlopen(name, mode);
    if (object == NULL) {
        const char *text = dlerror();
        const size_t length = strlen(name);
        (void)snprintf(why, n, "%.300s", text != NULL ? text : name);
        /* Of a file that the loader has found it says the path. */
        *there_out =
            *there_out || (!is_path && (strncmp(why, name, length) != 0 || why[length] != ':'));
    }
    return object;
}
