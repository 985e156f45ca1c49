/* SPDX-License-Identifier: Apache-2.0 */
/* CAN_REPLACE_MALLOC: whether a test program may define malloc and its like: not under a sanitizer,
 * which has its own, nor with another libc than glibc. Tests that must end with 77, skipped. */
#ifndef DS_TEST_OWN_MALLOC_H
#define DS_TEST_OWN_MALLOC_H

#include <stdlib.h> /* __GLIBC__ */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAS_OWN_MALLOC 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ||                         \
    __has_feature(memory_sanitizer)
#define HAS_OWN_MALLOC 1
#endif
#endif

#if defined(HAS_OWN_MALLOC) || !defined(__GLIBC__)
#define CAN_REPLACE_MALLOC 0
#else
#define CAN_REPLACE_MALLOC 1
#endif

#endif
