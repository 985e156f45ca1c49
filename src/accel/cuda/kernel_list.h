/* SPDX-License-Identifier: Apache-2.0 */
/* Every kernel of kernels/, by the name under which a device has it. X(name); of those that
 * DSC_KERNEL_ACT makes, XA(name). */
#ifndef DSC_KERNEL_LIST_H
#define DSC_KERNEL_LIST_H

#define DSC_KERNEL_LIST(X, XA)                                                                     \
    XA(layer_norm)                                                                                 \
    XA(layer_norm_dx)                                                                              \
    XA(layer_norm_dw)                                                                              \
    XA(rms_norm)                                                                                   \
    XA(rms_norm_dx)                                                                                \
    XA(rms_norm_dw)                                                                                \
    XA(binary)                                                                                     \
    XA(unary)                                                                                      \
    XA(activation)                                                                                 \
    XA(activation_backward)                                                                        \
    XA(glu)                                                                                        \
    XA(glu_backward)                                                                               \
    XA(linear)                                                                                     \
    XA(linear_dw)                                                                                  \
    XA(column_sums)                                                                                \
    X(ce_rows)                                                                                     \
    X(ce_loss)                                                                                     \
    XA(ce_dlogits)                                                                                 \
    XA(embedding)                                                                                  \
    XA(embedding_dw)                                                                               \
    XA(dropout)                                                                                    \
    X(squares)                                                                                     \
    X(squares_join)                                                                                \
    X(sum_parts)                                                                                   \
    X(abs_max)                                                                                     \
    X(max_of)                                                                                      \
    X(squares_on_grid)                                                                             \
    X(grid_join)                                                                                   \
    X(move)                                                                                        \
    X(permute)                                                                                     \
    X(clip)                                                                                        \
    X(rope_table)                                                                                  \
    X(linear_mma_bf16)                                                                             \
    X(linear_mma_f16)                                                                              \
    XA(route)                                                                                      \
    XA(route_backward)                                                                             \
    X(group_take)                                                                                  \
    X(group_count)                                                                                 \
    X(group_sum)                                                                                   \
    X(group_place)                                                                                 \
    X(kept_weights)                                                                                \
    X(group_sizes)                                                                                 \
    X(expert_segments)                                                                             \
    XA(spread_rows)                                                                                \
    XA(combine_rows)                                                                               \
    XA(combine_rows_dw)                                                                            \
    XA(grouped_linear)                                                                             \
    X(grouped_linear_mma_bf16)                                                                     \
    X(grouped_linear_mma_f16)                                                                      \
    XA(grouped_linear_dw)                                                                          \
    XA(linear_packed)                                                                              \
    X(linear_packed_mma_bf16)                                                                      \
    X(linear_packed_mma_f16)                                                                       \
    XA(block_round)                                                                                \
    X(block_linear_q8_0)                                                                           \
    X(block_linear_q4_0)                                                                           \
    X(block_linear_q4_1)                                                                           \
    X(block_linear_q5_0)                                                                           \
    X(block_linear_q5_1)                                                                           \
    X(block_linear_q4_k)                                                                           \
    X(block_linear_q5_k)                                                                           \
    X(block_linear_q6_k)                                                                           \
    X(embedding_blocks)                                                                            \
    XA(sum_last)                                                                                   \
    XA(sum_rows)                                                                                   \
    XA(max_last)                                                                                   \
    XA(max_last_backward)                                                                          \
    X(expand)                                                                                      \
    XA(bmm)                                                                                        \
    XA(softmax)                                                                                    \
    XA(softmax_backward)                                                                           \
    XA(rope)                                                                                       \
    X(cell)                                                                                        \
    XA(attention)                                                                                  \
    XA(attention_dq)                                                                               \
    XA(attention_dkv)                                                                              \
    X(attention_mma_64_bf16)                                                                       \
    X(attention_mma_64_f16)                                                                        \
    X(attention_mma_128_bf16)                                                                      \
    X(attention_mma_128_f16)                                                                       \
    X(attention_mma_dq_64_bf16)                                                                    \
    X(attention_mma_dq_64_f16)                                                                     \
    X(attention_mma_dq_128_bf16)                                                                   \
    X(attention_mma_dq_128_f16)                                                                    \
    X(attention_mma_dkv_64_bf16)                                                                   \
    X(attention_mma_dkv_64_f16)                                                                    \
    X(attention_mma_dkv_128_bf16)                                                                  \
    X(attention_mma_dkv_128_f16)                                                                   \
    X(paged_write)                                                                                 \
    XA(paged_write_codes)                                                                          \
    XA(paged_attention)                                                                            \
    XA(paged_attention_codes)                                                                      \
    XA(paged_attention_other)                                                                      \
    X(paged_mma_64_bf16)                                                                           \
    X(paged_mma_64_f16)                                                                            \
    X(paged_mma_128_bf16)                                                                          \
    X(paged_mma_128_f16)                                                                           \
    X(adam)                                                                                        \
    X(ademamix)                                                                                    \
    X(sgd)                                                                                         \
    X(lion)                                                                                        \
    X(adagrad)                                                                                     \
    X(lamb_moments)                                                                                \
    X(lamb_sums)                                                                                   \
    X(lamb_sums_join)                                                                              \
    X(lamb)                                                                                        \
    X(first_moment)                                                                                \
    X(unit_sums)                                                                                   \
    X(unit_norms)                                                                                  \
    X(unit_matrix)                                                                                 \
    X(muon)                                                                                        \
    XA(tree_sum)                                                                                   \
    X(tree_sum_whole)

typedef enum dsc_fn {
#define DSC_ONE(name)   DSC_FN_##name,
#define DSC_THREE(name) DSC_FN_##name##_f32, DSC_FN_##name##_bf16, DSC_FN_##name##_f16,
    DSC_KERNEL_LIST(DSC_ONE, DSC_THREE)
#undef DSC_ONE
#undef DSC_THREE
        DSC_FN_COUNT
} dsc_fn;

#endif
