/* SPDX-License-Identifier: Apache-2.0 */
/* Loads the stand-ins of libcuda (accel/standin) and of libraries over it, and lets the accelerator
 * `cuda` be the module that is made for it. Before somebody asks for an accelerator. */
#ifndef DS_TEST_STANDIN_LOAD_H
#define DS_TEST_STANDIN_LOAD_H

#include <stdbool.h>
#include <stdint.h>

/* Its functions, as of accel/standin/standin.h. */
typedef struct standin_calls {
    void (*set)(const char *options);
    uint64_t (*waits)(void);
    bool (*ignored_one)(void);
} standin_calls;

/* False, with a line on stderr: it is not there. build: the folder of the build. */
bool standin_load(const char *build, standin_calls *calls_out);

#endif
