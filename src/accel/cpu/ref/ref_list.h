/* SPDX-License-Identifier: Apache-2.0 */
/* The families of reference kernels, one a file: X(name) for ref_<name>.c; attention_part is in
 * attn_part.c, on those of attention. */
#ifndef DSI_ACCEL_CPU_REF_LIST_H
#define DSI_ACCEL_CPU_REF_LIST_H

#include <deepspeed/op.h>

#define DSI_REF_FAMILY_LIST(X)                                                                     \
    X(linear)                                                                                      \
    X(bmm)                                                                                         \
    X(embedding)                                                                                   \
    X(vocab)                                                                                       \
    X(route)                                                                                       \
    X(experts)                                                                                     \
    X(norm)                                                                                        \
    X(activation)                                                                                  \
    X(rope)                                                                                        \
    X(attention)                                                                                   \
    X(attention_sinks)                                                                             \
    X(causal_conv)                                                                                 \
    X(delta_rule)                                                                                  \
    X(relative_bias)                                                                               \
    X(cross_entropy)                                                                               \
    X(distillation)                                                                                \
    X(preference)                                                                                  \
    X(softmax)                                                                                     \
    X(random)                                                                                      \
    X(elementwise)                                                                                 \
    X(reduce)                                                                                      \
    X(maximum)                                                                                     \
    X(select)                                                                                      \
    X(prune)                                                                                       \
    X(shape)                                                                                       \
    X(cell)                                                                                        \
    X(paged)                                                                                       \
    X(slot_adapter)
/* Those without a double-precision twin. */
#define DSI_REF_SINGLE_LIST(X)                                                                     \
    X(gradnorm)                                                                                    \
    X(lamb)                                                                                        \
    X(attention_part)                                                                              \
    X(quant)                                                                                       \
    X(block_linear)                                                                                \
    X(weight_norms)                                                                                \
    X(columns)                                                                                     \
    X(blocks)                                                                                      \
    X(signs)                                                                                       \
    X(onebit)                                                                                      \
    X(muon)                                                                                        \
    X(schedule_free)                                                                               \
    X(adam_8bit)                                                                                   \
    X(adafactor)                                                                                   \
    X(onebit_lamb)                                                                                 \
    X(zero_one)                                                                                    \
    X(optimizer)

#define X(name)                                                                                    \
    extern const ds_kernel *const dsi_ref_##name[];                                                \
    extern const ds_kernel *const dsi_ref64_##name[];
DSI_REF_FAMILY_LIST(X)
DSI_REF_SINGLE_LIST(X)
#undef X

#endif
