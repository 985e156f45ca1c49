/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the note NT_GNU_BUILD_ID from the loaded object. */
#include "base/build_id.h"

#include <elf.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct search {
    uintptr_t inside; /* an address of this code */
    char *text;
    size_t n;
} search;

static size_t padded(size_t n)
{
    return (n + 3) / 4 * 4;
}

static void read_notes(search *s, const unsigned char *note, size_t bytes)
{
    while (bytes >= sizeof(ElfW(Nhdr))) {
        ElfW(Nhdr) head;
        memcpy(&head, note, sizeof head);
        const size_t skip = sizeof head + padded(head.n_namesz);
        const size_t whole = skip + padded(head.n_descsz);
        if (whole > bytes) {
            return;
        }
        if (head.n_type == NT_GNU_BUILD_ID && head.n_namesz == 4 &&
            memcmp(note + sizeof head, "GNU", 4) == 0) {
            for (size_t i = 0; i < head.n_descsz && 2 * i + 2 < s->n; ++i) {
                (void)snprintf(s->text + 2 * i, 3, "%02x", note[skip + i]);
            }
            return;
        }
        note += whole;
        bytes -= whole;
    }
}

static int visit(struct dl_phdr_info *info, size_t size, void *user)
{
    search *s = user;
    bool inside = false;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const ElfW(Phdr) *head = &info->dlpi_phdr[i];
        const uintptr_t begin = info->dlpi_addr + head->p_vaddr;
        inside = inside || (head->p_type == PT_LOAD && s->inside >= begin &&
                            s->inside - begin < head->p_memsz);
    }
    for (int i = 0; inside && i < info->dlpi_phnum; ++i) {
        const ElfW(Phdr) *head = &info->dlpi_phdr[i];
        if (head->p_type == PT_NOTE) {
            const uintptr_t at = info->dlpi_addr + head->p_vaddr;
            read_notes(s, (const unsigned char *)at, head->p_memsz);
        }
    }
    return inside ? 1 : 0;
}

void dsi_build_id(char *text, size_t n)
{
    search s = {.inside = (uintptr_t)&dsi_build_id, .text = text, .n = n};
    text[0] = '\0';
    (void)dl_iterate_phdr(visit, &s);
}
