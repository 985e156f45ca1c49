/* SPDX-License-Identifier: Apache-2.0 */
/* Where the ranks of a Slurm step meet. See slurm_place.h. */
#include "comm/slurm_place.h"

#include "base/number.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_PORT = 29500, N_PORTS = 2000 };

bool dsi_slurm_first_host(const char *list, char *host, size_t n)
{
    size_t used = 0;
    for (const char *at = list; *at != '\0' && *at != ','; ++at) {
        if (*at != '[') {
            if (used + 1 < n) {
                host[used++] = *at;
            }
            continue;
        }
        for (++at; *at != '\0' && strchr("-,]", *at) == NULL; ++at) {
            if (used + 1 < n) {
                host[used++] = *at;
            }
        }
        at += strcspn(at, "]");
        if (*at == '\0') {
            return false;
        }
    }
    host[used] = '\0';
    return used > 0;
}

uint32_t dsi_slurm_tasks_of(const char *list, uint32_t node)
{
    unsigned long first = 0; /* node that the next number is of */
    while (list != NULL && *list >= '0' && *list <= '9') {
        char *end = NULL;
        const unsigned long tasks = strtoul(list, &end, 10);
        unsigned long nodes = 1;
        if (strncmp(end, "(x", 2) == 0) {
            nodes = strtoul(end + 2, &end, 10);
            end += *end == ')';
        }
        if (node >= first && node - first < nodes) {
            return tasks <= UINT32_MAX ? (uint32_t)tasks : 0;
        }
        first += nodes;
        list = *end == ',' ? end + 1 : NULL;
    }
    return 0;
}

/* 0 where it is not set; false: it is no number. */
static bool number(const char *name, int64_t *value_out)
{
    const char *text = getenv(name);
    *value_out = 0;
    return text == NULL || dsi_number_int(text, 0, UINT32_MAX, value_out);
}

bool dsi_slurm_place(char *host, size_t n, uint16_t *port_out)
{
    const char *list = getenv("SLURM_STEP_NODELIST");
    if (list == NULL || getenv("SLURM_PROCID") == NULL || !dsi_slurm_first_host(list, host, n)) {
        return false;
    }
    int64_t job = 0;
    int64_t step = 0;
    if (!number("SLURM_JOB_ID", &job) || !number("SLURM_STEP_ID", &step)) {
        return false;
    }
    *port_out = (uint16_t)(FIRST_PORT + (job * 31 + step) % N_PORTS);
    return true;
}
