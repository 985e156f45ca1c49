/* SPDX-License-Identifier: Apache-2.0 */
/* The feed-forward layer of experts: a router sends each token to a few of them, and the layer
 * gives the sum of what they make of it, by the router's weights. No token is dropped. For the
 * families of models/.
 *
 * An expert's matrices are stored one by one (experts.3.w1.weight) and computed with as one: a
 * parameter whose name has a `*` stands for all of them, E first in its shape (ckpt/stacked.h). */
#ifndef DSI_MODEL_EXPERT_LAYER_H
#define DSI_MODEL_EXPERT_LAYER_H

#include <deepspeed/nn.h>

typedef struct ds_experts_params {
    int64_t n_experts, n_chosen; /* E, of which a token goes to K */
    int64_t width;               /* of an expert */
    bool normalise;              /* a token's weights sum to 1 */
    ds_activation activation;
    double init_std;
    double jitter; /* in training, router and experts read x times uniform numbers of 1 ± jitter */
    const char *router;           /* weight (E,C) */
    const char *gate, *up, *down; /* weights (E,F,C), (E,F,C), (E,C,F); names as stored */
    const char *gate_up;          /* instead of gate and up where it is not NULL: (E,2F,C), gate
                                     before up */
    int64_t shared_width;
    const char *shared[3];   /* gate, up and down of one more expert, of shared_width, that every
                                token goes to; NULL: there is none */
    const char *shared_gate; /* weight (1,C): it counts times the sigmoid of this; NULL: times 1 */
    bool sigmoid;            /* a token's scores are sigmoids of logits; else their softmax */
    const char *choice_bias; /* f32 (E), which no training changes: added to scores where experts
                                are chosen, not where they are weighed; NULL: there is none */
    double factor;           /* of weights */
    bool weighs_first;       /* what experts read is times the weights; else what they make */
    int64_t n_groups, top_groups; /* n_groups above 1: experts side by side are in so many groups,
                                     and a token's are of the best top_groups of them; 0: the family
                                     has neither groups nor a factor */
    bool group_by_two; /* a group is as good as its best two experts together; else as the best */
    /* gpt-oss, with gate_up alone */
    const char *router_bias;              /* (E); NULL: there is none */
    const char *gate_up_bias, *down_bias; /* (E,2F), (E,C); NULL: there are none */
    bool transposed;                      /* gate_up is (E,C,2F), down (E,F,C) */
    bool alternate;                       /* gate and up are columns of gate_up in turns */
    double limit; /* default 0: none; gate stays below it, up within ± of it, and an expert makes
                     (up + 1)·gate·sigmoid(alpha·gate) of them */
    double alpha;
} ds_experts_params;

/* What the routers of a model did so far: for the loss that balances them. Zeroed at first, with
 * DS_NONE for both values. */
typedef struct ds_router_load {
    ds_value sizes;   /* f32 (E): pairs of token and expert */
    ds_value chances; /* f32 (E): sums of probabilities over tokens */
    int64_t n_tokens; /* of all layers together */
} ds_router_load;

/* x (..,C) → (..,C). load: NULL, or what this layer is added to. */
ds_value ds_model_experts(ds_nn *nn, ds_value x, const ds_experts_params *params,
                          ds_router_load *load);

/* E Σ_e f_e P_e, f_e = sizes_e / n, P_e = chances_e / n, n the tokens of all layers together: the
 * loss of Switch Transformers (Fedus et al. 2021) as transformers computes it. f32 (). */
ds_value ds_model_balance_loss(ds_nn *nn, const ds_router_load *load);

#endif
