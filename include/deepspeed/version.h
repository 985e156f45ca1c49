/* SPDX-License-Identifier: Apache-2.0 */
/* The library's version, and how its structs grow.
 *
 * The three numbers below are the only place that knows them: CMake reads them here. A header says
 * what a program was compiled against; ds_version() what it runs with. While the shared object's
 * version is 0 (libdeepspeed.so.0) both must be the same release: the interface may still change,
 * and CHANGELOG.md says when it does.
 */
#ifndef DEEPSPEED_VERSION_H
#define DEEPSPEED_VERSION_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define DS_API __attribute__((visibility("default")))
#else
#define DS_API
#endif

#define DS_VERSION_MAJOR 0
#define DS_VERSION_MINOR 1
#define DS_VERSION_PATCH 0

/* As one number that grows: 0.1.0 is 100, 1.2.3 is 10203. */
#define DS_VERSION_OF(major, minor, patch) ((major)*10000 + (minor)*100 + (patch))
#define DS_VERSION                         DS_VERSION_OF(DS_VERSION_MAJOR, DS_VERSION_MINOR, DS_VERSION_PATCH)

#define DS_VERSION_QUOTE_(x) #x
#define DS_VERSION_JOIN_(a, b, c)                                                                  \
    DS_VERSION_QUOTE_(a) "." DS_VERSION_QUOTE_(b) "." DS_VERSION_QUOTE_(c)
#define DS_VERSION_TEXT DS_VERSION_JOIN_(DS_VERSION_MAJOR, DS_VERSION_MINOR, DS_VERSION_PATCH)

/* DS_VERSION of the library that runs. Any thread. */
DS_API uint32_t ds_version(void);
/* "0.1.0", of the library that runs. Any thread. */
DS_API const char *ds_version_text(void);

/* Room for the fields of later versions, at the end of each struct that may grow. It must be zero:
 * a struct of which only some fields are named, or {0}, has it so. A function that takes such a
 * struct refuses other contents with ERR_ARG: they come from a newer version's field, which would
 * otherwise be ignored, or from memory that nobody has set. docs/adr/0014-structs-grow-into-room.md
 */
#define DS_RESERVED(n) uint64_t reserved[n]

#ifdef __cplusplus
}
#endif
#endif
