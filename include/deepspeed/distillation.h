/* SPDX-License-Identifier: Apache-2.0 */
/* Distillation: a model learns from the chances that another one, its teacher, gives each token.
 *
 * The teacher runs in the same graph as the model, on the same tokens, frozen and without dropout:
 * what the plan does with frozen weights (slices of them over ranks, offload) it does with the
 * teacher's. Both have the same vocabulary. The loss of training is, as the mean over counted
 * targets y with the logits z of the model and t of the teacher,
 *
 *     (1 - w) · -log softmax(z)[y]  +  w · T² · D(softmax(t / T), softmax(z / T))
 *
 * with w `weight` and T `temperature` (G. Hinton, O. Vinyals, J. Dean, arXiv 1503.02531, which has
 * T² too), and D by `mix` b, from p of the teacher and q of the model (R. Agarwal et al., arXiv
 * 2306.13649):
 *
 *     b = 0         KL(p ‖ q): the model covers all that the teacher finds likely
 *     b = 1         KL(q ‖ p): it keeps to what the teacher finds most likely
 *     0 < b < 1     b KL(p ‖ m) + (1 - b) KL(q ‖ m), m = b p + (1 - b) q
 *
 * D is that of TRL's GKDTrainer, whose loss has no T². Evaluation has the cross entropy alone, so
 * that its figures compare with those of other runs.
 */
#ifndef DEEPSPEED_DISTILLATION_H
#define DEEPSPEED_DISTILLATION_H

#include <deepspeed/model.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ds_distillation {
    const ds_model *teacher; /* a decoder; borrowed, must outlive what it is given to */
    const char *weights;     /* the teacher's model folder */
    double weight;           /* w, above 0 to 1 */
    double temperature;      /* T, above 0 */
    double mix;              /* b, 0 to 1 */
    DS_RESERVED(6);
} ds_distillation;

#ifdef __cplusplus
}
#endif
#endif
