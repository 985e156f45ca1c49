/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA source to machine code by NVRTC, where its library is. Called by custom_kernel.c, by
 * driver_load.c for lists, and by test/long/nvrtc_compile.c; no driver and no device is needed. */
#ifndef DSC_NVRTC_H
#define DSC_NVRTC_H

#include "accel/cuda/driver/nvrtc_api.h"

#include <stdint.h>

/* NULL with a reason when the library is not there. */
const dsc_nvrtc_api *dsc_nvrtc_load(const char **why_out);
/* "NVRTC 13.0", or why not. */
void dsc_nvrtc_say(char *text_out, size_t n);
/* Size and time of the library that is loaded, for keys; "": not known. */
const char *dsc_nvrtc_build(void);

/* The best architecture that the library makes code for and that a device of compute capability
 * major.minor runs: 0: none. known_out: those that it has, for a message. */
int dsc_nvrtc_arch(const dsc_nvrtc_api *nvrtc, int major, int minor, char *known_out, size_t n);

enum { DSC_NVRTC_MOST_OPTIONS = 96 };

/* What is compiled; borrowed. */
typedef struct dsc_nvrtc_job {
    const char *name; /* of the source, in the log */
    const char *source;
    int arch; /* 90: sm_90 */
    const char *options[DSC_NVRTC_MOST_OPTIONS];
    uint32_t n_options;
} dsc_nvrtc_job;

/* What came of it, from malloc; free() each. */
typedef struct dsc_nvrtc_made {
    void *code; /* NULL: not compiled */
    size_t code_bytes;
    char *log;     /* the compiler's, whole; NULL where it has none */
    char why[256]; /* where code is NULL */
} dsc_nvrtc_made;

void dsc_nvrtc_compile(const dsc_nvrtc_api *nvrtc, const dsc_nvrtc_job *job,
                       dsc_nvrtc_made *made_out);

/* custom_device.cuh, which sources include as DSC_DEVICE_HEADER_NAME (made by cmake/cuda.cmake). */
extern const char dsc_device_header[];
#define DSC_DEVICE_HEADER_NAME "deepspeed_cuda.h"

#endif
