/* SPDX-License-Identifier: Apache-2.0 */
/* See machine_id.h. */
#include "base/machine_id.h"

#include "base/clock.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include <xxhash.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint64_t own;

/* Without the system's numbers: no two processes of a machine have both of these. */
static uint64_t random_number(void)
{
    uint64_t number = 0;
    if (getrandom(&number, sizeof number, 0) != (ssize_t)sizeof number) {
        const double words[2] = {dsi_clock_seconds(), (double)getpid()};
        number = XXH3_64bits(words, sizeof words);
    }
    return number;
}

uint64_t dsi_machine_id_of(const char *path)
{
    char line[64] = "";
    FILE *file = fopen(path, "re");
    if (file != NULL) {
        (void)!fgets(line, sizeof line, file);
        (void)fclose(file);
    }
    line[strcspn(line, "\n")] = '\0';
    return line[0] != '\0' ? XXH3_64bits(line, strlen(line)) : random_number();
}

static void read_own(void)
{
    own = dsi_machine_id_of("/proc/sys/kernel/random/boot_id");
}

uint64_t dsi_machine_id(void)
{
    (void)pthread_once(&once, read_own);
    return own;
}
