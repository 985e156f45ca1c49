/* SPDX-License-Identifier: Apache-2.0 */
/* What the sanitizers want to know of fibers. Nothing without them. Their interfaces:
 * sanitizer/tsan_interface.h and sanitizer/common_interface_defs.h of the compiler. */
#ifndef DSC_SANITIZERS_H
#define DSC_SANITIZERS_H

#include <stddef.h>

/* A stack, for the address sanitizer; fake: its own. */
typedef struct dsc_saved_stack {
    const void *bottom;
    size_t size;
    void *fake;
} dsc_saved_stack;

#ifdef DSC_TSAN
void *__tsan_create_fiber(unsigned flags);
void *__tsan_get_current_fiber(void);
void __tsan_destroy_fiber(void *fiber);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
void __tsan_acquire(void *address);
void __tsan_release(void *address);

static inline void *dsc_fiber_create(void)
{
    return __tsan_create_fiber(0);
}
static inline void *dsc_fiber_current(void)
{
    return __tsan_get_current_fiber();
}
static inline void dsc_fiber_destroy(void *fiber)
{
    __tsan_destroy_fiber(fiber);
}
static inline void dsc_acquire(void *address)
{
    __tsan_acquire(address);
}
static inline void dsc_release(void *address)
{
    __tsan_release(address);
}
static inline void dsc_before_switch(void *fiber, dsc_saved_stack *own, const dsc_saved_stack *to)
{
    (void)own;
    (void)to;
    __tsan_switch_to_fiber(fiber, 1); /* 1: does not order them */
}
static inline void dsc_after_switch(const dsc_saved_stack *own, dsc_saved_stack *from)
{
    (void)own;
    (void)from;
}
#else
static inline void *dsc_fiber_create(void)
{
    return NULL;
}
static inline void *dsc_fiber_current(void)
{
    return NULL;
}
static inline void dsc_fiber_destroy(void *fiber)
{
    (void)fiber;
}
static inline void dsc_acquire(void *address)
{
    (void)address;
}
static inline void dsc_release(void *address)
{
    (void)address;
}
#ifdef DSC_ASAN
void __sanitizer_start_switch_fiber(void **fake, const void *bottom, size_t size);
void __sanitizer_finish_switch_fiber(void *fake, const void **bottom, size_t *size);

/* own NULL: the stack that is left will not be used again. */
static inline void dsc_before_switch(void *fiber, dsc_saved_stack *own, const dsc_saved_stack *to)
{
    (void)fiber;
    __sanitizer_start_switch_fiber(own != NULL ? &own->fake : NULL, to->bottom, to->size);
}
/* from: where to keep the stack that was left; NULL: nowhere. */
static inline void dsc_after_switch(const dsc_saved_stack *own, dsc_saved_stack *from)
{
    __sanitizer_finish_switch_fiber(own != NULL ? own->fake : NULL,
                                    from != NULL ? &from->bottom : NULL,
                                    from != NULL ? &from->size : NULL);
}
#else
static inline void dsc_before_switch(void *fiber, dsc_saved_stack *own, const dsc_saved_stack *to)
{
    (void)fiber;
    (void)to;
    if (own != NULL) {
        own->fake = NULL;
    }
}
static inline void dsc_after_switch(const dsc_saved_stack *own, dsc_saved_stack *from)
{
    (void)own;
    (void)from;
}
#endif
#endif

#endif
